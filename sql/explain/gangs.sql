-- Why a gang has no room, and the ways out, in words.
--
-- explain_gang and what_if_gang (api/gangs) call explain_rooms, the one with the classes of members that
-- wait, the other with drafts of classes. Example: a gang of 4 is to be together in a rack. Rack 1 has room
-- for 3, and a lease that runs on gpu-4 has what the last one needs. The answer names that lease, and says
-- that the whole fleet has room for 4 now.
--
-- Invariant: what fits where comes from the functions that assemble reads (gangs/rooms), from one read of all
-- nodes. So does each variant: only the places differ. Like there, these are estimates, and what members ask
-- about other leases is not in them.

-- Returns the 20 places with most room, those with room for all in the order of gang_places: how many nodes
-- may run members there, how many members have room now and would have if these nodes were empty, and of how
-- many classes at least one has. in_the_way: the nodes that would have to be empty, up to 20, until all
-- members have room. places: how many there are in all; most_emptied: of them.
create or replace function hwqueue.place_sums(p_gang hwqueue.gang, p_rooms hwqueue.gang_room[], p_size int)
returns table (turn bigint, place text, domain text, value text, alike text, nodes bigint, room int,
  emptied int, kinds bigint, in_the_way uuid[], places bigint, most_emptied int)
language plpgsql stable
  set enable_nestloop = off set enable_hashjoin = on set jit = off
as $$ begin return query
  with shown as materialized (
    select p.*, count(*) over () as places, max(p.emptied) over () as most_emptied, row_number() over (
             order by p.members desc, case when p.members = p_size then p.level end,
               case when p.members = p_size then p.room end, p.emptied desc, p.level, p.place) as turn
    from hwqueue.places_with_room(p_rooms, 0, false, p_gang.together, p_gang.same) p
    where p_gang.place is null or p.place = p_gang.place
    order by turn limit 20
  ), on_node as materialized (
    select h.turn, h.room, h.node_id, sum(r.emptied - r.copies) as gain
    from (select s.turn, s.members as room, unnest(s.node_ids) as node_id from shown s) h
    join unnest(p_rooms) r on r.node_id = h.node_id
    group by h.turn, h.room, h.node_id
  ), freed as (
    select o.turn, o.room, o.node_id, o.gain,
           sum(o.gain) over (partition by o.turn order by o.gain desc, o.node_id) - o.gain as before,
           row_number() over (partition by o.turn order by o.gain desc, o.node_id) as nth
    from on_node o where o.gain > 0
  )
  select h.turn, h.place, h.domain, h.value, h.alike, n.nodes, h.members, h.emptied,
         h.kinds, coalesce(f.node_ids, '{}'), h.places, h.most_emptied
  from shown h
  join (select o.turn, count(*) as nodes from on_node o group by o.turn) n on n.turn = h.turn
  left join (
    select d.turn, array_agg(d.node_id order by d.nth) as node_ids from freed d
    where d.before < p_size - d.room and d.nth <= 20 group by d.turn) f on f.turn = h.turn;
end $$;

-- Returns the claims on these nodes, those that have run longest first: claims: 20 as in holder_list, of the
-- caller's own tenants; others: how many there are of other tenants, counted to 1,000.
create or replace function hwqueue.claims_in_the_way(p_node_ids uuid[], p_now timestamptz,
  out claims jsonb, out others int)
language plpgsql stable
as $$
declare
  v_tenants text[] := hwqueue.my_tenants();
begin
  claims := hwqueue.holder_list(array(
    select c.lease_id from hwqueue.claim c
    where c.node_id = any (p_node_ids) and c.is_earmark is null
      and (v_tenants is null or hwqueue.is_own_lease(c.lease_id, v_tenants))
    order by c.claimed_at, c.lease_id limit 20), true, p_now);
  others := case when v_tenants is null then 0 else (
    select count(*) from (
      select from hwqueue.claim c
      where c.node_id = any (p_node_ids) and c.is_earmark is null
        and not hwqueue.is_own_lease(c.lease_id, v_tenants) limit 1000) o) end;
end
$$;

-- Returns the place of an earmarked gang as explain_rooms does (its members have room on the nodes where
-- nothing is in the way of their earmarks any more), and the ways out that are in time for the nodes that
-- have no room yet for what is booked there: all of them have to get it.
create or replace function hwqueue.explain_earmark(p_gang hwqueue.gang, p_now timestamptz,
  out places jsonb, out ways jsonb)
language plpgsql stable
as $$
declare
  v_nodes uuid[] := array(
    select o.node_id from hwqueue.overbooked_nodes(array(
      select distinct c.node_id from hwqueue.claim c
      where c.lease_id = any (p_gang.members))) o(node_id) order by 1);
  v_order uuid[] := hwqueue.stoppable_claims(v_nodes[: 100], null, null);
  v_node uuid;
  v_found uuid[];
  v_stops uuid[] := case when cardinality(v_nodes) <= 100 then '{}'::uuid[] end;
begin
  select jsonb_build_array(jsonb_build_object('place', p_gang.place,
           'words', coalesce(hwqueue.gang_place_words(p_gang.place), 'the fleet'),
           'nodes', o.nodes, 'room', o.room, 'emptied', o.members, 'kinds', o.kinds,
           'in_the_way', o.names, 'claims', c.claims, 'others', c.others)) into places
  from (
    select count(*) as nodes, sum(k.members) as members, max(k.kinds) as kinds,
           coalesce(sum(k.members) filter (where n.node_id <> all (v_nodes)), 0) as room,
           coalesce(jsonb_agg(n.name order by n.name) filter (where n.node_id = any (v_nodes)), '[]') as names
    from (select e.node_id, count(*) as members, count(distinct e.class_id) as kinds
          from hwqueue.claim e
          where e.lease_id = any (p_gang.members) group by e.node_id) k
    join hwqueue.node n on n.node_id = k.node_id) o
  cross join lateral hwqueue.claims_in_the_way(v_nodes[: 20], p_now) c;
  ways := '[]';
  if v_nodes = '{}' then
    return;  -- the next tick reserves it
  end if;
  foreach v_node in array v_nodes[: 100] loop
    v_found := hwqueue.stops_on_node(v_node, '{}', '{}', '{}', '{}', array(
      select c.lease_id from hwqueue.claim c where c.node_id = v_node and c.lease_id = any (v_order)
      order by array_position(v_order, c.lease_id)));
    v_stops := case when v_found is not null then v_stops || v_found end;
    exit when v_stops is null;
  end loop;
  ways := hwqueue.told_ways(p_gang, (places #>> '{0,emptied}')::int, places -> 0, v_stops, places -> 0,
    hwqueue.earmark_start(p_gang, p_now), v_nodes, p_now);
end
$$;

-- Returns what would let a gang start that has no room, as explain_gang has it, but stop and wait.
create or replace function hwqueue.gang_ways(p_gang hwqueue.gang, p_rooms hwqueue.gang_room[], p_kinds int,
  p_size int, p_places jsonb) returns jsonb
language plpgsql stable
  set enable_nestloop = off set enable_hashjoin = on set jit = off
as $$
declare
  v_wider text[] := case when p_gang.together[cardinality(p_gang.together)] = 'node'
    then p_gang.together || 'rack'::text else p_gang.together end;
  v_try record;
  v_place text;
  v_ways jsonb := '[]';
begin
  for v_try in
    select t.*
    from (values
      (1, 'wider', v_wider, p_gang.same, 'in one rack'),
      (2, 'anywhere', '{}'::text[], p_gang.same, 'anywhere'),
      (3, 'without_same', p_gang.together, '{}'::text[],
        'with different values of ' || array_to_string(p_gang.same, ', ')),
      (4, 'without_both', '{}'::text[], '{}'::text[],
        'anywhere, with different values of ' || array_to_string(p_gang.same, ', '))
    ) t(turn, way, together, same, words)
    where p_gang.place is null and (t.together, t.same) <> (p_gang.together, p_gang.same)
      and (t.turn < 4 or p_gang.together <> '{}' and p_gang.same <> '{}')
    order by t.turn
  loop
    continue when v_try.turn in (2, 4) and v_ways <> '[]';  -- what is given up without need is no way out
    select f.place into v_place
    from hwqueue.places_with_room(p_rooms, p_kinds, false, v_try.together, v_try.same) f
    where f.fits order by f.level, f.room, f.place limit 1;
    if found then
      v_ways := v_ways || jsonb_build_object('way', v_try.way, 'words', v_try.words || ' all have room now',
        'place', nullif(v_place, ''), 'together', v_try.together, 'same', v_try.same, 'members', p_size);
    end if;
  end loop;
  return v_ways || coalesce((
    select jsonb_agg(w.way order by w.turn)
    from (
      (select 1 as turn, jsonb_build_object('way', 'smaller', 'words', format('%s of %s have room now: %s',
           p.value ->> 'room', p_size, p.value ->> 'words'), 'place', p.value -> 'place',
         'together', p_gang.together, 'same', p_gang.same, 'members', p.value -> 'room') as way
       from jsonb_array_elements(p_places) with ordinality p
       where (p.value ->> 'kinds')::int = p_kinds and (p.value ->> 'room')::int >= 2
       order by p.ordinality limit 1)
      union all
      (select 2, jsonb_build_object('way', 'empty', 'words', format(
           '%s has room for all once %s %s empty', p.value ->> 'words',
           hwqueue.list_words(p.value -> 'in_the_way', 'and'),
           case jsonb_array_length(p.value -> 'in_the_way') when 1 then 'is' else 'are' end),
         'place', p.value -> 'place', 'together', p_gang.together, 'same', p_gang.same, 'members', p_size)
       from jsonb_array_elements(p_places) with ordinality p
       where (p.value ->> 'emptied')::int = p_size and p.value -> 'in_the_way' <> '[]'
       order by p.ordinality limit 1)) w), '[]');
end
$$;

-- Returns whether members have room, in words, and what that rests on, as explain_gang has it: p_members[i]
-- of class p_classes[i], of the 10 classes with most members. p_gang: its options, its place if it may be in
-- no other, and no id if it is not spawned.
-- code: ready, a reason why no node may run a kind, no_place (the nodes that may are in no such place), or
-- insufficient_capacity; permanent: no place has room even if it were empty.
create or replace function hwqueue.explain_rooms(p_gang hwqueue.gang, p_queue hwqueue.queue,
  p_classes hwqueue.placement_class[], p_members int[], p_now timestamptz,
  out headline text, out code text, out permanent boolean, out kinds jsonb, out places jsonb,
  out place_count bigint, out ways jsonb)
language plpgsql stable
as $$
declare
  v_classes hwqueue.placement_class[];
  v_members int[];
  v_rooms hwqueue.gang_room[];
  v_size int;
  v_most int;
  v_class hwqueue.placement_class;
  v_sums record;
  v_why record;
  v_blocked jsonb;
begin
  select array_agg(p_classes[c.nth] order by c.nth), array_agg(p_members[c.nth] order by c.nth),
         sum(p_members[c.nth])
  into v_classes, v_members, v_size
  from (select i as nth from generate_subscripts(p_classes, 1) i order by p_members[i] desc, i limit 10) c;
  v_rooms := hwqueue.gang_rooms(v_classes, v_members, 'both', p_now);
  kinds := '[]';
  for v_no in 1 .. cardinality(v_classes) loop
    v_class := v_classes[v_no];
    select count(*) as nodes, least(coalesce(sum(r.copies), 0), v_members[v_no]) as room into v_sums
    from unnest(v_rooms) r where r.class_no = v_no;
    select null::text as headline, null::text as code, null::boolean as permanent into v_why;
    if v_sums.nodes = 0 and hwqueue.my_tenants() is null then
      select h.headline, h.code, h.permanent into v_why
      from hwqueue.class_verdicts(array[v_class], p_now) h;
    elsif v_sums.nodes = 0 then
      select 'no live node may run it' as headline, 'no_match' as code, false as permanent into v_why;
    end if;
    kinds := kinds || jsonb_build_object('task', v_class.task_name, 'members', v_members[v_no],
      'words', hwqueue.class_words(v_class), 'nodes', v_sums.nodes, 'room', v_sums.room,
      'blocker', v_why.headline, 'code', coalesce(v_why.code, case when v_sums.nodes = 0 then 'no_match' end),
      'permanent', v_why.permanent);
  end loop;
  select coalesce(jsonb_agg(jsonb_build_object('place', nullif(s.place, ''),
           'words', concat_ws(', ', hwqueue.place_words(s.domain, s.value), s.alike),
           'nodes', s.nodes, 'room', s.room, 'emptied', s.emptied, 'kinds', s.kinds,
           'in_the_way', (
             select coalesce(jsonb_agg(n.name order by w.nth), '[]')
             from unnest(s.in_the_way) with ordinality w(node_id, nth)
             join hwqueue.node n on n.node_id = w.node_id),
           'claims', c.claims, 'others', c.others) order by s.turn), '[]'),
         coalesce(max(s.places), 0), coalesce(max(s.most_emptied), 0)
  into places, place_count, v_most
  from hwqueue.place_sums(p_gang, v_rooms, v_size) s
  cross join lateral hwqueue.claims_in_the_way(case when s.turn <= 5 then s.in_the_way else '{}' end,
    p_now) c;
  select k.value into v_blocked from jsonb_array_elements(kinds) k where k.value ->> 'nodes' = '0' limit 1;
  permanent := false;
  ways := '[]';
  if v_blocked is not null then
    code := v_blocked ->> 'code';
    permanent := coalesce((v_blocked ->> 'permanent')::boolean, false);
    headline := format('%s, %s of %s: %s', v_blocked ->> 'task', v_blocked ->> 'members', v_size,
      v_blocked ->> 'blocker');
  elsif place_count = 0 then
    code := 'no_place';
    permanent := true;
    headline := case when p_gang.place is not null then
        format('no node of %s, where the others run, may run its members any more',
          hwqueue.gang_place_words(p_gang.place))
      else format('no node that may run its members has %s', array_to_string(
        array(select case d when 'rack' then 'a rack' else format('label "%s"', substr(d, 7)) end
              from unnest(p_gang.together) d where d <> 'node' and 'fleet' <> all (p_gang.together))
          || array(select format('label "%s"', k) from unnest(p_gang.same) k), ' and ')) end;
  elsif (places #>> '{0,room}')::int = v_size then  -- those with room for all come first
    code := 'ready';
    headline := format('%s has room for all %s', places #>> '{0,words}', v_size);
  else
    code := 'insufficient_capacity';
    permanent := v_most < v_size;
    headline := case when p_gang.place is null and p_gang.together <> '{}'
        then format('%s room for all %s; ', replace(hwqueue.no_level_words(p_gang.together), 'label:', ''),
          v_size) else '' end
      || format('%s has room for %s', places #>> '{0,words}', places #>> '{0,room}')
      || case when p_gang.together = '{}' or p_gang.place is not null then ' of ' || v_size else '' end
      || case when permanent then format('; even empty it would be %s at most', v_most) else '' end;
    ways := hwqueue.gang_ways(p_gang, v_rooms, cardinality(v_classes), v_size, places)
      || hwqueue.ways_in_time(p_gang, v_rooms, v_classes, v_members, places, p_now);
  end if;
  if cardinality(p_classes) > 10 then
    headline := headline || format('; judged by 10 of its %s kinds of members', cardinality(p_classes));
  end if;
  -- and what else decides when it starts: how many must start together, its queue, its last try and its next
  headline := case
      when p_gang.state = 'running' then format('%s of %s members wait to join; of the next one: ',
        p_gang.missing, p_gang.size)
      when p_gang.min_size < p_gang.size then format('%s of %s must start together; ', p_gang.min_size,
        p_gang.size)
      else '' end || headline;
  if p_queue.paused_at is not null then
    code := 'queue_paused';
    headline := format('queue %s is paused since %s UTC; %s', p_queue.name,
      to_char(p_queue.paused_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS'), headline);
  elsif p_gang.gang_id is null then
    headline := headline || case code when 'ready' then ' now' else '' end;
  elsif code = 'ready' and p_gang.reason <> 'insufficient_capacity' then
    code := p_gang.reason;
    headline := headline || '; at the last try ' || hwqueue.gang_wait_words(p_gang);
  else
    headline := headline
      || case when code = 'ready' and p_gang.reason is not null then
          ', which the last try did not find: it came since, or kinds of members share nodes' else '' end
      || case when p_gang.next_try_at = 'infinity' then '; ' || hwqueue.gang_wait_words(p_gang)
        when p_gang.next_try_at > p_now then format('; the next try is in %s',
          hwqueue.span_words(p_gang.next_try_at - p_now)) else '; the next try is at the next reap' end;
  end if;
end
$$;
