-- Which affinity terms select a class, the classes made for leases that a term names, and which classes
-- are candidates: those whose terms are published and that wait for no lease to start.

-- Writes down which terms select the classes of a batch. A term that is written at this moment finds
-- them itself, or this call's mark.
-- Without index scans: a young term table would be read by its key, all of it for each class.
-- Idempotent: yes; two calls at once may write the same row twice, which does no harm.
create or replace function hwqueue.note_selected(p_class_ids bigint[], p_shard int) returns void
language plpgsql volatile set enable_bitmapscan = on set enable_indexscan = off
as $$
begin
  perform 1 from hwqueue.affinity_term t where t.shard_id = p_shard limit 1;
  if found then
    insert into hwqueue.class_term (shard_id, class_id, term_id)
    select p_shard, c.class_id, t.term_id
    from hwqueue.placement_class c
    join hwqueue.affinity_term t on t.shard_id = p_shard and t.anchors && hwqueue.selected_anchors(c)
      and hwqueue.term_selects(t.spec, c)
    where c.shard_id = p_shard and c.class_id = any (p_class_ids)
      and not exists (select 1 from hwqueue.class_term m
                      where m.shard_id = p_shard and m.class_id = c.class_id and m.term_id = t.term_id);
  end if;
end
$$;

-- Whether any term selects a class.
create or replace function hwqueue.is_selected(p_class_id bigint, p_shard int) returns boolean
language sql stable
as $$ select exists (select 1 from hwqueue.class_term m where m.shard_id = p_shard
    and m.class_id = p_class_id) $$;

-- Whether somebody remembers of one of these classes who may run it.
create or replace function hwqueue.is_judged(p_class_ids bigint[], p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  return exists (select 1 from hwqueue.profile_eligibility e
      where e.shard_id = p_shard and e.class_id = any (p_class_ids))
      or exists (select 1 from hwqueue.node_eligibility e where e.shard_id = p_shard
          and e.class_id = any (p_class_ids));
end
$$;

-- The classes whose leases a term selects; of a term on one lease, its class, and the one that it runs as.
create or replace function hwqueue.selected_classes(p_spec jsonb, p_shard int) returns bigint[]
language plpgsql stable set enable_bitmapscan = on
as $$
declare
  v_lease uuid := (p_spec #>> '{all,0,lease}')::uuid;
  v_service uuid := (
    select (i.value ->> 'service')::uuid from jsonb_array_elements(p_spec -> 'all') i
    where i.value ? 'service' limit 1);
  v_queue int := (select (i.value ->> 'queue')::int from jsonb_array_elements(p_spec -> 'all') i
      where i.value ? 'task' limit 1);
  v_equal jsonb := (
    select coalesce(jsonb_object_agg(e.value ->> 'label', e.value #>> '{values,0}'), '{}')
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
    where e.value ->> 'op' = 'in' and jsonb_array_length(e.value -> 'values') = 1);
begin
  if v_lease is not null then
    return array(
      select l.class_id from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = v_lease
      union
      select c.class_id from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = v_lease);
  end if;
  if v_service is not null then
    return array(
      select c.class_id from hwqueue.placement_class c
      where c.shard_id = p_shard and c.service_id = v_service and hwqueue.term_selects(p_spec, c));
  elsif v_queue is not null then
    return array(
      select c.class_id from hwqueue.placement_class c
      where c.shard_id = p_shard and c.queue_id = v_queue and hwqueue.term_selects(p_spec, c));
  end if;
  return array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.labels @> v_equal and hwqueue.term_selects(p_spec, c));
end
$$;

-- The class of a lease that a term names: one of its own, so that the others of its class go on as
-- before; else the class as it is.
-- Above read committed every lease with an id of the caller's own gets one.
-- Locks: as find_class. Raises: as find_class.
create or replace function hwqueue.target_class(p_class_id bigint, p_lease uuid, p_shard int) returns bigint
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.affinity_term t where t.shard_id = p_shard
    and t.anchors && array['lease:' || p_lease] limit 1;
  -- an older snapshot may not show the term
  if not found and current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    return p_class_id;
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard
    and c.class_id = p_class_id;
  if not found or v_class.target = p_lease then
    return v_class.class_id;
  end if;
  return hwqueue.find_class(v_class.queue_id, v_class.task_name, v_class.tenant, v_class.service_id,
      v_class.labels, v_class.placement,
                            p_shard, v_class.patience, p_lease);
end
$$;

-- Gives a lease that a term names a class of its own, if it has none, so that the term does not concern
-- others; while it runs, from its next attempt on. False when its entry is held by another session, or
-- deleted by this one: then nothing was done.
-- Locks: the lease's entry, skip locked; its class, skip locked; its row. Raises: as find_class.
create or replace function hwqueue.assign_target_class(p_lease uuid, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_place tid;
  v_class_id bigint;
begin
  select l.* into v_lease from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease;
  v_class_id := hwqueue.target_class(v_lease.class_id, p_lease, p_shard);
  if v_class_id is null or v_class_id = v_lease.class_id
    or (hwqueue.lease_end(p_lease, p_shard)).state is not null then
    return true;
  end if;
  -- the one update that entries ever see: who locks one looks at its class again
  select r.ctid into v_place from hwqueue.ready r
  where r.shard_id = p_shard and r.queue_id = v_lease.queue_id and r.tier = v_lease.tier
    and r.rank = v_lease.rank
    and r.position = v_lease.position and r.lease_id = p_lease for update skip locked;
  if found then
    update hwqueue.ready r set class_id = v_class_id where r.ctid = v_place;
    perform hwqueue.wake_classes_of_entries(array[v_class_id], p_shard);
  else
    select s.ctid into v_place from hwqueue.scheduled s
    where s.shard_id = p_shard and s.queue_id = v_lease.queue_id and s.available_at = v_lease.available_at
      and s.lease_id = p_lease
    for update skip locked;
    if found then
      update hwqueue.scheduled s set class_id = v_class_id where s.ctid = v_place;
      -- no candidate before the lease is due (wake_classes_of_entries)
      update hwqueue.placement_class c set waits = true
      where c.shard_id = p_shard and c.class_id = v_class_id and c.created_xid = pg_current_xact_id();
    else
      perform 1 from hwqueue.claim c where c.shard_id = p_shard
        and c.lease_id = p_lease for update skip locked;
      if not found then
        return false;
      end if;
    end if;
  end if;
  update hwqueue.lease l set class_id = v_class_id where l.shard_id = p_shard and l.lease_id = p_lease;
  return true;
end
$$;

-- Whether all of a class's terms are in force.
create or replace function hwqueue.published_classes(p_terms jsonb, p_shard int) returns boolean
language sql stable
as $$
  select not exists (
    select 1 from jsonb_array_elements(p_terms) s
    where not exists (
      select 1 from hwqueue.affinity_term t
      where t.shard_id = p_shard and t.digest = (s.value ->> 'digest')::bigint
        and t.published_at is not null))
$$;

-- Whether the only lease of a class is scheduled, or a class must be with a lease that neither runs nor
-- has succeeded: until that one starts no node may run the class, but for nodes outside the domain that
-- the class lets pass.
create or replace function hwqueue.waits_for_start(p_class hwqueue.placement_class,
  p_shard int) returns boolean
language sql stable
as $$
  -- put to sleep once (assign_target_class): while a class is awake its lease may be on its way into ready
  select p_class.waits and p_class.target is not null
    and coalesce(hwqueue.lease_state(p_class.target, p_shard) = 'scheduled', false) or exists (
    select 1 from jsonb_array_elements(p_class.required) e
    cross join lateral (
      select (p_class.terms #>> array[e.value ->> 'term', 'spec', 'all', '0', 'lease'])::uuid as lease_id) t
    where t.lease_id is not null and not e.value ? 'away' and e.value ->> 'unknown' is distinct from 'pass'
      and not exists (select 1 from hwqueue.claim x where x.shard_id = p_shard and x.lease_id = t.lease_id)
      and not exists (select 1 from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = t.lease_id
          and o.state = 'completed'))
$$;

-- A lease starts: classes that waited for it are candidates from when the caller's transaction commits.
-- Those that another session holds are found by wake_missed_classes.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_classes_of_lease(p_lease uuid, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id from hwqueue.class_rule r
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = r.class_id
    where r.shard_id = p_shard and r.lease_id = p_lease and k.waits
    for no key update of k skip locked));
end
$$;

-- Entries come into ready: whoever puts them there wakes their classes, which are candidates from when
-- the caller's transaction commits.
-- Those that another session holds are found by wake_missed_classes; of those whose terms are not in
-- force it is decided when they are (admit_classes), and until then a lock on them would hold that up.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_classes_of_entries(p_classes bigint[], p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id from hwqueue.placement_class k
    where k.shard_id = p_shard and k.class_id = any (p_classes) and k.waits
      and not hwqueue.waits_for_start(k, p_shard)
      and hwqueue.published_classes(k.terms, p_shard)
    for no key update of k skip locked));
end
$$;

-- Makes classes candidates that still wait for leases that have started: such a lease was adopted, or
-- started while the class was written.
-- Looks at the first p_limit that wait, and at as many from where watch_classes goes on, so all have
-- their turn, however long the first wait.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_missed_classes(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id
    from (
      (select x.class_id from hwqueue.placement_class x where x.shard_id = p_shard and x.waits
          order by x.class_id limit p_limit)
      union
      (select x.class_id from hwqueue.placement_class x
       where x.shard_id = p_shard and x.waits and x.class_id > (
         select m.watched_class from hwqueue.reap_cursor m where m.shard_id = p_shard
         order by m.version desc limit 1)
       order by x.class_id limit p_limit)) w
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = w.class_id
    where not hwqueue.waits_for_start(k, p_shard)
    for no key update of k skip locked));
end
$$;
