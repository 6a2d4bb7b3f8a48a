-- Earmarks of gangs: room that is kept for the first gang in order until it is enough. Everywhere tasks
-- (everywhere/nodes) and replacements (gangs/replace) book theirs by themselves.
--
-- Example: a gang of eight needs a whole GPU node for each member, and small leases take every device that
-- becomes free. It is earmarked: eight nodes are booked for it above what runs there, and no new lease gets a
-- device of them. When the last of the old ones has ended, a tick backs the eight reservations.
--
-- Invariant: all reservations of a gang are earmarks, or none is. A node has earmarks of one gang. Of gangs
-- that could use a node in common as many are earmarked as the policy of their queue says, one by default.

-- Earmarks a gang for which there is no room now, in the place that would have room if it ran nothing, and
-- where it waits for least. Returns null when it has, else why not:
-- behind_earmark: nodes that it could use are kept for other gangs, or its tenant has 20 that are earmarked.
-- insufficient_capacity: no place is large enough, the queue's policy says no, or it was earmarked for too
-- long.
-- busy: gangs before it in order, which wait for their next try, are tried first, at the next tick.
-- A gang some of whose members run is not earmarked. Of one with min_size as many members are as it needs.
-- Locks: the caller holds the gang; those gangs, skip locked; as assemble_gang. Not idempotent.
create or replace function hwqueue.earmark_gang(p_gang hwqueue.gang, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_most int := (select q.earmarks from hwqueue.queue q where q.queue_id = p_gang.queue_id);
  v_class_ids bigint[] := array(
    select s.class_id from unnest(p_gang.members) with ordinality m(lease_id, ordinality)
    join hwqueue.scheduled s
      on (s.queue_id, s.available_at, s.lease_id) = (p_gang.queue_id, 'infinity', m.lease_id)
    order by m.ordinality);
begin
  v_class_ids := v_class_ids[: hwqueue.members_needed(p_gang, cardinality(v_class_ids))];
  if v_most = 0 or p_gang.earmark_after > p_now or exists (
      select from hwqueue.claim c
      where c.lease_id = any (p_gang.members)) or not exists (
      select from hwqueue.gang_places(v_class_ids, p_gang.together, p_gang.same, p_gang.place, null, true,
        p_now)) then
    return 'insufficient_capacity';
  elsif hwqueue.count_rivals(v_class_ids, p_now) >= v_most or p_gang.tenant <> '' and (
      select count(*) from hwqueue.gang g
      where g.state = 'earmarked' and g.tenant = p_gang.tenant) >= 20 then
    return 'behind_earmark';
  elsif p_gang.reason is distinct from 'busy' then
    -- those that come before it, but were to wait longer, are tried first: the first of them is earmarked
    update hwqueue.gang g set next_try_at = p_now
    where g.gang_id = any (array(
      select x.gang_id from hwqueue.gang x
      where x.state = 'waiting' and x.next_try_at > p_now
        and (x.tier, x.rank, x.position) < (p_gang.tier, p_gang.rank, p_gang.position)
        and hwqueue.may_be_tried(x, p_now)
      order by x.tier, x.rank, x.position limit 20 for no key update skip locked));
    if found then
      return 'busy';  -- the reason says so until the next try: it is put off once
    end if;
  end if;
  return hwqueue.assemble_gang(p_gang, null, true, p_now);
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
    from hwqueue.gang g join hwqueue.claim c on c.lease_id = any (g.members)
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

-- When the nodes of an earmarked gang have room for it at the latest: when the last of the claims ends that
-- run on those that have none yet, as their max_run says. Null: not known, one of them has no max_run.
create or replace function hwqueue.earmark_start(p_gang hwqueue.gang, p_now timestamptz) returns timestamptz
language plpgsql stable
as $$ begin return (
  select case when count(*) = count(k.max_run) filter (where c.is_reserved is null)
    then coalesce(max(c.claimed_at + k.max_run), p_now) end
  from hwqueue.claim c
  join hwqueue.placement_class k on k.class_id = c.class_id
  where c.is_earmark is null and c.node_id = any (array(
      select n.node_id from hwqueue.overbooked_nodes(array(
        select e.node_id from hwqueue.claim e
        where e.lease_id = any (p_gang.members))) n(node_id)))
); end $$;

-- Lets the gangs that waited behind an earmark be tried at once, in order, so that the first of them is
-- earmarked next.
-- Locks: those gangs, skip locked.
create or replace function hwqueue.try_those_behind(p_now timestamptz) returns void
language plpgsql volatile
as $$ begin
  update hwqueue.gang g set next_try_at = p_now
  where g.gang_id = any (array(
    select x.gang_id from hwqueue.gang x
    where x.state = 'waiting' and x.reason = 'behind_earmark'
    order by x.tier, x.rank, x.position limit 20 for no key update skip locked));
end $$;
