-- Earmarks of gangs: room that is kept for the first gang in order until it is enough.
--
-- gangs/change calls earmark_gang for a gang that no place has room for, and looks at each earmarked gang at
-- every tick. Example: a gang of eight needs a whole GPU node for each member, and small leases take every
-- device that becomes free. It is earmarked: eight nodes are booked for it above what runs there. No new
-- lease gets a device of them. After half an hour the last of the old ones has ended, and the tick backs
-- the eight reservations.
--
-- Invariant: all reservations of a gang are earmarks, or none is. A node has earmarks of one gang. Of gangs
-- that could use a node in common as many are earmarked as the policy of their queue says, one by default.
--
-- Read earmark_gang, try_those_before, earmark_fault, back_gang, then broken_earmarks.

-- Earmarks a gang for which there is no room now, in the place that would have room if it ran nothing, and
-- where it waits for least. Returns null when it has, else why not:
-- behind_earmark: nodes that it could use are kept for other gangs, or its tenant has 20 that are earmarked.
-- insufficient_capacity: no place is large enough, the queue's policy says no, or it was earmarked for too
-- long.
-- busy: gangs before it in order, which wait for their next try, are tried first, at the next tick.
-- A gang some of whose members run is not earmarked. Of one with min_size as many members are as it needs.
-- Locks: the caller holds the gang; as assemble_gang and try_those_before. Not idempotent.
create or replace function hwqueue.earmark_gang(p_gang hwqueue.gang, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_most int := (select q.earmarks from hwqueue.queue q where q.queue_id = p_gang.queue_id);
  v_class_ids bigint[] := array(
    select s.class_id from hwqueue.gang_member m
    join hwqueue.scheduled s on s.queue_id = p_gang.queue_id
      and s.available_at = hwqueue.never_due() and s.lease_id = m.lease_id
    where m.gang_id = p_gang.gang_id order by m.ordinal);
begin
  v_class_ids := v_class_ids[: hwqueue.members_needed(p_gang, cardinality(v_class_ids))];
  if v_most = 0 or p_gang.earmark_after > p_now or exists (
      select from hwqueue.gang_member m
      join hwqueue.claim c on c.lease_id = m.lease_id
      where m.gang_id = p_gang.gang_id) then
    return 'insufficient_capacity';
  elsif not exists (
      select from hwqueue.gang_places(v_class_ids, p_gang.together, p_gang.same, p_gang.place, null, true,
        p_now)) then
    return 'insufficient_capacity';
  elsif hwqueue.count_rivals(v_class_ids, p_now) >= v_most or p_gang.tenant <> '' and (
      select count(*) from hwqueue.gang g
      where g.state = 'earmarked' and g.tenant = p_gang.tenant) >= 20 then
    return 'behind_earmark';
  elsif p_gang.reason is distinct from 'busy' and hwqueue.try_those_before(p_gang, p_now) then
    return 'busy';  -- the reason says so until the next try: it is put off once
  end if;
  return hwqueue.assemble_gang(p_gang, null, true, p_now);
end
$$;

-- Lets the gangs that wait and come before one in order be tried at the next tick, although they have failed
-- and were to wait longer: the first of them that can be is earmarked, and not a later one. Those that may
-- not start yet wait on. Returns whether there are any others.
-- Locks: those gangs, skip locked.
create or replace function hwqueue.try_those_before(p_gang hwqueue.gang, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_gangs uuid[] := array(
    select g.gang_id from hwqueue.gang g
    where g.state = 'waiting' and g.next_try_at > p_now
      and (g.rank, g.position) < (p_gang.rank, p_gang.position) and hwqueue.may_be_tried(g, p_now)
    order by g.rank, g.position limit 20 for no key update skip locked);
begin
  update hwqueue.gang g set next_try_at = p_now
  where g.gang_id = any (v_gangs);
  return v_gangs <> '{}';
end
$$;

-- How many gangs are earmarked that could use a node that leases of these classes could use. Nodes are read
-- once for all of their classes, and not at all while no gang is earmarked.
create or replace function hwqueue.count_rivals(p_class_ids bigint[], p_now timestamptz) returns int
language plpgsql stable
as $$
declare
  v_gangs uuid[];  -- with v_class_ids: which classes the members of which earmarked gang have
  v_class_ids bigint[];
  v_classes hwqueue.placement_class[];
begin
  select array_agg(e.gang_id), array_agg(e.class_id) into v_gangs, v_class_ids
  from (
    select distinct g.gang_id, c.class_id
    from hwqueue.gang g
    join hwqueue.gang_member m on m.gang_id = g.gang_id
    join hwqueue.claim c on c.lease_id = m.lease_id
    where g.state = 'earmarked') e;
  if v_gangs is null then
    return 0;
  end if;
  v_classes := array(
    select k from hwqueue.placement_class k where k.class_id = any (v_class_ids || p_class_ids));
  return (
    with room as materialized (
      select (v_classes[r.class_no]).class_id, r.node_id
      from unnest(hwqueue.gang_rooms(v_classes, array_fill(1, array[cardinality(v_classes)]), 'emptied',
        p_now)) r
    ), rival as materialized (
      select distinct r.class_id
      from room r
      where r.node_id in (select p.node_id from room p where p.class_id = any (p_class_ids))
    )
    select count(distinct e.gang_id)
    from unnest(v_gangs, v_class_ids) e(gang_id, class_id) join rival r on r.class_id = e.class_id);
end
$$;

-- Why a gang may not stay earmarked; null: it may.
-- not_kept: its queue is paused or dropped, or its policy says no.
-- node_changed: a node is silent, cordoned, registered again, or does not suit its member any more.
-- gang_incomplete: a member is asked to stop, or its deadline has passed.
-- kept_too_long: for longer than the policy earmark_time, and it is not known by when there is room.
create or replace function hwqueue.earmark_fault(p_gang_id uuid, p_now timestamptz) returns text
language sql stable
as $$
  select case
    when bool_or(q.paused_at is not null or q.dropped_at is not null or q.earmarks = 0) then 'not_kept'
    when bool_or(n.node_id is null or n.cordoned_at is not null or n.registered_at > c.claimed_at
      or not hwqueue.is_live(n, s, p_now) or not hwqueue.node_suits(c.class_id, n, p_now))
      then 'node_changed'
    when bool_or(c.stop_requested_at <= p_now or l.deadline <= p_now) then 'gang_incomplete'
    when bool_and(c.claimed_at + q.earmark_time <= p_now) and not exists (
      select from hwqueue.gang g
      where g.gang_id = p_gang_id and g.starts_by >= p_now)
      then 'kept_too_long' end
  from hwqueue.gang_member m
  join hwqueue.claim c on c.lease_id = m.lease_id
  join hwqueue.lease l on l.lease_id = m.lease_id
  join hwqueue.queue q on q.queue_id = c.queue_id
  join hwqueue.node_state s on s.node_id = c.node_id
  left join hwqueue.node n on n.node_id = c.node_id
    and n.deregistered_at is null
  where m.gang_id = p_gang_id
$$;

-- When the nodes of an earmarked gang have room for it at the latest: when the last of the claims ends that
-- run on those that have none yet, as their max_run says. Null: not known, one of them has no max_run.
create or replace function hwqueue.earmark_start(p_gang_id uuid, p_now timestamptz) returns timestamptz
language sql stable
as $$
  select case when count(*) = count(k.max_run) filter (where c.is_reserved is null)
    then coalesce(max(c.claimed_at + k.max_run), p_now) end
  from hwqueue.claim c
  join hwqueue.placement_class k on k.class_id = c.class_id
  where c.is_earmark is null and c.node_id = any (array(
      select n.node_id from hwqueue.overbooked_nodes(array(
        select e.node_id from hwqueue.gang_member m
        join hwqueue.claim e on e.lease_id = m.lease_id
        where m.gang_id = p_gang_id)) n(node_id)))
$$;

-- Notes when an earmarked gang starts at the latest, in its row and in its nodes: until then others may use
-- the room that is kept for it (claim/backfill). A node that another session holds learns it at a later tick.
-- Locks: the caller holds the gang; node_state by node_id, skip locked.
create or replace function hwqueue.note_start(p_gang hwqueue.gang, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_starts_by timestamptz := hwqueue.earmark_start(p_gang.gang_id, p_now);
  v_nodes uuid[] := array(
    select s.node_id from hwqueue.node_state s
    where s.backfill_until is distinct from v_starts_by
      and s.node_id = any (array(
        select c.node_id from hwqueue.gang_member m
        join hwqueue.claim c on c.lease_id = m.lease_id
        where m.gang_id = p_gang.gang_id))
    order by s.node_id for no key update skip locked);
begin
  update hwqueue.node_state s set backfill_until = v_starts_by where s.node_id = any (v_nodes);
  if v_starts_by is distinct from p_gang.starts_by then
    update hwqueue.gang g set starts_by = v_starts_by where g.gang_id = p_gang.gang_id;
  end if;
end
$$;

-- Backs the earmarks of a gang if its nodes have room for all of them, and takes the choice that it is an
-- alternative of. Returns null when it has, else why not, as back_earmarks.
-- Locks: the caller holds the gang; its choice, skip locked; as back_earmarks. Wakes: waiting workers.
create or replace function hwqueue.back_gang(p_gang hwqueue.gang, p_now timestamptz)
returns text
language plpgsql volatile
as $$
declare
  v_reason text := case when not hwqueue.lock_choice(p_gang.choice_id, p_gang.gang_id) then 'busy'
    else hwqueue.back_earmarks(array(
      select c.lease_id from hwqueue.gang_member m
      join hwqueue.claim c on c.lease_id = m.lease_id
      where m.gang_id = p_gang.gang_id), p_gang.hold, p_now) end;
begin
  if v_reason is null then
    perform hwqueue.take_choice(p_gang.choice_id, p_gang.gang_id);
    update hwqueue.gang g set state = 'reserved', reason = null, starts_by = null
    where g.gang_id = p_gang.gang_id;
    perform hwqueue.note_gang(p_gang, 'reserved'), hwqueue.try_those_behind(p_now);
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = p_gang.queue_id;
  end if;
  return v_reason;
end
$$;

-- Lets the gangs that waited behind an earmark be tried at once: they are then tried in order, so that the
-- first of them is earmarked next.
-- Locks: those gangs, skip locked.
create or replace function hwqueue.try_those_behind(p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_gangs uuid[] := array(
    select g.gang_id from hwqueue.gang g
    where g.state = 'waiting' and g.reason = 'behind_earmark'
    order by g.rank, g.position limit 20 for no key update skip locked);
begin
  update hwqueue.gang g set next_try_at = p_now
  where g.gang_id = any (v_gangs);
end
$$;

-- Returns earmarks that contradict their gangs, for verify_invariants. What a change says is to be looked at
-- is left out.
create or replace function hwqueue.broken_earmarks() returns table (rule text, subject uuid, detail jsonb)
language sql stable
as $$
  -- a gang is earmarked with all of its reservations, or with none
  select 'gang_earmark', g.gang_id, jsonb_build_object('state', g.state, 'earmarks', m.earmarks, 'claims',
         m.claims)
  from hwqueue.gang g
  cross join lateral (
    select count(c.is_earmark) as earmarks, count(*) as claims
    from hwqueue.gang_member k
    join hwqueue.claim c on c.lease_id = k.lease_id
    where k.gang_id = g.gang_id) m
  where g.finished_at is null and not exists (select from hwqueue.gang_change c where c.gang_id = g.gang_id)
    and case g.state when 'earmarked' then m.earmarks = 0 or m.earmarks < m.claims
        when 'cancelling' then false when 'stopping' then false else m.earmarks > 0 end
  union all
  -- a node is kept for one gang at a time, and its claims look for what is reserved
  select 'gang_earmark', c.node_id, jsonb_build_object('gangs', jsonb_agg(distinct c.gang_id),
         'has_reserved', bool_and(s.has_reserved))
  from hwqueue.claim c
  join hwqueue.node_state s on s.node_id = c.node_id
  where c.is_earmark
  group by c.node_id
  having count(distinct c.gang_id) > 1 or not bool_and(s.has_reserved and c.is_reserved is true)
$$;
