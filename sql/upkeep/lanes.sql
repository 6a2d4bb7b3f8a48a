-- Upkeep of lanes: what nobody else looks at, what may go, and the recount.
--
-- Example: a limit of two slots is raised to four. Nobody ends or arrives in the lane of key u42, so no claim
-- would look there. reap_lanes notes a change for each lane of the limit, a portion a call, and folds them.
--
-- Invariant: as of claim/lanes; broken_lanes checks it.

-- Notes lanes that were closed until now, and those of limits that were changed, follows pauses of queues,
-- lets leases change places that no node takes, and folds changes as long as there are some, until p_until:
-- tenants after p_after first. more: there may be more to do now.
-- Locks: limits, lanes, skip locked; as fold_lanes.
create or replace function hwqueue.reap_lanes(p_limit int, p_until timestamptz, p_after text,
  p_now timestamptz, out more boolean, out next_after text)
language plpgsql volatile
as $$
declare
  v_rule hwqueue.limit_rule;
  v_lanes bigint[];
  v_done record;
  v_busy bigint[] := '{}';
  v_looked int := 0;
begin
  with opened as (
    update hwqueue.lane k set closed_until = null
    where k.lane_id = any (array(
      select x.lane_id from hwqueue.lane x where x.closed_until <= p_now
      order by x.closed_until limit p_limit for no key update skip locked))
    returning k.lane_id
  )
  insert into hwqueue.lane_change (lane_id) select o.lane_id from opened o;
  more := false;
  for v_rule in
    select r.* from hwqueue.limit_rule r where r.changed_from is not null
    order by r.limit_id for no key update skip locked
  loop
    v_lanes := array(
      select k.lane_id from hwqueue.lane k
      where k.limit_id = v_rule.limit_id and k.lane_id >= v_rule.changed_from
      order by k.lane_id limit p_limit for key share skip locked);  -- so that none is pruned with its note
    update hwqueue.limit_rule r
    set changed_from = coalesce(hwqueue.weigh_lanes(v_lanes), v_lanes[p_limit] + 1)
    where r.limit_id = v_rule.limit_id;
    insert into hwqueue.lane_change (lane_id) select i from unnest(v_lanes) i;
    more := more or cardinality(v_lanes) = p_limit;
  end loop;
  if exists (select from hwqueue.limit_rule)
    or exists (  -- lanes of queues: leases there may outlive their limits
      select from hwqueue.scheduled s where s.lane_id between 0 and 4 * 2147483647::bigint + 3) then
    more := hwqueue.follow_pauses(p_limit, p_now) or more;
    perform hwqueue.rotate_lanes(p_now);
  end if;
  next_after := p_after;
  loop
    v_done := hwqueue.fold_changes(50, next_after, v_busy);
    next_after := v_done.next_after;
    exit when v_done.looked = 0 and v_done.busy = v_busy and next_after = '';
    v_busy := v_done.busy;
    v_looked := v_looked + v_done.looked;
    if clock_timestamp() >= p_until or v_looked >= 1000 then  -- each new lane is a lock till the end
      more := true;
      return;
    end if;
  end loop;
end
$$;

-- Lets leases that have stood in the lanes of their queues go on, where these do, and parks what has passed
-- its lanes there, 100 of each queue that is paused or dropped. p_limit go on at most; true: maybe not all.
-- Locks: entries, skip locked; as put_back and pass_on. Not idempotent.
create or replace function hwqueue.follow_pauses(p_limit int, p_now timestamptz) returns boolean
language plpgsql volatile set enable_seqscan = off
as $$
declare
  v_old hwqueue.ready;
  v_ctids tid[];
begin
  for v_old in
    delete from hwqueue.ready r where r.ctid = any (array(
      select e.row_ctid from hwqueue.queue q
      cross join lateral (
        select x.ctid as row_ctid from hwqueue.ready x where x.queue_id = q.queue_id and x.is_limited
        order by x.position limit 100 for update skip locked) e
      where coalesce(q.paused_at, q.dropped_at) is not null))
    returning r.*
  loop
    perform hwqueue.put_back(v_old.lease_id, v_old.attempt_count, v_old.claim_count, 'infinity', p_now,
      p_held_by => 'limit');
  end loop;
  v_ctids := array(
    select e.row_ctid from hwqueue.queue q
    cross join lateral (
      select x.ctid as row_ctid, x.tier, x.rank, x.turn from hwqueue.scheduled x
      where x.lane_id = q.queue_id * 4::bigint + 3
      order by x.tier, x.rank, x.turn limit p_limit for update skip locked) e
    where coalesce(q.paused_at, q.dropped_at) is null
    order by e.tier, e.rank, e.turn limit p_limit);
  perform hwqueue.pass_on(v_ctids, null, p_now, true) where v_ctids <> '{}';
  return cardinality(v_ctids) = p_limit;
end
$$;

-- Lets leases change places: one that no node took for as long as a turn of a lane whose slot it holds is
-- parked in its first lane again, before all others of its tier and rank, and one of another class that is
-- parked in that lane goes on instead: the first that had no turn yet, of the first 100. It looks at 500
-- leases that have passed their lanes, after those that this session has looked at last.
-- Locks: entries, skip locked; as put_back and pass_on. Not idempotent.
create or replace function hwqueue.rotate_lanes(p_now timestamptz) returns void
language plpgsql volatile set enable_seqscan = off
as $$
declare
  v_from bigint[] := string_to_array(
    coalesce(nullif(current_setting('hwqueue.turned_to', true), ''), '0 0'), ' ')::bigint[];
  v_looked hwqueue.ready[] := array(
    select x from hwqueue.ready x
    where x.is_limited and (x.queue_id, x.position) > (v_from[1]::int, v_from[2])
    order by x.queue_id, x.position limit 500);
  v_old record;
  v_next tid;
begin
  perform set_config('hwqueue.turned_to', case when cardinality(v_looked) = 500
    then concat_ws(' ', v_looked[500].queue_id, v_looked[500].position) else '' end, false);
  for v_old in
    select e.*, r.lane_id
    from unnest(v_looked) e
    cross join lateral (select x.lanes from hwqueue.lease x where x.lease_id = e.lease_id offset 0) k
    cross join lateral unnest(k.lanes) r
    join hwqueue.limit_rule u on u.limit_id = r.limit_id and e.eligible_at + u.turn <= p_now
    join hwqueue.lane c on c.lane_id = r.lane_id and coalesce(c.closed_until <= p_now, true)
  loop
    select s.ctid into v_next from hwqueue.scheduled s
    where s.ctid = (
      select x.row_ctid
      from (select y.ctid as row_ctid, y.* from hwqueue.scheduled y where y.lane_id = v_old.lane_id
            order by y.tier, y.rank, y.turn limit 100) x
      where x.class_id <> v_old.class_id
      -- who had no turn yet; then who had it longest ago
      order by x.turn < 0, case when x.turn < 0 then x.turn end, x.tier, x.rank, x.turn limit 1)
    for update skip locked;
    continue when not found;
    delete from hwqueue.ready r where r.ctid = (
      select x.ctid from hwqueue.ready x where (x.queue_id, x.tier, x.rank, x.position)
        = (v_old.queue_id, v_old.tier, v_old.rank, v_old.position) for update skip locked);
    continue when not found;
    perform hwqueue.put_back(v_old.lease_id, v_old.attempt_count, v_old.claim_count, p_now, p_now,
      p_turn => v_old.position - 4611686018427387904);
    insert into hwqueue.lane_change (lane_id, delta) values (v_old.lane_id, 1);  -- the other one has its slot
    perform hwqueue.pass_on(array[v_next], null, p_now, true);
  end loop;
end
$$;

-- Counts the leases that wait and the classes of each tenant, where a tenant has a quota of them, and the
-- spawns that were noted, and keeps that in its row; in the row * of those without a row that have all they
-- may, or have spawned. Tells of counts that were too old for spawns to go by. It reads all that waits, so a
-- count stands for three seconds.
-- Locks: rows of tenants, skip locked. Idempotent.
create or replace function hwqueue.count_usage(p_now timestamptz) returns void
language plpgsql volatile
  set enable_seqscan = on set enable_hashjoin = on set plan_cache_mode = force_custom_plan
as $$
declare
  v_names text[] := array(
    select t.name from hwqueue.tenant t where t.spec ?| array['pending', 'classes', 'spawns']
      and (t.counted_at > p_now - interval '3 seconds' and t.counted_at <= p_now) is not true
    order by t.name for no key update skip locked);
begin
  if v_names = '{}' then
    return;
  end if;
  perform hwqueue.note_event('usage_stale', format('quotas of tenant %s were not kept', t.name),
    jsonb_build_object('name', t.name, 'counted_at', t.counted_at))
  from hwqueue.tenant t where t.name = any (v_names) and t.counted_at < p_now - interval '10 seconds';
  with noted as materialized (
    delete from hwqueue.spawn_count c where c.ctid = any (array(
      select x.ctid from hwqueue.spawn_count x
      where not exists (
        select from hwqueue.tenant t
        where t.spec ? 'spawns' and t.name <> all (v_names) and (t.name = x.tenant or t.name = '*'
          and not exists (select from hwqueue.tenant o where o.name = x.tenant)))
      limit 10000))
    returning c.tenant, c.spawned
  ), used as (
    select c.tenant, coalesce(sum(w.pending), 0) as pending, count(*) as classes
    from hwqueue.placement_class c
    left join (
      select e.class_id, count(*) as pending
      from (select r.class_id from hwqueue.ready r union all select s.class_id from hwqueue.scheduled s) e
      group by 1) w on w.class_id = c.class_id
    where c.retired_at is null and c.tenant <> ''
    group by 1
  ), spawned as (
    select n.tenant, sum(n.spawned) as spawned from noted n group by 1
  )
  update hwqueue.tenant t
  set counted_at = p_now, usage = coalesce((
    select jsonb_object_agg(o.tenant, jsonb_strip_nulls(jsonb_build_object('pending', u.pending,
      'classes', u.classes, 'spawns', nullif(b.spawns, 0))))
    from (select k.tenant from used k union select k.tenant from spawned k
          union select k from jsonb_object_keys(t.usage) k) o
    left join used u on u.tenant = o.tenant
    left join spawned s on s.tenant = o.tenant
    cross join lateral (
      select case when t.spec ? 'spawns' then hwqueue.spawns_left(coalesce(s.spawned, 0)
        + coalesce((t.usage #> array[o.tenant, 'spawns'])::float8, 0), t.spec -> 'spawns',
        p_now - t.counted_at) end as spawns offset 0) b
    where case t.name when '*' then not exists (
          select from hwqueue.tenant x where x.name = o.tenant and x.name <> '*')
        and (u.pending >= (t.spec -> 'pending')::bigint or u.classes >= (t.spec -> 'classes')::bigint
          or b.spawns > 0)
      else o.tenant = t.name end), '{}')
  where t.name = any (v_names);
end
$$;

-- Deletes lanes that nobody stands in, and limits that were dropped and have none left. It looks at p_limit
-- lanes a call, in turn. A rate's lane stays until its burst is whole again. Returns how many it deleted.
-- Locks: the caller holds prune_cursor; lanes, limits, skip locked.
create or replace function hwqueue.prune_lanes(p_limit int, p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_last bigint;
  v_idle bigint[];
  v_count int;
begin
  with looked as materialized (
    select k.lane_id from hwqueue.lane k
    where k.lane_id > (select m.lane_id from hwqueue.prune_cursor m) order by k.lane_id limit p_limit
  )
  select case when count(*) = p_limit then max(i.lane_id) end, array(
    select x.lane_id from looked i
    join hwqueue.lane x on x.lane_id = i.lane_id
    left join hwqueue.limit_rule r on r.limit_id = x.limit_id
    where x.used = 0 and x.closed_until is null
      and (r.per is null or x.tat <= p_now - r.most * r.per)
    for update of x skip locked)
  into v_last, v_idle from looked i;
  delete from hwqueue.lane k  -- by what was noted until it was locked
  where k.lane_id = any (v_idle)
    and not exists (select from hwqueue.scheduled s where s.lane_id = k.lane_id)
    and not exists (select from hwqueue.lane_change c where c.lane_id = k.lane_id);
  get diagnostics v_count = row_count;
  update hwqueue.prune_cursor m set lane_id = coalesce(v_last, -9223372036854775808);
  delete from hwqueue.limit_rule r where r.limit_id = any (array(
    select x.limit_id from hwqueue.limit_rule x
    where x.dropped_at < p_now - interval '1 hour'
      and not exists (select from hwqueue.lane k where k.limit_id = x.limit_id)
    for update skip locked));
  return v_count;
end
$$;

-- Counts again which leases hold a place in a lane, and where those with lanes wait. For verify_invariants.
create or replace function hwqueue.broken_lanes() returns table (rule text, subject text, detail jsonb)
language sql stable
as $$
  with entry as (
    select r.lease_id, null::bigint as lane_id, false as is_timed, true as is_ready from hwqueue.ready r
    union all
    select s.lease_id, s.lane_id, s.lane_id is null, false from hwqueue.scheduled s
    union all
    select c.lease_id, null, false, true from hwqueue.claim c where c.is_reserved
  ), waiting as (
    select e.*, l.lanes, l.lanes_passed from entry e join hwqueue.lease l using (lease_id)
    where l.lanes is not null or e.lane_id is not null
  ), counted as (
    select p.lane_id, count(*) as places
    from (select h.lane_id from waiting w cross join lateral hwqueue.held_lanes(w.lanes, w.lanes_passed) h
          union all
          select i from hwqueue.claim c cross join lateral unnest(c.lanes) i) p
    group by p.lane_id
  ), written as (
    select u.lane_id, sum(u.used) as places
    from (select k.lane_id, k.used from hwqueue.lane k
          union all
          select c.lane_id, c.delta from hwqueue.lane_change c) u
    group by u.lane_id
  )
  select 'lane_used', lane_id::text,
         jsonb_build_object('written', coalesce(w.places, 0), 'counted', coalesce(c.places, 0))
  from counted c full join written w using (lane_id)
  where coalesce(w.places, 0) <> coalesce(c.places, 0)
  union all
  select 'lane_head', s.lease_id::text, to_jsonb(k)
  from hwqueue.lane k
  join hwqueue.scheduled s on s.lane_id = k.lane_id
  cross join lateral (select row(s.tier, s.rank, s.turn)::hwqueue.lane_place as place) p
  where p.place < k.head and not exists (
    select from hwqueue.lane_change c where c.lane_id = k.lane_id and c.head <= p.place)
  union all
  select 'lane_entry', w.lease_id::text, to_jsonb(w)
  from waiting w
  where case when w.is_ready then w.lanes_passed is distinct from cardinality(w.lanes)
    when w.is_timed then w.lanes_passed > cardinality(w.lanes)
    when w.lane_id & 3 = 3 then w.lanes_passed > 0
    else w.lane_id is distinct from (w.lanes[coalesce(w.lanes_passed, 0) + 1]).lane_id end
$$;
