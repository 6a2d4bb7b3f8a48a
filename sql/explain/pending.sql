-- Why every pending class waits, for hundreds of classes at once.
--
-- The invariant: one pass over bit strings of nodes (fleet/masks, fleet/class_fleet) answers for all
-- classes; no class is judged on every node. What is said first is the order of class_headline.

-- Returns the pending classes that pending_reasons reports, in its order (turn): what class_fleets says,
-- how many nodes have room now (with_room), and how many of those have no known conflict (free). A class
-- that no node may run is not compared with what nodes have left. The planner inlines this function: keep
-- it stable and without SET.
create or replace function hwqueue.pending_classes(
  p_queue_id int, p_class bigint, p_kind text, p_order text, p_limit int,
  p_snapshot hwqueue.fleet_snapshot, p_now timestamptz)
returns setof hwqueue.pending_class
language sql stable
as $$
  with waiting as materialized (
    select g.*
    from (select r.queue_id, r.class_id, count(*) as pending, min(r.eligible_at) as oldest_at
          from hwqueue.ready r
          where (p_queue_id is null or r.queue_id = p_queue_id) and (p_class is null or r.class_id = p_class)
          group by r.queue_id, r.class_id) g
    join hwqueue.queue q on q.queue_id = g.queue_id and q.dropped_at is null
  ), ids as materialized (  -- without p_kind, only the classes that are returned need judging
    select coalesce(array_agg(o.class_id), '{}') as class_ids
    from (select w.class_id from waiting w
          order by case when p_order = 'pending' then -w.pending end, w.oldest_at, w.class_id
          limit case when p_kind is null then p_limit end) o
  ), fit as materialized (
    select f.* from ids
    cross join lateral hwqueue.class_fleets(ids.class_ids, p_snapshot, p_now) f
  ), able as materialized (
    select coalesce(array_agg(f.class_id), '{}') as class_ids
    from fit f where p_kind is distinct from 'no_match' and f.nodes_matching is distinct from 0
  ), free as (
    select f.class_id, f.nodes & r.mask as room, r.untaken as mask, r.conflict
    from able
    cross join lateral hwqueue.room_masks(able.class_ids, p_snapshot, p_now) r
    join fit f on f.class_id = r.class_id
    where p_kind is distinct from 'no_match'
  )
  select k.*, row_number() over (
           order by case when p_order = 'pending' then -k.pending end, k.oldest_at, k.class_id) as turn
  from (select w.pending, w.oldest_at, f.class_id, f.nodes_matching, f.nodes_cordoned, f.nodes_silent,
               f.part, f.expr, f.near, f.nodes_near, f.nodes_meeting, f.nodes_serving,
               coalesce(bit_count(e.room), 0)::int as with_room,
               coalesce(bit_count(e.room & coalesce(e.mask, e.room)), 0)::int as free, e.conflict
        from fit f
        join waiting w on w.class_id = f.class_id
        left join free e on e.class_id = f.class_id) k
  where p_kind is null
     or p_kind = 'no_match' and k.nodes_matching = 0
     or p_kind = 'contended' and k.nodes_matching > 0 and k.free = 0
  order by turn limit p_limit
$$;

-- Returns what keeps all pending classes from running, whatever they ask: no node is live and open. Nulls:
-- one is. p_seen_at: the last sign of life of any node.
create or replace function hwqueue.fleet_headline(p_registered bigint, p_live bigint, p_open bigint,
  p_seen_at timestamptz, p_now timestamptz) returns hwqueue.headline
language sql stable
as $$
  select case
    when p_registered = 0 then row('no_nodes', 'no node is registered')::hwqueue.headline
    when p_live = 0 then row('node_not_live', format('%s silent: the last sign of life came %s ago',
      case p_registered when 1 then 'the only node is' else format('all %s nodes are', p_registered) end,
      hwqueue.span_words(p_now - p_seen_at)))::hwqueue.headline
    when p_open = 0 then row('node_draining', format('%s, all cordoned',
      hwqueue.count_words(p_live, 'live node', 'live nodes')))::hwqueue.headline end
$$;

-- Says to who spawns what kept every live node from a class when upkeep last looked. It reads no node.
create or replace function hwqueue.known_lacks(p_class_id bigint) returns text[]
language sql stable
as $$
  select array['no live node could run it at the last look' || case
    when bit_count(m.serving) = 0 then format(': none serves task %s in this queue', to_json(c.task_name))
    when m.part = 'require' then ': most lacked ' || hwqueue.requirement_text(m.expr)
    when m.part = 'capacity' then ': most lacked ' || hwqueue.resource_words(c.placement -> 'resources')
    else coalesce(': in the way was ' || m.part, '') end]
  from hwqueue.placement_class c
  left join hwqueue.class_fleet m on m.class_id = p_class_id
  where c.class_id = p_class_id
$$;

-- Whether no registered node, silent and cordoned ones included, suits a pending class; false where that is
-- not known.
create or replace function hwqueue.is_barred(p_class hwqueue.pending_class) returns boolean
language sql immutable parallel safe
as $$
  select coalesce((p_class).nodes_matching = 0 and (p_class).nodes_cordoned = 0
    and (p_class).nodes_silent = 0, false)
$$;

-- Returns the one thing to say about a pending class, in the order of what must be put right first. Null
-- code: a node could take it now. permanent: it lasts until nodes or the lease change. p_fleet: see
-- fleet_headline. p_is_barred: no node suits it, silent and cordoned ones included. p_unserved: what to say
-- where no live node serves it; p_obstacle: what keeps it off all nodes, or off those that match it.
create or replace function hwqueue.class_headline(p_class hwqueue.pending_class, p_queue hwqueue.queue,
  p_fleet hwqueue.headline, p_is_barred boolean, p_unserved text, p_obstacle hwqueue.headline,
  p_waits interval, out code text, out message text, out permanent boolean)
language plpgsql stable
as $$
declare
  v_hidden int := greatest(p_class.nodes_silent, p_class.nodes_cordoned);
begin
  permanent := false;
  if p_queue.paused_at is not null then
    code := 'queue_paused';
    message := format('queue %s is paused since %s UTC', p_queue.name,
      to_char(p_queue.paused_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS'));
  elsif p_fleet.code in ('no_nodes', 'node_not_live') then
    code := p_fleet.code;
    permanent := code = 'node_not_live' and p_is_barred;
    message := p_fleet.message
      || case when permanent then '; back again, none of them could run it either' else '' end;
  elsif p_class.nodes_matching = 0 and v_hidden > 0 then
    code := case p_class.nodes_silent when v_hidden then 'node_not_live' else 'node_draining' end;
    message := format('%s %s', hwqueue.count_words(v_hidden, 'node matches, but it is',
      'nodes match, but they are'), case code when 'node_not_live' then 'silent' else 'cordoned' end);
  elsif p_unserved is not null then
    code := 'no_handler';
    permanent := true;
    message := p_unserved;
  elsif p_class.nodes_matching = 0 and p_fleet.code is not null then
    code := p_fleet.code;
    permanent := p_is_barred;
    message := p_fleet.message
      || case when permanent then '; without the cordons, none could run it either' else '' end;
  elsif p_class.nodes_matching = 0 or p_obstacle.code is not null then
    code := p_obstacle.code;
    permanent := coalesce(p_class.nodes_matching = 0, false);
    message := p_obstacle.message;
  elsif p_waits > '0' then
    code := 'waiting_for_preferred';
    message := format('%s could take it now; the oldest may wait %s s more for one that it prefers',
      hwqueue.count_words(p_class.free, 'node', 'nodes'), round(extract(epoch from p_waits), 1));
  else
    message := format('%s could take it now', hwqueue.count_words(p_class.free, 'node', 'nodes'));
  end if;
end
$$;

-- Returns what keeps a class of pending_reasons off all nodes: the part that excludes most, and why (p_part)
-- a node of this name does not meet it; or what keeps it off those that match. Nulls where one is free.
create or replace function hwqueue.class_obstacle(p_class hwqueue.pending_class, p_part hwqueue.headline,
  p_node text) returns hwqueue.headline
language sql immutable
as $$
  select case
    when (p_class).nodes_matching = 0 then row((p_part).code, case
      when (p_class).nodes_near > 0 then format('%s would do but for one thing: on %s, %s',
        hwqueue.count_words((p_class).nodes_near, 'live node', 'live nodes'), p_node, (p_part).message)
      when (p_class).nodes_meeting = 0 then format('no live node will do: on %s, %s', p_node,
        (p_part).message)
      else format('no live node has all that is asked, and no more than %s this: on %s, %s',
        (p_class).nodes_meeting, p_node, (p_part).message) end)::hwqueue.headline
    when (p_class).with_room = 0 then row('nodes_support_but_contended', case
      when (p_class).nodes_matching is null then 'no node has room now'
      else format('%s could run it, but without room now',
        hwqueue.count_words((p_class).nodes_matching, 'node', 'nodes')) end)::hwqueue.headline
    when (p_class).free = 0 then row((p_class).conflict,
      format('what other leases do keeps it off %s with room',
        hwqueue.count_words((p_class).with_room, 'node', 'nodes')))::hwqueue.headline end
$$;
