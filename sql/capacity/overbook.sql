-- Earmarks: room that is booked for a reservation while others still use it.
--
-- Example: a gang waits for all eight GPUs of gpu-1, of which three are in use. An earmark books all eight.
-- Then node_load says that these three are in use twice. No claim gets one of the eight: three have less
-- than nothing left, which headroom counts as nothing, and five are in use once. When the three leases have
-- ended, the load fits the node again, and the reservation may be fetched.
--
-- Invariant: an earmark is in node_load as any claim is. So what else the node is granted fits beside it,
-- and once the load fits the node, it goes on to fit.

-- Allocates what a class needs on a node, whether or not others use it: fits says whether it would have room
-- with only p_own in use, the load of what goes on to run there. Of what it could get, it takes what is idle
-- now first, so that it waits for as little as may be. Returns the node's new load and the assignment as
-- allocate_for_class does. The caller holds node_state and writes the load. Not idempotent.
create or replace function hwqueue.earmark_room(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_own hwqueue.node_load, inout p_load hwqueue.node_load, out assignment jsonb, out fits boolean)
language plpgsql stable
as $$
declare
  v_room hwqueue.headroom;
  v_need int := coalesce(nullif(p_class.gpu_milli, 0), 1000);
  v_used int[];
  v_taken record;
begin
  fits := hwqueue.class_shortage(p_class, p_node, p_own) = 0;
  if fits and p_class.gpu_count > 0 then
    v_room := hwqueue.node_headroom(p_node, p_own);
    v_used := case when p_node.gpu_parents = '{}' then p_load.gpu_used
      else hwqueue.use_of_devices(p_node, p_load.gpu_used) end;
    -- choose_devices takes those with the lowest numbers first: here those for which the class would not have
    -- to wait, then those with least in use now
    v_room.gpu_free := array(
      select case when d.free < v_need then 0
                  when d.used + v_need <= 1000 then 2000 - d.used - v_need
                  else 2000 + d.used end
      from unnest(v_room.gpu_free, v_used) with ordinality d(free, used, position) order by d.position);
    if v_room.gpu_parts is not null then
      v_room.gpu_parts := array(
        select case when d.turn > 0 and d.turn_now = 0 then 10000 + d.turn else d.turn end
        from unnest(v_room.gpu_parts, hwqueue.parts_of_devices(p_node, p_load.gpu_used))
          with ordinality d(turn, turn_now, position) order by d.position);
    end if;
  end if;
  if fits then
    v_taken := hwqueue.allocate_for_class(p_class, p_node, v_room, p_load, p_own.core_used);
    p_load := v_taken.p_load;
    assignment := v_taken.assignment;
  end if;
end
$$;

-- Whether a load fits into a node: each amount, each device and each core. One expression without subqueries,
-- so that the planner inlines it: of a large gang, upkeep asks it for many nodes.
create or replace function hwqueue.load_fits(p_node hwqueue.node, p_load hwqueue.node_load) returns boolean
language sql immutable parallel safe
as $$
  select (p_load.cpu_used > p_node.cpu_milli) is not true
    and (p_load.memory_used > p_node.memory_mib) is not true
    and (p_load.claim_count > p_node.slots) is not true
    and 1000 >= all (p_load.gpu_used) and 1000 >= all (p_load.core_used)
    and case when p_load.custom_used = '{}' then true
      else hwqueue.lacking_custom(p_load.custom_used, p_node.custom) is null end
    and case when p_node.gpu_parents = '{}' then true else not hwqueue.uses_parts_twice(p_node, p_load) end
$$;

-- Whether a load uses a part of a device, and the device as well.
create or replace function hwqueue.uses_parts_twice(p_node hwqueue.node, p_load hwqueue.node_load)
returns boolean
language plpgsql immutable parallel safe
as $$ begin return
  exists (
    select from unnest(p_node.gpu_parents, p_load.gpu_used) p(parent, used)
    join unnest(p_node.gpu_ids, p_load.gpu_used) d(id, used) on d.id = p.parent
    where p.used > 0 and d.used > 0);
end $$;

-- Returns how many of p_left[i] members of class p_classes[i] are left when a node has taken as many as fit
-- beside its claims but p_without, one class after the other as in p_class_nos. With p_class_nos '{}', for a
-- node that is earmarked: '{0}' when all that is booked there fits without them, else '{1}'.
create or replace function hwqueue.left_on_node(p_node uuid, p_class_nos int[],
  p_classes hwqueue.placement_class[], p_left int[], p_without uuid[]) returns int[]
language plpgsql stable
as $$
declare
  v_node hwqueue.node;
  v_load hwqueue.node_load;
  v_places int;
  v_left int[] := p_left;
  v_no int;
  v_assignments jsonb[];
  v_claims int;
  v_taken record;
begin
  select n.* into v_node from hwqueue.node n where n.node_id = p_node;
  select array_agg(c.assignment) filter (where c.assignment is not null), count(*)
  into v_assignments, v_claims
  from hwqueue.claim c
  where c.node_id = p_node and c.lease_id <> all (p_without);
  v_load := hwqueue.add_uses(hwqueue.idle_load(v_node), v_node, coalesce(v_assignments, '{}'), 1);
  v_places := v_node.concurrency - v_claims;  -- null: no limit
  if p_class_nos = '{}' then
    return case when hwqueue.load_fits(v_node, v_load) and (v_places < 0) is not true
      then '{0}'::int[] else '{1}'::int[] end;
  end if;
  foreach v_no in array p_class_nos loop
    while v_left[v_no] > 0 and (v_places <= 0) is not true loop
      v_taken := hwqueue.earmark_room(p_classes[v_no], v_node, v_load, v_load);
      exit when not v_taken.fits;
      v_load := v_taken.p_load;
      v_left[v_no] := v_left[v_no] - 1;
      v_places := v_places - 1;
    end loop;
  end loop;
  return v_left;
end
$$;

-- Returns p_stops and those of p_candidates that would have to stop as well, so that a node takes p_want[i]
-- members of class p_classes[i]; null: all of them would not do. The first in order stop, but none in vain.
-- p_class_nos as in left_on_node.
create or replace function hwqueue.stops_on_node(p_node uuid, p_class_nos int[],
  p_classes hwqueue.placement_class[], p_want int[], p_stops uuid[], p_candidates uuid[]) returns uuid[]
language plpgsql stable
as $$
declare
  v_order uuid[] := array(
    select c.lease_id from unnest(p_candidates) with ordinality c(lease_id, nth)
    where c.lease_id <> all (p_stops) order by c.nth);
  v_more uuid[] := '{}';
  v_fewer uuid[];
begin
  while not 0 = all (
    hwqueue.left_on_node(p_node, p_class_nos, p_classes, p_want, p_stops || v_more))
  loop
    if cardinality(v_more) = cardinality(v_order) then
      return null;
    end if;
    v_more := v_order[: cardinality(v_more) + 1];
  end loop;
  for v_nth in reverse cardinality(v_more) - 1 .. 1 loop  -- the last one is needed
    v_fewer := v_more[: v_nth - 1] || v_more[v_nth + 1 :];
    if 0 = all (hwqueue.left_on_node(p_node, p_class_nos, p_classes, p_want, p_stops || v_fewer)) then
      v_more := v_fewer;
    end if;
  end loop;
  return p_stops || v_more;
end
$$;
