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
returns table (class_id bigint, pending bigint, oldest_at timestamptz, fit hwqueue.class_match, with_room int,
  free int, conflict text, turn bigint)
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
    select f.class_id, f.nodes_matching, f as fit from ids
    cross join lateral hwqueue.class_fleets(ids.class_ids, p_snapshot, p_now) f
  ), able as materialized (
    select coalesce(array_agg(f.class_id), '{}') as class_ids
    from fit f where p_kind is distinct from 'no_match' and f.nodes_matching is distinct from 0
  ), free as (
    select f.class_id, bit_count(n.room)::int as with_room,
           bit_count(n.room & coalesce(r.untaken, n.room))::int as free, r.conflict
    from able
    cross join lateral hwqueue.room_masks(able.class_ids, p_snapshot, p_now) r
    join fit f on f.class_id = r.class_id
    cross join lateral (select (f.fit).nodes & r.mask as room) n
    where p_kind is distinct from 'no_match'
  )
  select k.*, row_number() over (
           order by case when p_order = 'pending' then -k.pending end, k.oldest_at, k.class_id) as turn
  from (select f.class_id, w.pending, w.oldest_at, f.fit, coalesce(e.with_room, 0) as with_room,
               coalesce(e.free, 0) as free, e.conflict
        from fit f
        join waiting w on w.class_id = f.class_id
        left join free e on e.class_id = f.class_id
        where p_kind is null or p_kind = 'no_match' and f.nodes_matching = 0
          or p_kind = 'contended' and f.nodes_matching > 0 and coalesce(e.free, 0) = 0) k
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
language plpgsql stable
as $$ begin return (
  select array['no live node could run it at the last look' || case
    when bit_count(m.serving) = 0 then format(': none serves task %s in this queue', to_json(c.task_name))
    when m.part = 'require' then ': most lacked ' || hwqueue.requirement_text(m.expr)
    when m.part = 'capacity' then ': most lacked ' || hwqueue.resource_words(c.placement -> 'resources')
    else coalesce(': in the way was ' || m.part, '') end]
  from hwqueue.placement_class c
  left join hwqueue.class_fleet m on m.class_id = p_class_id
  where c.class_id = p_class_id
); end $$;

-- Returns what part of a class (class_fits) a node does not meet, and why; nulls without a node. p_tells: in
-- words, which takes long.
create or replace function hwqueue.part_reason(
  p_part text, p_expr jsonb, p_class hwqueue.placement_class, p_node hwqueue.node, p_tells boolean,
  p_now timestamptz) returns hwqueue.headline
language plpgsql stable set plan_cache_mode = auto
as $$
declare
  v_failed hwqueue.failure;
  v_idle hwqueue.node_load;
begin
  v_failed.permanent := true;
  v_failed.stage := case p_part when 'device' then 'isolation' else p_part end;
  if p_part = 'require' then
    v_failed.code := hwqueue.expr_reason(p_expr, p_node.labels, p_node.rack, p_node.node_id,
        p_node.resources || p_node.gpu_ids, null, hwqueue.attested_at(p_node, p_now));
    v_failed.predicate := p_expr;
  elsif p_part = 'served' then
    v_failed.code := 'no_handler';
    v_failed.predicate := (
      select hwqueue.unserved_part(p_node.queues, p_node.tasks, q.name, p_class.task_name)
      from hwqueue.queue q where p_tells and q.queue_id = p_class.queue_id);
  elsif p_part = 'taints' then
    v_failed.predicate := hwqueue.barring_taints(hwqueue.node_taints(p_node), p_class.tolerate,
      p_class.tenant) -> 0;
    v_failed.code := hwqueue.taint_code(v_failed.predicate);
  elsif p_part in ('isolation', 'device') then
    select c.code, c.message, c.predicate into v_failed.code, v_failed.message, v_failed.predicate
    from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity,
        p_node.gpu_share_mode, p_node.gpu_ids, p_node.gpu_parents) c
    limit 1;
  end if;
  if v_failed.code is null and p_node.node_id is not null then
    v_failed.code := 'insufficient_capacity';
    v_failed.stage := 'capacity';
    if p_tells then
      v_idle := hwqueue.idle_load(p_node);
      v_failed.lacks := hwqueue.class_shortage(p_class, p_node, v_idle);
    end if;
  end if;
  return row(v_failed.code, case when p_tells and v_failed.code is not null
    then format('%s (%s: %s)', hwqueue.failure_words(to_jsonb(v_failed), p_class), p_node.name,
      hwqueue.failure_reason(v_failed, p_class, p_node, v_idle) ->> 'message') end)::hwqueue.headline;
end
$$;

-- Returns the one thing to say about a class that waits, in the order of what must be put right first. Null
-- code: a node could take it now. permanent: it lasts until nodes or the lease change. p_fleet: see
-- fleet_headline. p_unserved: what to say where no live node serves it; p_part: what keeps out most, where
-- none matches; p_conflict: what keeps the class off those that match, if that is known. unmatched: the part
-- is what is said.
create or replace function hwqueue.class_headline(p_fit hwqueue.class_match, p_queue hwqueue.queue,
  p_fleet hwqueue.headline, p_unserved text, p_part hwqueue.headline, p_free int,
  p_conflict hwqueue.headline, p_waits interval, out code text, out message text, out permanent boolean,
  out unmatched boolean)
language plpgsql stable
as $$
declare
  v_hidden int := greatest(p_fit.nodes_silent, p_fit.nodes_cordoned);
  -- no registered node suits it, silent and cordoned ones included
  v_is_barred boolean := coalesce(p_fit.nodes_matching = 0 and p_fit.nodes_cordoned = 0
    and p_fit.nodes_silent = 0, false);
begin
  permanent := false;
  unmatched := false;
  if p_queue.paused_at is not null then
    code := 'queue_paused';
    message := format('queue %s is paused since %s UTC', p_queue.name,
      to_char(p_queue.paused_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS'));
  elsif p_fleet.code in ('no_nodes', 'node_not_live') then
    code := p_fleet.code;
    permanent := code = 'node_not_live' and v_is_barred;
    message := p_fleet.message
      || case when permanent then '; back again, none of them could run it either' else '' end;
  elsif p_fit.nodes_matching = 0 and v_hidden > 0 then
    code := case p_fit.nodes_silent when v_hidden then 'node_not_live' else 'node_draining' end;
    message := format('%s %s', hwqueue.count_words(v_hidden, 'node matches, but it is',
      'nodes match, but they are'), case code when 'node_not_live' then 'silent' else 'cordoned' end);
  elsif p_unserved is not null then
    code := 'no_handler';
    permanent := true;
    message := p_unserved;
  elsif p_fit.nodes_matching = 0 and p_fleet.code is not null then
    code := p_fleet.code;
    permanent := v_is_barred;
    message := p_fleet.message
      || case when permanent then '; without the cordons, none could run it either' else '' end;
  elsif p_fit.nodes_matching = 0 then
    code := p_part.code;
    permanent := true;
    unmatched := true;
    message := format('no live node can run it: %s', case
      when p_fit.nodes_near > 0 then format('%s but for %s', hwqueue.count_words(p_fit.nodes_near,
        'node would match', 'nodes would match'), p_part.message)
      else 'most lack ' || p_part.message end);
  elsif p_free = 0 then
    code := coalesce(p_conflict.code, 'nodes_support_but_contended');
    message := coalesce(hwqueue.count_words(p_fit.nodes_matching, 'node matches', 'nodes match')
      || ', none is free', 'no node is free') || coalesce(': ' || p_conflict.message, '');
  elsif p_conflict.code is not null then
    code := p_conflict.code;
    message := p_conflict.message;
  elsif p_waits > '0' then
    code := 'waiting_for_preferred';
    message := format('%s could take it now; the oldest may wait %s s more for one that it prefers',
      hwqueue.count_words(p_free, 'node', 'nodes'), round(extract(epoch from p_waits), 1));
  else
    message := format('%s could take it now', hwqueue.count_words(p_free, 'node', 'nodes'));
  end if;
end
$$;
