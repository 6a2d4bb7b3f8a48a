-- Which leases would have to stop so that a gang has room, and by when it has without that.
--
-- explain/gangs calls ways_in_time for a gang that waits, explain_earmark told_ways for one
-- that is earmarked. Example: a gang of 4 is to be together in a rack. Rack 1 has room for 3. On gpu-4 run
-- two leases, and either of them leaves enough room for the last member. The answer names the one of lower
-- priority, and says by when the first of the two is over, as its max_run has it.
--
-- Invariant: what fits beside the claims that go on is found node by node by the function that allocates for
-- an earmark (earmark_room), not from sums. So it holds for several kinds of members, and for devices.
-- Nothing is locked or written. The work is bounded: the 3 places with most room that are large enough, and
-- of each 100 nodes with about 500 claims (ways_in_time).

-- Returns of these nodes those that may take members, in the order in which assemble tries them: of which
-- classes, those with least room to spare first, how many now, and how many more when they are empty.
create or replace function hwqueue.nodes_that_take(p_rooms hwqueue.gang_room[], p_node_ids uuid[])
returns table (node_id uuid, class_nos int[], copies bigint, gain bigint)
language sql immutable
as $$
  select r.node_id, array_agg(r.class_no order by r.spare, r.class_no), sum(r.copies),
         sum(r.emptied - r.copies)
  from (
    select u.class_no, u.node_id, u.copies, u.emptied,
           sum(u.emptied) over (partition by u.class_no) - u.members as spare
    from unnest(p_rooms) u
    join unnest(p_node_ids) i(node_id) on i.node_id = u.node_id) r
  group by r.node_id order by sum(r.copies) desc, r.node_id
$$;

-- Returns how many members of each class are left when these nodes have taken what fits beside their claims
-- but p_without. A node where all that runs is in nobody's way is not looked at: its room is known.
create or replace function hwqueue.left_in_place(p_rooms hwqueue.gang_room[],
  p_classes hwqueue.placement_class[], p_left int[], p_node_ids uuid[], p_without uuid[]) returns int[]
language plpgsql stable
as $$
declare
  v_node record;
  v_no int;
  v_left int[] := p_left;
begin
  for v_node in
    select t.* from hwqueue.nodes_that_take(p_rooms, p_node_ids) t
  loop
    exit when 0 = all (v_left);
    v_no := v_node.class_nos[1];
    if v_node.gain = 0 and cardinality(v_node.class_nos) = 1 then
      v_left[v_no] := greatest(0, v_left[v_no] - v_node.copies);
    else
      v_left := hwqueue.left_on_node(v_node.node_id, v_node.class_nos, p_classes, v_left, p_without);
    end if;
  end loop;
  return v_left;
end
$$;

-- Returns the claims that would have to stop so that the p_left members of each class have room on these
-- nodes; null: it finds none. Greedy: member by member, on the node where fewest more have to stop for it,
-- and of such nodes where the last of them costs least. So there may be a set with fewer.
create or replace function hwqueue.stops_in_place(p_rooms hwqueue.gang_room[],
  p_classes hwqueue.placement_class[], p_left int[], p_node_ids uuid[]) returns uuid[]
language plpgsql stable
as $$
declare
  v_nodes uuid[];
  v_order uuid[] := hwqueue.stoppable_claims(p_node_ids, null, null);
  v_class_nos text[];  -- of each node, as in nodes_that_take
  v_claims text[];
  v_left int[] := p_left;
  v_rest int[];
  v_want int[];
  v_no int;
  v_held text[] := '{}';  -- how many members of each class each node takes
  v_stops text[] := array_fill('{}'::text, array[cardinality(p_node_ids)]);  -- which claims stop there
  v_plans text[];  -- and which for one more
  v_plan uuid[];
  v_more int;
  v_costs int[];
  v_best int;
begin
  select array_agg(t.node_id), array_agg(t.class_nos::text), array_agg(
           array(select c.lease_id from hwqueue.claim c
             where c.node_id = t.node_id and c.lease_id = any (v_order)
             order by array_position(v_order, c.lease_id))::text)
  into v_nodes, v_class_nos, v_claims
  from hwqueue.nodes_that_take(p_rooms, p_node_ids) t;
  for v_n in 1 .. coalesce(cardinality(v_nodes), 0) loop
    v_rest := hwqueue.left_on_node(v_nodes[v_n], v_class_nos[v_n]::int[], p_classes, v_left, '{}');
    v_held[v_n] := array(
      select u.own - u.rest from unnest(v_left, v_rest) with ordinality u(own, rest, nth)
      order by u.nth)::text;
    v_left := v_rest;
  end loop;
  while not 0 = all (v_left) loop
    if v_no is null or v_left[v_no] = 0 then  -- the next class
      select c.nth into v_no from unnest(v_left) with ordinality c(members, nth)
      where c.members > 0 order by c.nth limit 1;
      v_plans := array_fill(null::text, array[cardinality(v_stops)]);
      v_costs := array_fill(null::int, array[cardinality(v_stops)]);
    end if;
    for v_n in 1 .. coalesce(cardinality(v_nodes), 0) loop
      continue when v_plans[v_n] is not null or v_no <> all (v_class_nos[v_n]::int[]);
      v_want := v_held[v_n]::int[];
      v_want[v_no] := v_want[v_no] + 1;
      v_plan := hwqueue.stops_on_node(v_nodes[v_n], v_class_nos[v_n]::int[], p_classes, v_want,
        v_stops[v_n]::uuid[], v_claims[v_n]::uuid[]);
      v_plans[v_n] := coalesce(v_plan::text, 'none');
      -- what it costs: the number of claims that stop besides, then how late the last of them is in order
      v_more := cardinality(v_plan) - cardinality(v_stops[v_n]::uuid[]);
      v_costs[v_n] := 10000 * v_more
        + case when v_more = 0 then 0 else array_position(v_order, v_plan[cardinality(v_plan)]) end;
    end loop;
    select c.nth into v_best from unnest(v_costs) with ordinality c(cost, nth)
    where c.cost is not null order by c.cost, c.nth limit 1;
    if not found then
      return null;
    end if;
    v_want := v_held[v_best]::int[];
    v_want[v_no] := v_want[v_no] + 1;
    v_held[v_best] := v_want::text;
    v_stops[v_best] := v_plans[v_best];
    v_plans[v_best] := null;
    v_left[v_no] := v_left[v_no] - 1;
  end loop;
  return array(select i from unnest(v_stops) s, unnest(s::uuid[]) i);
end
$$;

-- Returns the claims of nodes, but earmarks, and when each is over at the latest, as its max_run says; null:
-- not known. One that is reserved begins at the latest when its hold is over.
create or replace function hwqueue.known_ends(p_node_ids uuid[])
returns table (lease_id uuid, node_id uuid, ends_at timestamptz)
language sql stable
as $$
  select c.lease_id, c.node_id, case when c.is_reserved then c.expires_at else c.claimed_at end + k.max_run
  from hwqueue.claim c
  join hwqueue.placement_class k on k.class_id = c.class_id
  where c.node_id = any (p_node_ids) and c.is_earmark is null
$$;

-- Returns the ways out in words: to stop these claims in one place, if there are any, and to wait for another
-- one; of that, if no time is known, why: "lease ... on gpu-3 has no max_run, nor have 2 others". A caller of
-- one tenant is not told which lease of others it is.
create or replace function hwqueue.told_ways(p_gang hwqueue.gang, p_members int, p_stop_at jsonb,
  p_stops uuid[], p_wait_at jsonb, p_until timestamptz, p_wait_nodes uuid[], p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
  v_way jsonb := jsonb_build_object('together', p_gang.together, 'same', p_gang.same, 'members', p_members);
  v_tenants text[] := hwqueue.my_tenants();
  v_endless uuid[];
  v_first text;
  v_others int;
  v_words text;
  v_ways jsonb := '[]';
begin
  if cardinality(p_stops) > 0 then
    v_ways := v_ways || (v_way || jsonb_build_object('way', 'stop', 'place', p_stop_at -> 'place',
      'words', format(case cardinality(p_stops) when 1 then '%s has room for all once lease %s is stopped'
        else '%s has room for all once leases %s are stopped' end, p_stop_at ->> 'words',
        hwqueue.list_words(to_jsonb(p_stops), 'and')),
      'claims', hwqueue.holder_list(p_stops, true, p_now)));
  end if;
  if p_wait_at is null then
    return v_ways;
  elsif p_until is not null then
    v_words := format('%s has room for all by %s UTC%s', p_wait_at ->> 'words',
      to_char(p_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS'),
      case p_gang.state when 'earmarked' then '' else ', unless other leases take it' end);
  else
    v_endless := array(select e.lease_id from hwqueue.known_ends(p_wait_nodes) e where e.ends_at is null);
    select format('lease %s on %s', c.lease_id, n.name) into v_first
    from hwqueue.claim c
    join hwqueue.node n on n.node_id = c.node_id
    where c.lease_id = any (v_endless) and (v_tenants is null or hwqueue.is_own_lease(c.lease_id, v_tenants))
    order by c.claimed_at, c.lease_id limit 1;
    v_others := cardinality(v_endless) - (v_first is not null)::int;
    v_words := format('when %s has room for all is not known: %s', p_wait_at ->> 'words', case
      when v_endless = '{}' then
        'kinds of its members share nodes there, or more is in the way than is looked at'
      else concat_ws(', nor ', v_first || ' has no max_run', case
        when v_first is null and v_others = 1 then 'a lease of another tenant has no max_run'
        when v_first is null then format('%s leases of other tenants have no max_run', v_others)
        when v_others = 1 then 'has another one'
        when v_others > 1 then format('have %s others', v_others) end) end);
  end if;
  return v_ways || (v_way || jsonb_build_object('way', 'wait', 'words', v_words,
    'place', p_wait_at -> 'place', 'until', p_until));
end
$$;

-- Returns the ways out that are in time of a gang that has no room: stop, in the place where fewest leases
-- have to stop, if there is one; wait, for the place that is free first if nothing else starts there, by what
-- max_run says of its leases. Of the first 3 places of explain_rooms that would be large enough; [] where
-- there are none.
create or replace function hwqueue.ways_in_time(p_gang hwqueue.gang, p_rooms hwqueue.gang_room[],
  p_classes hwqueue.placement_class[], p_members int[], p_places jsonb, p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
  v_size int := (select sum(m) from unnest(p_members) m);
  v_place record;
  v_crowded uuid[];
  v_left int[];
  v_found uuid[];
  v_leases uuid[];
  v_ends timestamptz[];
  v_low int;
  v_high int;
  v_mid int;
  v_until timestamptz;
  v_stop_at jsonb;
  v_stops uuid[];
  v_wait_at jsonb;
  v_first timestamptz;
  v_wait_nodes uuid[];
begin
  for v_place in
    select p.value as told, n.node_ids
    from jsonb_array_elements(p_places) with ordinality p
    join hwqueue.node_places(p_gang.together, p_gang.same) n on n.place = coalesce(p.value ->> 'place', '')
    where (p.value ->> 'emptied')::int = v_size and p.value -> 'in_the_way' <> '[]'
    order by p.ordinality limit 3
  loop
    -- those that would take more members if they were empty, those with fewest claims for each of these
    -- members first: 20, and more until they take half as many again as all, at most 100
    v_crowded := array(
      select s.node_id
      from (
        select n.node_id, row_number() over w as nth, sum(n.claims) over w - n.claims as claims_before,
               sum(n.gain) over w - n.gain as gain_before
        from (
          select t.node_id, t.gain, (
            select count(*) from hwqueue.claim c where c.node_id = t.node_id) as claims
          from hwqueue.nodes_that_take(p_rooms, v_place.node_ids) t
          where t.gain > 0) n
        window w as (order by n.claims::numeric / n.gain, n.node_id rows unbounded preceding)) s
      where (s.nth <= 20 or s.nth <= 100 and s.gain_before < 3 * v_size / 2) and s.claims_before < 500
      order by s.nth);
    v_left := hwqueue.left_in_place(p_rooms, p_classes, p_members, array(
      select i from unnest(v_place.node_ids) i where i <> all (v_crowded)), '{}');
    v_found := hwqueue.stops_in_place(p_rooms, p_classes, v_left, v_crowded);
    if cardinality(v_found) < cardinality(v_stops) or v_stops is null then
      v_stops := v_found;
      v_stop_at := v_place.told;
    end if;
    select array_agg(e.lease_id order by e.ends_at, e.lease_id),
           array_agg(e.ends_at order by e.ends_at, e.lease_id)
    into v_leases, v_ends
    from hwqueue.known_ends(v_crowded) e where e.ends_at is not null;
    v_low := 1;
    v_high := cardinality(v_leases);
    v_until := null;
    if v_leases is not null and 0 = all (
      hwqueue.left_in_place(p_rooms, p_classes, v_left, v_crowded, v_leases)) then
      while v_low < v_high loop  -- the first of them with whose end there is room
        v_mid := (v_low + v_high) / 2;
        if 0 = all (hwqueue.left_in_place(p_rooms, p_classes, v_left, v_crowded, v_leases[: v_mid])) then
          v_high := v_mid;
        else
          v_low := v_mid + 1;
        end if;
      end loop;
      v_until := greatest(v_ends[v_high], p_now);
    end if;
    if v_wait_at is null or v_until < v_first or v_first is null and v_until is not null then
      v_first := v_until;
      v_wait_at := v_place.told;
      v_wait_nodes := v_crowded;
    end if;
  end loop;
  return hwqueue.told_ways(p_gang, v_size, v_stop_at, v_stops, v_wait_at, v_first, v_wait_nodes, p_now);
end
$$;
