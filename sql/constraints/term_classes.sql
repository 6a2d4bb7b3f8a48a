-- Which affinity terms select a class, the classes made for single leases, and which classes are
-- candidates: those whose terms are published, and the lease that they wait for has started.
--
-- Example: a lease must be on the same node as lease L. L shares a class with 2,000 others, and only L
-- may be counted. So L gets a class of its own (target_class), which the term selects. The class of the
-- lease that asks waits (placement_class.waits) until L starts. Until then no profile judges it and it
-- costs claims nothing.

-- Writes which terms select the classes of a batch (class_term). A term that another session writes at this
-- moment finds the classes itself, or finds them marked as checked by this call. Index scans are off: while
-- the term table is young the planner would read all of it by its key for each class.
create or replace function hwqueue.note_selected(p_class_ids bigint[]) returns void
language plpgsql volatile set enable_bitmapscan = on set enable_indexscan = off
as $$
begin
  perform 1 from hwqueue.affinity_term t limit 1;
  if found then
    insert into hwqueue.class_term (class_id, term_id)
    select c.class_id, t.term_id
    from hwqueue.placement_class c
    join hwqueue.affinity_term t on t.anchors && hwqueue.selected_anchors(c)
      and hwqueue.term_selects(t.spec, c)
    where c.class_id = any (p_class_ids)
      and not exists (select 1 from hwqueue.class_term m
                      where m.class_id = c.class_id and not m.is_own and m.term_id = t.term_id);
  end if;
end
$$;

-- The classes whose leases a term selects. For a term on one lease: the lease's class, and the class
-- that it runs as.
create or replace function hwqueue.selected_classes(p_spec jsonb) returns bigint[]
language plpgsql stable set enable_bitmapscan = on
as $$
declare
  v_lease uuid := (p_spec #>> '{all,0,lease}')::uuid;
  v_service uuid := (
    select (i.value ->> 'service')::uuid from jsonb_array_elements(p_spec -> 'all') i
    where i.value ? 'service' limit 1);
  v_queue int := (
    select (i.value ->> 'queue')::int from jsonb_array_elements(p_spec -> 'all') i
    where i.value ? 'task' limit 1);
  v_equal jsonb := (
    select coalesce(jsonb_object_agg(e.value ->> 'label', e.value #>> '{values,0}'), '{}')
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
    where e.value ->> 'op' = 'in' and jsonb_array_length(e.value -> 'values') = 1);
begin
  return array(  -- one of these reads anything: each by an index of its own
    select l.class_id from hwqueue.lease l where l.lease_id = v_lease
    union
    select c.class_id from hwqueue.claim c where c.lease_id = v_lease
    union
    select c.class_id from hwqueue.placement_class c
    where c.service_id = v_service and hwqueue.term_selects(p_spec, c)
    union
    select c.class_id from hwqueue.placement_class c
    where v_service is null and c.queue_id = v_queue and hwqueue.term_selects(p_spec, c)
    union
    select c.class_id from hwqueue.placement_class c
    where coalesce(v_lease, v_service) is null and v_queue is null
      and c.labels @> v_equal and hwqueue.term_selects(p_spec, c));
end
$$;

-- The class for a lease that a term names: one of its own, so that the others of its class are not
-- affected. Above read committed every lease with an id chosen by the caller gets its own class, because the
-- old snapshot may not show the term.
-- Locks and raises as find_class.
create or replace function hwqueue.target_class(p_class_id bigint, p_lease uuid) returns bigint
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.affinity_term t where t.anchors && array['lease:' || p_lease] limit 1;
  -- an older snapshot may not show the term
  if not found and current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    return p_class_id;
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.class_id = p_class_id;
  if not found or v_class.target = p_lease then
    return v_class.class_id;
  end if;
  return hwqueue.find_class(row(v_class.queue_id, v_class.task_name, v_class.tenant, v_class.service_id,
    v_class.labels, v_class.placement, v_class.patience, p_lease, v_class.max_run, v_class.is_choice));
end
$$;

-- Moves a lease that a term names to a class of its own, if it has none. A running lease changes its class at
-- its next attempt. False, having done nothing, when another session holds the lease's entry or this one has
-- deleted it.
-- Locks: the lease's entry, skip locked; its class, skip locked; its row. Raises as find_class.
create or replace function hwqueue.assign_target_class(p_lease uuid) returns boolean
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_ctid tid;
  v_class_id bigint;
begin
  select l.* into v_lease from hwqueue.lease l where l.lease_id = p_lease;
  v_class_id := hwqueue.target_class(v_lease.class_id, p_lease);
  if v_class_id is null or v_class_id = v_lease.class_id
    or (hwqueue.lease_end(p_lease)).state is not null then
    return true;
  end if;
  -- the only update that entries ever see: a session that locks an entry reads its class again
  select r.ctid into v_ctid from hwqueue.ready r
  where r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank = v_lease.rank
    and r.position between v_lease.position and v_lease.position and r.lease_id = p_lease
  order by r.position limit 1 for update skip locked;
  if found then
    update hwqueue.ready r set class_id = v_class_id where r.ctid = v_ctid;
    perform hwqueue.wake_classes_of_entries(array[v_class_id]);
  else
    select s.ctid into v_ctid from hwqueue.scheduled s
    where s.queue_id = v_lease.queue_id and s.available_at = v_lease.available_at and s.lease_id = p_lease
    for update skip locked;
    if found then
      update hwqueue.scheduled s set class_id = v_class_id where s.ctid = v_ctid;
      -- no candidate before the lease is due (wake_classes_of_entries)
      update hwqueue.placement_class c set waits = true
      where c.class_id = v_class_id and c.created_xid = pg_current_xact_id();
    else
      perform 1 from hwqueue.claim c where c.lease_id = p_lease for update skip locked;
      if not found then
        return false;
      end if;
    end if;
  end if;
  update hwqueue.lease l set class_id = v_class_id where l.lease_id = p_lease;
  return true;
end
$$;

-- True if all terms of a class are published.
create or replace function hwqueue.has_published_terms(p_terms jsonb) returns boolean
language plpgsql stable
as $$ begin return
  not exists (
    select 1 from jsonb_array_elements(p_terms) s
    where not exists (
      select 1 from hwqueue.affinity_term t
      where t.digest = (s.value ->> 'digest')::bigint and t.published_at is not null));
end $$;

-- True if the only lease of a class is scheduled, or if the class must be with a lease that neither runs
-- nor has succeeded. Until that lease starts no node may run the class, except nodes outside the domain
-- that the class lets pass.
create or replace function hwqueue.waits_for_start(p_class hwqueue.placement_class) returns boolean
language plpgsql stable
as $$ begin return
  -- waits is set once (assign_target_class): later the lease of an awake class may be moving into ready
  p_class.waits and p_class.target is not null
    and coalesce(hwqueue.lease_state(p_class.target) = 'scheduled', false) or exists (
    select 1 from jsonb_array_elements(p_class.required) e
    cross join lateral (
      select (p_class.terms #>> array[e.value ->> 'term', 'spec', 'all', '0', 'lease'])::uuid as lease_id) t
    where t.lease_id is not null and not e.value ? 'away' and e.value ->> 'unknown' is distinct from 'pass'
      and not exists (select 1 from hwqueue.claim x where x.lease_id = t.lease_id)
      and not exists (select 1 from hwqueue.outcome o where o.lease_id = t.lease_id
          and (o.state = 'completed') is true));
end $$;

-- Wakes the classes that wait for a lease that starts now: they are candidates once the caller's
-- transaction commits. Classes that another session has locked are found later by wake_missed_classes.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_classes_of_lease(p_lease uuid) returns void
language plpgsql volatile
as $$ begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.class_id = any (array(
    select k.class_id from hwqueue.class_term m
    join hwqueue.placement_class k on k.class_id = m.class_id
    where m.lease_id = p_lease and k.waits
    for no key update of k skip locked));
end $$;

-- Wakes those of these classes that wait for nothing any more: their entries are in ready, or a lease has
-- started. One with unpublished terms is skipped: publish_term wakes it, and a lock on it would hold that up.
-- Those that are locked are left as above.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_classes_of_entries(p_classes bigint[]) returns void
language plpgsql volatile
as $$ begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.class_id = any (array(
    select k.class_id from hwqueue.placement_class k
    where k.class_id = any (p_classes) and k.waits and not hwqueue.waits_for_start(k)
      and hwqueue.has_published_terms(k.terms)
    for no key update of k skip locked));
end $$;

-- Wakes classes that still wait for leases that have started: one was adopted, or started while the class was
-- written. Reads the first p_limit that wait, and p_limit more from where watch_classes goes on.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_missed_classes(p_limit int) returns void
language plpgsql volatile
as $$ begin
  perform hwqueue.wake_classes_of_entries(array(
    select w.class_id
    from (
      (select x.class_id from hwqueue.placement_class x where x.waits order by x.class_id limit p_limit)
      union
      (select x.class_id from hwqueue.placement_class x
       where x.waits and x.class_id > (
         select m.watched_class from hwqueue.reap_cursor m order by m.version desc limit 1)
       order by x.class_id limit p_limit)) w));
end $$;
