-- Which lanes a lease holds a place in, and telling the lanes that leases come or leave.
--
-- Example: lease L has two lanes, of two slots for key u42, and of eight for all. It is parked in the second
-- one, so it has passed one lane (lanes_passed) and has a slot of u42. It is cancelled: leave_lanes returns
-- that slot by a row of lane_change, which the next fold counts (claim/lanes fold_lanes).
--
-- Invariant: lanes_passed says what a lease holds that waits or is reserved. Who ends it or puts it back
-- returns that, once. A claim has its slots in claim.lanes, and no place in any line.

-- The lanes in which a lease holds a place that has passed p_passed of its lanes: each slot so far, and its
-- place in the line of the last one.
-- Inlined.
create or replace function hwqueue.held_lanes(p_lanes hwqueue.lane_ref[], p_passed smallint)
returns table (lane_id bigint)
language sql immutable
as $$
  select r.lane_id from unnest(p_lanes[1 : p_passed]) with ordinality r(lane_id, limit_id, key, of_queue, nth)
  where r.lane_id & 3 = 0 or r.nth = p_passed
$$;

-- The lanes of kind slots among these, which a claim keeps; null: none. A lease has four lanes at most.
-- Inlined.
create or replace function hwqueue.slot_lanes(p_lanes hwqueue.lane_ref[]) returns bigint[]
language sql immutable
as $$
  select case when p_lanes is not null then nullif(array_remove(array[
      case when (p_lanes[1]).lane_id & 3 = 0 then (p_lanes[1]).lane_id end,
      case when (p_lanes[2]).lane_id & 3 = 0 then (p_lanes[2]).lane_id end,
      case when (p_lanes[3]).lane_id & 3 = 0 then (p_lanes[3]).lane_id end,
      case when (p_lanes[4]).lane_id & 3 = 0 then (p_lanes[4]).lane_id end], null), '{}') end
$$;

-- Lets claims of queues look at changes of lanes from now on; while another session holds the row of a queue,
-- reap alone does.
-- Locks: queue rows, once, skip locked.
create or replace function hwqueue.set_has_lanes(p_queues int[]) returns void
language plpgsql volatile
as $$ begin
  update hwqueue.queue q set has_lanes = true
  where q.queue_id = any (array(
    select x.queue_id from hwqueue.queue x
    where x.queue_id = any (p_queues) and not x.has_lanes for no key update skip locked));
end $$;

-- Tells the lanes in which leases have just been parked: each with its class, its lane and its place there,
-- or with one that none of these is before, as insert_spawns does for new leases.
-- Locks: new rows; as set_has_lanes.
create or replace function hwqueue.note_arrivals(p_classes bigint[], p_lanes hwqueue.lane_ref[],
  p_places hwqueue.lane_place[], p_queues int[]) returns void
language plpgsql volatile
as $$
begin
  insert into hwqueue.lane_change (tenant, lane_id, limit_id, key, head)
  select case when p.key <> '' then (
           select c.tenant from hwqueue.placement_class c where c.class_id = p.class_id) else '' end,
         p.lane_id, p.limit_id, p.key, p.head
  from (select a.lane_id, min(a.limit_id) as limit_id, min(a.key) as key, min(a.class_id) as class_id,
               row(min(a.tier), min(a.rank), min(a.turn))::hwqueue.lane_place as head
        -- as subqueries: for lists whose lengths it knows Postgres would plan each call
        from unnest((select p_classes), (select p_lanes), (select p_places))
          a(class_id, lane_id, limit_id, key, of_queue, tier, rank, turn)
        group by 1) p;
  perform hwqueue.set_has_lanes(p_queues);
end
$$;

-- Returns what leases hold in lanes that end, or are put back.
-- Locks: new rows. Not idempotent.
create or replace function hwqueue.leave_lanes(p_leases uuid[]) returns void
language plpgsql volatile
as $$ begin
  insert into hwqueue.lane_change (tenant, lane_id, delta)
  select coalesce((select k.tenant from hwqueue.lane k where k.lane_id = h.lane_id), ''), h.lane_id, -count(*)
  from unnest(p_leases) i
  cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
    select x.lanes, x.lanes_passed from hwqueue.lease x where x.lease_id = i offset 0) l
  cross join lateral hwqueue.held_lanes(l.lanes, l.lanes_passed) h
  group by h.lane_id;
end $$;
