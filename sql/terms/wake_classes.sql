-- Classes that wait (placement_class.waits) are no candidates: they must be with one lease, which has not started, or are for one lease only
-- (target_class), which is scheduled.

-- Whether the only lease of a class is scheduled, or a class must be with a lease that neither runs nor has succeeded: until that one starts no
-- node may run the class, but for nodes outside the domain that the class lets pass.
create or replace function hwqueue.waits_for_start(p_class hwqueue.placement_class, p_shard int) returns boolean
language sql stable
as $$
  -- put to sleep once (give_target): while a class is awake its lease may be on its way into ready
  select p_class.waits and p_class.target is not null and coalesce(hwqueue.lease_state(p_class.target, p_shard) = 'scheduled', false) or exists (
    select 1 from jsonb_array_elements(p_class.required) e
    cross join lateral (
      select (p_class.terms #>> array[e.value ->> 'term', 'spec', 'all', '0', 'lease'])::uuid as lease_id) t
    where t.lease_id is not null and not e.value ? 'away' and e.value ->> 'unknown' is distinct from 'pass'
      and not exists (select 1 from hwqueue.claim x where x.shard_id = p_shard and x.lease_id = t.lease_id)
      and not exists (select 1 from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = t.lease_id and o.state = 'completed'))
$$;

-- A lease starts: classes that waited for it are candidates from when the caller's transaction commits. Those that another session holds are
-- found by wake_missed.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_classes(p_lease uuid, p_shard int) returns void
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

-- Entries come into ready: whoever puts them there wakes their classes, which are candidates from when the caller's transaction commits.
-- Those that another session holds are found by wake_missed; of those whose terms are not in force it is decided when they are (admit_classes),
-- and until then a lock on them would hold that up.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_due(p_classes bigint[], p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id from hwqueue.placement_class k
    where k.shard_id = p_shard and k.class_id = any (p_classes) and k.waits and not hwqueue.waits_for_start(k, p_shard)
      and hwqueue.in_force(k.terms, p_shard)
    for no key update of k skip locked));
end
$$;

-- Makes classes candidates that still wait for leases that have started: such a lease was adopted, or started while the class was written.
-- Looks at the first p_limit that wait, and at as many from where watch_classes goes on, so all have their turn, however long the first wait.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_missed(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id
    from (
      (select x.class_id from hwqueue.placement_class x where x.shard_id = p_shard and x.waits order by x.class_id limit p_limit)
      union
      (select x.class_id from hwqueue.placement_class x
       where x.shard_id = p_shard and x.waits and x.class_id > (
         select m.watched_class from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1)
       order by x.class_id limit p_limit)) w
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = w.class_id
    where not hwqueue.waits_for_start(k, p_shard)
    for no key update of k skip locked));
end
$$;
