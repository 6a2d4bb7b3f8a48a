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

-- Passes leases on that a lane has let through, or whose time has come, in this order: into their next lane,
-- or, at the end, into ready. Those with a time to come (p_times, as p_ctids) wait for that. What is of a
-- queue that is paused or dropped, by now or by the caller (-infinity), leaves all lanes, and is parked in
-- that of its queue, of kind 3, until the queue goes on (follow_pauses). The lines that they leave go
-- to others. p_folds: the lanes that they come to are looked at here and now. Wakes: waiting workers.
-- Locks: the caller holds the entries; the lease rows; as note_arrivals, hand_over; with p_folds as
-- fold_lanes. Not idempotent.
create or replace function hwqueue.pass_on(p_ctids tid[], p_times timestamptz[], p_now timestamptz,
  p_folds boolean) returns void
language plpgsql volatile
as $$
declare
  v_done record;
  v_entry hwqueue.scheduled;
  v_waiting hwqueue.scheduled[];
  v_refs hwqueue.lane_ref[];
  v_awaited int[];
  v_lines bigint[];
  v_heads bigint[];
begin
  for v_done in
    -- an entry is one column: most of what this costs is to set up each column of each step
    with gone as (
      delete from hwqueue.scheduled s where s.ctid = any (p_ctids)
      returning s as entry, array_position(p_ctids, s.ctid) as nth
    ), passed as (
      update hwqueue.lease l
      set lanes_passed = coalesce(l.lanes_passed, 0) + g.more,
          position = case when g.is_open and p_times[g.nth] is null
            and coalesce(l.lanes_passed, 0) + g.more = cardinality(l.lanes)
            then nextval('hwqueue.ready_position_seq') else 0 end,
          available_at = coalesce(p_times[g.nth], case
            when coalesce(l.lanes_passed, 0) + g.more < cardinality(l.lanes) then 'infinity'
            else least((g.entry).available_at, p_now) end)
      from (select x.entry, x.nth, coalesce(((x.entry).lane_id & 3 < 3)::int, 0) as more, (
              select coalesce(q.paused_at, q.dropped_at) is null and p_times[x.nth] = '-infinity' is not true
              from hwqueue.queue q where q.queue_id = (x.entry).queue_id) as is_open
            from gone x order by x.nth) g
      where l.lease_id = (g.entry).lease_id
      returning g.entry, g.is_open, l.position, l.available_at, l.lanes[l.lanes_passed + 1] as next,
        case when g.more > 0 then (l.lanes[l.lanes_passed - 1]).lane_id end as line,
        (select s.waiting_since is not null from hwqueue.queue_signal s
         where s.queue_id = l.queue_id) as is_awaited,
        (select c.waits from hwqueue.placement_class c where c.class_id = l.class_id) as waits,
        g.more > 0 and hashint8((g.entry).turn) % 64 = 0 as moves_head
    ), started as (
      insert into hwqueue.ready (queue_id, tier, attempt_count, claim_count, rank, position, class_id,
        lease_id, eligible_at, deadline, is_limited) overriding system value
      -- one whose deadline has passed must not lie below reap_cursor.deadlines_from
      select (p.entry).queue_id, (p.entry).tier, (p.entry).attempt_count, (p.entry).claim_count,
             (p.entry).rank, p.position, (p.entry).class_id, (p.entry).lease_id,
             case when (p.entry).deadline <= p_now then p_now else p.available_at end, (p.entry).deadline,
             true
      from passed p where p.position > 0
    )
    select p.* from passed p
    where p.position = 0 or p.is_awaited or p.waits or p.line & 3 > 0 or p.moves_head
    order by (p.entry).tier, (p.entry).rank, (p.entry).turn
  loop
    if v_done.moves_head then
      v_heads := v_heads || (v_done.entry).lane_id;
    end if;
    if v_done.line & 3 > 0 then
      v_lines := v_lines || v_done.line;
    end if;
    if not v_done.is_open then
      perform hwqueue.put_back((v_done.entry).lease_id, (v_done.entry).attempt_count,
        (v_done.entry).claim_count, 'infinity', p_now, p_held_by => 'limit');
    elsif v_done.position = 0 then
      v_entry := v_done.entry;
      v_entry.available_at := v_done.available_at;
      v_entry.lane_id := null;
      v_entry.held_by := 'time';
      if v_done.available_at = 'infinity' then
        v_entry.lane_id := (v_done.next).lane_id;
        v_entry.held_by := 'limit';
        v_entry.turn := nextval('hwqueue.ready_position_seq');
        v_refs := v_refs || v_done.next;
      end if;
      v_waiting := v_waiting || v_entry;
    elsif v_done.is_awaited then
      v_awaited := v_awaited || (v_done.entry).queue_id;
    end if;
    if v_done.position > 0 and v_done.waits then
      perform hwqueue.wake_classes_of_entries(array[(v_done.entry).class_id]);
    end if;
  end loop;
  if v_waiting is not null then
    insert into hwqueue.scheduled select e.* from unnest(v_waiting) e;
  end if;
  if v_refs is not null then
    perform hwqueue.note_arrivals(array_agg(e.class_id), v_refs,
      array_agg(row(e.tier, e.rank, e.turn)::hwqueue.lane_place), array_agg(e.queue_id))
    from unnest(v_waiting) e where e.lane_id is not null;
  end if;
  if v_heads is not null then  -- so that who is gone is not scanned again, however long it is kept
    insert into hwqueue.lane_change (lane_id) select distinct i from unnest(v_heads) i;
  end if;
  if v_awaited is not null then
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = any (v_awaited);
  end if;
  if v_lines is not null then
    perform hwqueue.hand_over(v_lines, p_now, p_folds);
  end if;
  if p_folds and v_refs is not null then
    perform hwqueue.fold_lanes(array_agg(distinct r.lane_id)) from unnest(v_refs) r;
  end if;
end
$$;

-- Places in lanes that are left go to the next leases that are parked there, by turns of the lanes: nothing
-- is counted, and no lane is locked. p_lanes: with repetition. What is not handed over is noted: nobody is
-- parked, the lane is closed or has more in use than it may, or it goes by time. p_folds: such lanes are
-- looked at here and now. Returns how many were handed over: to perform it would be a statement.
-- Locks: parked entries, skip locked; then as pass_on; with p_folds as fold_lanes. Not idempotent.
create or replace function hwqueue.hand_over(p_lanes bigint[], p_now timestamptz, p_folds boolean)
returns int
language plpgsql volatile
as $$
declare
  v_ctids tid[] := array(
    select h.row_ctid
    from hwqueue.lane k
    join hwqueue.limit_rule r on r.limit_id = k.limit_id and r.dropped_at is null
    cross join lateral (
      select x.ctid as row_ctid from hwqueue.scheduled x
      where x.lane_id = k.lane_id
        and (x.tier, x.rank, x.turn) >= ((k.head).tier, (k.head).rank, (k.head).turn)
        and k.used <= hwqueue.lane_most(r, k) and coalesce(k.closed_until <= p_now, true)
      order by x.tier, x.rank, x.turn limit cardinality(array_positions(p_lanes, k.lane_id))
      for update skip locked) h
    where k.lane_id = any (p_lanes) and k.lane_id & 3 < 2);
begin
  if cardinality(v_ctids) < cardinality(p_lanes) then
    insert into hwqueue.lane_change (tenant, lane_id, delta)
    select coalesce((select k.tenant from hwqueue.lane k where k.lane_id = p.lane_id), ''), p.lane_id,
           sum(p.delta)
    from (select i, -1 from unnest(p_lanes) i
          union all
          select s.lane_id, 1 from hwqueue.scheduled s where s.ctid = any (v_ctids)) p(lane_id, delta)
    group by p.lane_id having sum(p.delta) < 0;
  end if;
  if v_ctids <> '{}' then
    if cardinality(v_ctids) > 1 then
      v_ctids := array(
        select s.ctid from hwqueue.scheduled s where s.ctid = any (v_ctids)
        order by row_number() over (partition by s.lane_id order by s.tier, s.rank, s.turn));
    end if;
    perform hwqueue.pass_on(v_ctids, null, p_now, p_folds);
  end if;
  if p_folds and cardinality(v_ctids) < cardinality(p_lanes) then  -- last: who passes may leave these lines
    perform hwqueue.fold_lanes(array_agg(distinct i)) from unnest(p_lanes) i where i & 3 = 2
    having count(*) > 0;
  end if;
  return cardinality(v_ctids);
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
  v_ctids tid[];
  v_times timestamptz[];  -- to come, of leases that a rate has let through
  v_busy bigint[];  -- lanes in which others hold leases that might pass
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
      select f.lane_id, f.limit_id, nullif(f.tenant, ''), f.key, hwqueue.lane_weight(r, f.key)
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
  ), parked as materialized (
    select h.*, q.is_open from counted c
    cross join lateral (
      select x.ctid as row_ctid, x.lane_id, x.queue_id, x.tier, x.rank, x.turn from hwqueue.scheduled x
      where x.lane_id = c.lane_id
        and (x.tier, x.rank, x.turn) >= ((c.head).tier, (c.head).rank, (c.head).turn)
      order by x.tier, x.rank, x.turn limit greatest(0, least(100, c.free)) for update skip locked) h
    cross join lateral (
      select coalesce(y.paused_at, y.dropped_at) is null as is_open
      from hwqueue.queue y where y.queue_id = h.queue_id offset 0) q
  ), taken as (  -- what is not open uses no token, and leaves its place
    select p.lane_id, count(*)::int as count, count(*) filter (where p.is_open) as opened
    from parked p group by 1
  ), written as (
    update hwqueue.lane k
    set used = c.used + coalesce(t.count, 0), tat = coalesce(c.tat + coalesce(t.opened, 0) * c.per, k.tat),
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
  select array_agg(p.row_ctid order by p.nth, p.lane_id),
         array_agg(case when not p.is_open then '-infinity'
           when c.tat + (p.nth - 1) * c.per > v_now then c.tat + (p.nth - 1) * c.per end
           order by p.nth, p.lane_id),
         array(
           select a.lane_id from again a left join taken t using (lane_id) where coalesce(t.count, 0) < 100)
  into v_ctids, v_times, v_busy
  from (select x.lane_id, x.row_ctid, x.is_open, row_number() over (
          partition by x.lane_id, x.is_open order by x.tier, x.rank, x.turn) as nth from parked x) p
  join counted c on c.lane_id = p.lane_id;
  held := array(select i from unnest(held) i where i <> all (v_busy));
  if v_ctids is not null then
    passed := cardinality(v_ctids);
    perform hwqueue.pass_on(v_ctids, v_times, v_now, true);
  end if;
end
$$;

-- Folds changes of lanes: the oldest p_limit of those that are of no tenant, and of each of 20 tenants after
-- p_after, so that tenants take turns; not those of lanes that are busy. p_after null: after those that this
-- session has folded last. Returns how many lanes it held, how many leases passed, which lanes are busy,
-- because others hold them, and the last tenant; '' after the last of all.
-- Locks: as fold_lanes.
create or replace function hwqueue.fold_changes(p_limit int, p_after text, inout busy bigint[],
  out looked int, out passed int, out next_after text)
language plpgsql volatile set enable_seqscan = off
as $$
declare
  v_from bigint := (select m.lanes_from from hwqueue.reap_cursor m order by m.version desc limit 1);
  v_after text := coalesce(p_after, current_setting('hwqueue.folded_tenant', true), '');
  v_lanes bigint[];
  v_done record;
begin
  with recursive other as (
    (select c.tenant from hwqueue.lane_change c where c.tenant > v_after order by c.tenant limit 1)
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
  if next_after <> v_after and p_after is null then
    perform set_config('hwqueue.folded_tenant', next_after, false);
  end if;
  v_lanes := array_remove(v_lanes, null);
  v_done := hwqueue.fold_lanes(v_lanes);
  looked := cardinality(v_done.held);
  passed := v_done.passed;
  busy := busy || array(select i from unnest(v_lanes) i where i <> all (v_done.held));
end
$$;
