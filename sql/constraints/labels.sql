-- Labels make a class only where an affinity term selects by them. A key that no term names is hidden in
-- placement_class.labels: its value is null there, the lease has it (lease.labels). So leases that differ in
-- hidden keys alone share a class.
--
-- Example: a million leases have a label "order", each another one. Their class has {"app": "db", "order":
-- null}. Then a lease is spawned that keeps away from order=7. Its term is not published, and so the lease
-- not claimed, before upkeep has moved what waits and runs to classes that show the key (show_labels).
--
-- The invariant: once a term is published, no open lease that it may select has a class that hides a key of
-- it (broken_terms). Spawns find the term, whether it is published or not. A spawn that did not was under way
-- when the term was written, and the publication waits for its end. What has ended stays as it is: a
-- lease that is requeued gets another class.

-- Returns labels with null for each key that the class of a lease hides: no term names it for one of the
-- tenants, nor does the lease's own placement (p_asked: it, or the other options of one lease or of a list).
-- A params blob there may name any, and above read committed an older snapshot may not show the term: then
-- none is hidden. The caller has a transaction id, and looks things up by index.
create or replace function hwqueue.class_labels(p_labels jsonb, p_tenants text[], p_asked jsonb) returns jsonb
language plpgsql stable
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = on
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_named text[];
begin
  if p_asked @? 'lax $[*].wire'
    or current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    return p_labels;
  elsif p_asked @? 'strict $.**.*' then
    v_named := array(
      select n #>> '{}' from jsonb_path_query(p_asked, 'strict $.**.label', '{}', true) n
      union all
      select k from jsonb_path_query(p_asked, 'strict $.**.labels ? (@.type() == "object")', '{}', true) l,
        jsonb_object_keys(l) k);
  end if;
  return (
    select coalesce(jsonb_object_agg(l.key, case when l.key = any (v_named) or exists (
        select from hwqueue.affinity_term t
        where t.anchors && array(select hwqueue.key_anchor(n, l.key) from unnest(p_tenants || null::text) n))
      then l.value else 'null' end), '{}')
    from jsonb_each(p_labels) l);
end
$$;

-- Moves up to p_limit of the leases that a term may select, and whose classes hide a key of it, to classes
-- that show it. True if there were any, also where another session held them. p_moves: false: look only.
-- Locks: rows of leases; the newest marks of their queues; entries or claims: all skip locked.
create or replace function hwqueue.show_labels(p_spec jsonb, p_limit int, p_moves boolean) returns boolean
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_keys text[] := array(
    select distinct e.value ->> 'label'
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e);
  v_classes bigint[] := array(
    select c.class_id
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e,
      hwqueue.placement_class c
    where c.labels @> jsonb_build_object(e.value ->> 'label', null)
      and (i.value -> 'tenants' = '"*"' or i.value -> 'tenants' ? c.tenant));
  v_found uuid[];
  v_kind record;
  v_class hwqueue.placement_class;
  v_class_id bigint;
begin
  if v_classes = '{}' then
    return false;
  end if;
  v_found := array(
    (select r.lease_id from hwqueue.ready r where r.class_id = any (v_classes) limit p_limit)
    union all (select s.lease_id from hwqueue.scheduled s where s.class_id = any (v_classes) limit p_limit)
    union all (select c.lease_id from hwqueue.claim c where c.class_id = any (v_classes) limit p_limit)
    limit case when p_moves then p_limit else 1 end);
  for v_kind in
    select c as of_class, s.labels, array_agg(l.lease_id) as lease_ids
    from (select x.* from hwqueue.lease x where p_moves and x.lease_id = any (v_found)
          for no key update skip locked) l
    join hwqueue.placement_class c on c.class_id = l.class_id
    cross join lateral (
      select c.labels || coalesce(jsonb_object_agg(k, l.labels -> k), '{}') as labels
      from unnest(v_keys) k where c.labels -> k = 'null') s
    where c.class_id = any (v_classes) group by 1, 2
  loop
    v_class := v_kind.of_class;
    -- held until the end: no mark of the class goes past an entry that comes into the middle of its line.
    -- Updated: a claim with an older snapshot, which does not show that entry, moves no mark either
    update hwqueue.low_water w set moved = w.moved
    where w.ctid = (
      select m.ctid from hwqueue.low_water m where m.queue_id = v_class.queue_id and m.class_id = 0
      order by m.version desc limit 1 for update skip locked);
    continue when not found;
    v_class_id := hwqueue.find_class(row(v_class.queue_id, v_class.task_name, v_class.tenant,
      v_class.service_id, v_kind.labels, v_class.placement, v_class.patience, v_class.target, v_class.max_run,
      v_class.is_choice));
    delete from hwqueue.low_water w where w.queue_id = v_class.queue_id and w.class_id = v_class_id;
    perform hwqueue.note_selected(array[v_class_id]);
    with ready as (
      update hwqueue.ready r set class_id = v_class_id
      where r.ctid = any (array(
        select e.ctid from hwqueue.lease l
        join hwqueue.ready e
          on (e.queue_id, e.tier, e.rank, e.position) = (l.queue_id, l.tier, l.rank, l.position)
        where l.lease_id = any (v_kind.lease_ids) and e.lease_id = l.lease_id for update of e skip locked))
      returning r.lease_id
    ), scheduled as (
      update hwqueue.scheduled s set class_id = v_class_id
      where s.ctid = any (array(
        select e.ctid from hwqueue.lease l
        join hwqueue.scheduled e
          on (e.queue_id, e.available_at, e.lease_id) = (l.queue_id, l.available_at, l.lease_id)
        where l.lease_id = any (v_kind.lease_ids) for update of e skip locked))
      returning s.lease_id
    ), claimed as (
      update hwqueue.claim c set class_id = v_class_id
      where c.lease_id = any (array(
        select e.lease_id from hwqueue.claim e
        where e.lease_id = any (v_kind.lease_ids) for no key update skip locked))
      returning c.lease_id
    )
    update hwqueue.lease l set class_id = v_class_id
    from (table ready union all table scheduled union all table claimed) m where l.lease_id = m.lease_id;
    perform hwqueue.wake_classes_of_entries(array[v_class_id]);
  end loop;
  return v_found <> '{}';
end
$$;
