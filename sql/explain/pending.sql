-- Why every pending class waits, for hundreds of classes at once.
--
-- The invariant: one pass over bit strings of nodes (fleet/masks, fleet/class_fleet) answers for all
-- classes; no class is judged on every node. What is said first is the order of pending_headline.

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
-- one is.
create or replace function hwqueue.fleet_headline(p_snapshot hwqueue.fleet_snapshot) returns hwqueue.headline
language plpgsql stable
as $$
declare
  v_live bigint := bit_count(p_snapshot.live);
  v_said hwqueue.headline;
begin
  if p_snapshot.registered = 0 then
    v_said.code := 'no_nodes';
    v_said.message := 'no node is registered';
  elsif bit_count(p_snapshot.open) = 0 then
    v_said.code := case when v_live > 0 then 'node_draining' else 'node_not_live' end;
    v_said.message := case
      when v_live > 0 then format('%s, all cordoned', hwqueue.count_words(v_live, 'live node', 'live nodes'))
      else format('%s, none with a sign of life',
        hwqueue.count_words(p_snapshot.registered, 'registered node', 'registered nodes')) end;
  end if;
  return v_said;
end
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

-- Returns the one thing to say about a pending class of pending_reasons, in the order of what must be
-- put right first. p_fleet: see fleet_headline. p_part: why the node of this name does not meet the part
-- that excludes most (part_reason). p_unserved: what to say where no live node serves it.
create or replace function hwqueue.class_headline(p_class hwqueue.pending_class, p_fleet hwqueue.headline,
  p_part hwqueue.headline, p_node text, p_paused_at timestamptz, p_waits interval, p_unserved text,
  out code text, out message text)
language plpgsql stable
as $$
begin
  if p_paused_at is not null then
    code := 'queue_paused';
    message := format('the queue is paused since %s', p_paused_at);
  elsif p_fleet.code = 'no_nodes' or p_class.nodes_matching = 0 and p_fleet.code is not null then
    code := p_fleet.code;
    message := p_fleet.message || case when code = 'no_nodes' or not hwqueue.is_barred(p_class) then ''
      when code = 'node_not_live' then '; back again, none of them could run it either'
      else '; without the cordons, none could run it either' end;
  elsif p_class.nodes_matching = 0 and p_class.nodes_cordoned > 0 then
    code := 'node_draining';
    message := format('%s would do, but for being cordoned',
      hwqueue.count_words(p_class.nodes_cordoned, 'node', 'nodes'));
  elsif p_class.nodes_matching = 0 and p_class.nodes_silent > 0 then
    code := 'node_not_live';
    message := format('%s would do, but for giving no sign of life',
      hwqueue.count_words(p_class.nodes_silent, 'node', 'nodes'));
  elsif p_unserved is not null then
    code := 'no_handler';
    message := p_unserved;
  elsif p_class.nodes_matching = 0 then
    code := p_part.code;
    message := case
      when p_class.nodes_near > 0 then format('%s would do but for one thing: on %s, %s',
          hwqueue.count_words(p_class.nodes_near, 'live node', 'live nodes'), p_node, p_part.message)
      when p_class.nodes_meeting = 0 then format('no live node will do: on %s, %s', p_node, p_part.message)
      else format('no live node has all that is asked, and no more than %s this: on %s, %s',
          p_class.nodes_meeting, p_node, p_part.message) end;
  elsif p_class.with_room = 0 then
    code := 'nodes_support_but_contended';
    message := case when p_class.nodes_matching is null then 'no node has room now'
                    else format('%s could run it, but without room now',
                        hwqueue.count_words(p_class.nodes_matching, 'node', 'nodes')) end;
  elsif p_class.free = 0 then
    code := p_class.conflict;
    message := format('what other leases do keeps it off %s with room',
        hwqueue.count_words(p_class.with_room, 'node', 'nodes'));
  elsif p_waits > '0' then
    code := 'waiting_for_preferred';
    message := format('%s could take it now; the oldest may wait %s s more for one that it prefers',
        hwqueue.count_words(p_class.free, 'node', 'nodes'), round(extract(epoch from p_waits), 1));
  else
    message := format('%s could take it now', hwqueue.count_words(p_class.free, 'node', 'nodes'));
  end if;
end
$$;
