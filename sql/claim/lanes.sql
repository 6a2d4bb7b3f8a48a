-- Lanes: which leases of a limit are let through.
--
-- A lease with lanes is parked in the first one, then in the next, and is ready when it has passed all. An
-- example: key u42 has two slots, L1 and L2 run, L3 is parked. L1 completes: hand_over makes L3 ready and
-- counts nothing, because a slot was left and taken. L2 and L3 complete, and nobody is parked: two changes
-- are noted. Then L4 is spawned, which notes a change, too. The next claim of its queue, or reap, folds them
-- (fold_changes, fold_lanes): used goes to 0, and then to 1 for L4.
--
-- So a claim checks nothing: an entry in ready is an admission. The kinds differ in when a place is left: a
-- slot when the claim ends, a place in the line of a key (fair) or of a rate when the lease is claimed, or
-- passes the next lane. A rate lets leases through for the times at which they may start (GCRA); until then
-- they wait in scheduled.
--
-- Invariants: used, with what lane_change has to add, is how many leases hold a place in the lane; that is at
-- most what its limit allows, unless that was lowered or work was adopted. Only who holds the row of a lane
-- adds to used. All locks here are taken with skip locked, so nobody waits; a lane that could not be looked
-- at keeps its changes for the next fold.

-- Passes leases on that a lane has let through, or whose time has come: into their next lane, or, at the
-- end, into ready, by turns of the lanes. Where their time is yet to come they wait for that. Returns the
-- lines that they have left by that, with repetition, and the lanes that they have come to, which it has
-- noted; null: none. Wakes: waiting workers.
-- Locks: the caller has deleted their entries; the lease rows; as note_parked. Not idempotent.
create or replace function hwqueue.pass_on(p_entries hwqueue.scheduled[], p_now timestamptz,
  out lines bigint[], out lanes bigint[])
language plpgsql volatile
as $$
declare
  v_done record;
begin
  with entry as materialized (
    select e.*, l.lanes, coalesce(l.lanes_passed, 0) + (e.lane_id is not null)::int as passed,
           case when e.available_at < 'infinity' then e.available_at else p_now end as at
    from unnest(p_entries) e
    cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
      select x.lanes, x.lanes_passed from hwqueue.lease x where x.lease_id = e.lease_id offset 0) l
  ), started as (
    insert into hwqueue.ready as r (queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id,
      eligible_at, deadline)
    -- one whose deadline has passed must not lie below reap_cursor.deadlines_from
    select e.queue_id, e.tier, e.attempt_count, e.claim_count, e.rank, e.class_id, e.lease_id,
           case when e.deadline <= p_now then p_now else e.at end, e.deadline
    from entry e where e.passed = cardinality(e.lanes) and e.at <= p_now
    order by row_number() over (partition by e.lane_id order by e.tier, e.rank, e.turn)
    returning r.lease_id, r.position, r.queue_id, r.class_id, r.eligible_at
  ), waiting as (
    insert into hwqueue.scheduled as s (queue_id, tier, attempt_count, claim_count, held_by, rank, class_id,
      lease_id, available_at, deadline, lane_id, turn)
    select e.queue_id, e.tier, e.attempt_count, e.claim_count,
           (case when e.at > p_now then 'time' else 'limit' end)::hwqueue.held_by, e.rank, e.class_id,
           e.lease_id, case when e.at > p_now then e.at else 'infinity' end, e.deadline,
           case when e.at <= p_now then (e.lanes[e.passed + 1]).lane_id end,
           case when e.at > p_now then e.turn else nextval('hwqueue.ready_position_seq') end
    from entry e where e.passed < cardinality(e.lanes) or e.at > p_now
    order by e.tier, e.rank, e.turn
    returning s.lease_id, s.available_at, s.lane_id
  ), placed as (
    update hwqueue.lease l
    set position = s.position, available_at = s.eligible_at, lanes_passed = cardinality(l.lanes)
    from started s where l.lease_id = s.lease_id
  ), parked as (
    update hwqueue.lease l
    set position = 0, available_at = w.available_at, lanes_passed = case when w.lane_id is null
        then coalesce(l.lanes_passed, 0) + 1 else (
        select r.nth - 1 from unnest(l.lanes) with ordinality r(lane_id, limit_id, key, of_queue, nth)
        where r.lane_id = w.lane_id) end
    from waiting w where l.lease_id = w.lease_id
  )
  select (select array_agg(w.lease_id) from waiting w where w.lane_id is not null) as parked,
         (select array_agg(distinct w.lane_id) from waiting w where w.lane_id is not null) as lanes,
         (select array_agg(distinct s.queue_id) from started s) as queues,
         (select array_agg(c.class_id) from hwqueue.placement_class c
          where c.class_id = any (array(select s.class_id from started s)) and c.waits) as classes,
         (select array_agg((e.lanes[e.passed - 1]).lane_id) from entry e
          where e.lane_id is not null and e.passed > 1 and (e.lanes[e.passed - 1]).lane_id & 3 > 0) as lines
  into v_done;
  if v_done.parked is not null then
    perform hwqueue.note_parked(v_done.parked);
  end if;
  if v_done.classes is not null then
    perform hwqueue.wake_classes_of_entries(v_done.classes);
  end if;
  if v_done.queues is not null then
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = any (v_done.queues);
  end if;
  lines := v_done.lines;
  lanes := v_done.lanes;
end
$$;

-- Places in lanes that are left go to the next leases that are parked there: nothing is counted, and no lane
-- is locked. p_lanes: with repetition. What is not handed over is noted: nobody is parked, the lane is closed
-- or has more in use than it may, or it goes by time. p_folds: such lanes are looked at here and now.
-- Locks: parked entries, skip locked; then as pass_on; with p_folds as fold_lanes. Not idempotent.
create or replace function hwqueue.hand_over(p_lanes bigint[], p_now timestamptz, p_folds boolean)
returns void
language plpgsql volatile
as $$
declare
  v_done record;
  v_next record;
begin
  with place as materialized (
    select i.lane_id, count(*)::int as places, (  -- null: it is not open
        select k.head
        from hwqueue.lane k
        join hwqueue.limit_rule r on r.limit_id = k.limit_id and r.dropped_at is null
        where k.lane_id = i.lane_id and i.lane_id & 3 < 2
          and k.used <= hwqueue.lane_most(r, k) and coalesce(k.closed_until <= p_now, true)) as head
    from unnest(p_lanes) i(lane_id) group by i.lane_id
  ), gone as (
    delete from hwqueue.scheduled s where s.ctid = any (array(
      select h.row_ctid from place p
      cross join lateral (
        select x.ctid as row_ctid from hwqueue.scheduled x
        where x.lane_id = p.lane_id
          and (x.tier, x.rank, x.turn) >= ((p.head).tier, (p.head).rank, (p.head).turn)
        order by x.tier, x.rank, x.turn limit p.places for update skip locked) h))
    returning s as entry
  ), left_over as (
    insert into hwqueue.lane_change (tenant, lane_id, delta)
    select coalesce((select k.tenant from hwqueue.lane k where k.lane_id = p.lane_id), ''), p.lane_id,
           coalesce(g.taken, 0) - p.places
    from place p
    left join (select (g.entry).lane_id, count(*)::int as taken from gone g group by 1) g using (lane_id)
    where coalesce(g.taken, 0) < p.places
  ), moved as (  -- now and then the head of a lane: who is gone is not scanned again, however long it is kept
    insert into hwqueue.lane_change (lane_id)
    select (g.entry).lane_id from gone g where hashint8((g.entry).turn) % 64 = 0
  )
  select (select array_agg(g.entry) from gone g) as entries,
         (select array_agg(p.lane_id) from place p where p.lane_id & 3 = 2) as rates
  into v_done;
  if v_done.entries is not null then
    v_next := hwqueue.pass_on(v_done.entries, p_now);
    if v_next.lines is not null then
      perform hwqueue.hand_over(v_next.lines, p_now, p_folds);
    end if;
    v_done.rates := v_done.rates || v_next.lanes;
  end if;
  if p_folds and v_done.rates is not null then
    perform hwqueue.fold_lanes(v_done.rates);
  end if;
end
$$;

-- Counts what was noted for lanes, and lets as many leases through as they have places. A new lane is
-- written. A dropped limit lets everybody through. Returns how many passed, and which lanes it could hold,
-- with all that may pass. Where more are parked that might pass, because 100 did, or another session holds
-- them, it notes the lane again.
-- Locks: lanes, an advisory lock for a new one, parked entries, all skip locked; then as pass_on.
create or replace function hwqueue.fold_lanes(p_lanes bigint[], out held bigint[], out passed int)
language plpgsql volatile
  -- by index: a table that is small now may be large before the session ends
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_from bigint := (select m.lanes_from from hwqueue.reap_cursor m order by m.version desc limit 1);
  v_now timestamptz;
  v_entries hwqueue.scheduled[];
  v_times timestamptz[];  -- of leases that a rate has let through
  v_busy bigint[];  -- lanes in which others hold leases that might pass
  v_next record;
begin
  held := array(
    select k.lane_id from hwqueue.lane k where k.lane_id = any (p_lanes) for no key update skip locked);
  if cardinality(held) < cardinality(p_lanes) then
    with fresh as materialized (
      select c.* from unnest(p_lanes) i(lane_id)
      cross join lateral (
        select * from hwqueue.lane_change x
        where x.lane_id = i.lane_id and x.change_id >= v_from and x.limit_id is not null limit 1) c
      where not exists (select from hwqueue.lane k where k.lane_id = i.lane_id offset 0)
    ), written as (
      insert into hwqueue.lane as k (lane_id, limit_id, tenant, key, weight)
      select f.lane_id, f.limit_id, nullif(f.tenant, ''), f.key,
             coalesce(r.spec -> 'weights' -> f.key, r.spec -> 'weights' -> '*', '1')::real
      from fresh f left join hwqueue.limit_rule r on r.limit_id = f.limit_id
      where pg_try_advisory_xact_lock(f.lane_id)  -- so that nobody waits for another session that writes it
      on conflict do nothing
      returning k.lane_id
    )
    select held || array_agg(w.lane_id) into held from written w;
  end if;
  passed := 0;
  if held = '{}' then
    return;
  end if;
  v_now := hwqueue.clock();  -- after the locks, for rates
  with noted as (
    delete from hwqueue.lane_change c where c.ctid = any (array(
      select n.row_ctid from unnest(held) i(lane_id)
      cross join lateral (
        select x.ctid as row_ctid from hwqueue.lane_change x
        where x.lane_id = i.lane_id and x.change_id >= v_from limit 1000) n))
    returning c.lane_id, c.delta, c.head
  ), counted as materialized (
    select k.lane_id, k.used + coalesce(n.more, 0) as used, r.per,
           case when k.closed_until > v_now then 0 when r.limit_id is null then 2147483647
             else hwqueue.lane_most(r, k.lane) - k.used - coalesce(n.more, 0) end as free,
           -- tokens and those in line are never more than the burst, nor is a token far from now
           b.head, coalesce(f.place, b.head) as first,
           least(greatest(k.tat, v_now - (r.most - k.used - 1) * r.per),
             v_now + (r.most + 1) * r.per) as tat
    from unnest(held) i(lane_id)
    cross join lateral (select y.*, y as lane from hwqueue.lane y where y.lane_id = i.lane_id offset 0) k
    left join hwqueue.limit_rule r on r.limit_id = k.limit_id and r.dropped_at is null
    left join (select d.lane_id, sum(d.delta)::int as more, (array_agg(d.head order by d.head))[1] as head
               from noted d group by 1) n on n.lane_id = i.lane_id
    cross join lateral (select least(k.head, n.head) as head) b
    left join lateral (  -- locked ones count: they may stay
      select row(x.tier, x.rank, x.turn)::hwqueue.lane_place as place from hwqueue.scheduled x
      where x.lane_id = i.lane_id
        and (x.tier, x.rank, x.turn) >= ((b.head).tier, (b.head).rank, (b.head).turn)
      order by x.tier, x.rank, x.turn limit 1) f on true
  ), gone as (
    delete from hwqueue.scheduled s where s.ctid = any (array(
      select h.row_ctid from counted c
      cross join lateral (
        select x.ctid as row_ctid from hwqueue.scheduled x
        where x.lane_id = c.lane_id
          and (x.tier, x.rank, x.turn) >= ((c.head).tier, (c.head).rank, (c.head).turn)
        order by x.tier, x.rank, x.turn limit greatest(0, least(100, c.free)) for update skip locked) h))
    returning s.lane_id, s.tier, s.rank, s.turn, s as entry
  ), taken as (
    select g.lane_id, count(*)::int as count from gone g group by 1
  ), written as (
    update hwqueue.lane k
    set used = c.used + coalesce(t.count, 0), tat = coalesce(c.tat + coalesce(t.count, 0) * c.per, k.tat),
      head = c.first
    from counted c left join taken t using (lane_id)
    where k.lane_id = c.lane_id and (k.used <> c.used or t.count > 0 or c.head < k.head
      or abs((c.first).turn / 2 - (k.head).turn / 2) > 32)
  ), again as (
    insert into hwqueue.lane_change (lane_id)
    select c.lane_id from counted c left join taken t using (lane_id)
    where c.free > coalesce(t.count, 0) and exists (
      select from hwqueue.scheduled x
      where x.lane_id = c.lane_id
        and (x.tier, x.rank, x.turn) >= ((c.first).tier, (c.first).rank, (c.first).turn)
      offset coalesce(t.count, 0))
    returning lane_id
  )
  select array_agg(g.entry order by g.lane_id, g.nth),
         array_agg(c.tat + (g.nth - 1) * c.per order by g.lane_id, g.nth),
         array(
           select a.lane_id from again a left join taken t using (lane_id) where coalesce(t.count, 0) < 100)
  into v_entries, v_times, v_busy
  from (select x.lane_id, x.entry, row_number() over (
          partition by x.lane_id order by x.tier, x.rank, x.turn) as nth from gone x) g
  join counted c on c.lane_id = g.lane_id;
  held := array(select i from unnest(held) i where i <> all (v_busy));
  if v_entries is null then
    return;
  end if;
  passed := cardinality(v_entries);
  for v_nth in 1 .. passed loop
    if v_times[v_nth] > v_now then
      v_entries[v_nth].available_at := v_times[v_nth];
    end if;
  end loop;
  v_next := hwqueue.pass_on(v_entries, v_now);
  if v_next.lines is not null then
    perform hwqueue.hand_over(v_next.lines, v_now, true);
  end if;
  if v_next.lanes is not null then
    perform hwqueue.fold_lanes(v_next.lanes);
  end if;
end
$$;

-- Folds changes of lanes: the oldest p_limit of those that are of no tenant, and of each of 20 tenants after
-- p_after, so that tenants take turns; not those of lanes that are busy. Returns how many lanes it held, how
-- many leases passed, which lanes are busy, because others hold them, and the last tenant; '' after the last
-- of all.
-- Locks: as fold_lanes.
create or replace function hwqueue.fold_changes(p_limit int, p_after text, inout busy bigint[],
  out looked int, out passed int, out next_after text)
language plpgsql volatile set enable_seqscan = off
as $$
declare
  v_from bigint := (select m.lanes_from from hwqueue.reap_cursor m order by m.version desc limit 1);
  v_lanes bigint[];
  v_done record;
begin
  with recursive other as (
    (select c.tenant from hwqueue.lane_change c where c.tenant > p_after order by c.tenant limit 1)
    union all
    select n.tenant from other o
    cross join lateral (
      select c.tenant from hwqueue.lane_change c where c.tenant > o.tenant order by c.tenant limit 1) n
  ), known as (
    select '' as tenant union all (select o.tenant from other o limit 20)
  )
  select case when count(distinct k.tenant) > 20 then max(k.tenant) else '' end, array_agg(distinct c.lane_id)
  into next_after, v_lanes
  from known k
  left join lateral (
    select x.lane_id from hwqueue.lane_change x
    where x.tenant = k.tenant and x.change_id >= v_from and x.lane_id <> all (busy)
    order by x.change_id limit p_limit) c on true;
  v_lanes := array_remove(v_lanes, null);
  v_done := hwqueue.fold_lanes(v_lanes);
  looked := cardinality(v_done.held);
  passed := v_done.passed;
  busy := busy || array(select i from unnest(v_lanes) i where i <> all (v_done.held));
end
$$;
