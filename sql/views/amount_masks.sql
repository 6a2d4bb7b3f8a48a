-- What nodes have when nothing runs, once for all with the same capacity, and which nodes these are, as bit strings
-- (numbered_nodes).
create or replace function hwqueue.idle_rooms(p_none bit varying, p_now timestamptz, p_shard int)
returns table (room hwqueue.headroom, mask bit varying)
language sql stable
as $$
  with node as materialized (
    select n.number, n.node from hwqueue.numbered_nodes(p_now, p_shard) n
  )
  select hwqueue.node_headroom(n.node, hwqueue.idle_load(n.node)), k.mask
  from (
    select min(x.number) as number, bit_or(set_bit(p_none, x.number, 1)) as mask
    from node x
    group by (x.node).cpu_milli, (x.node).memory_mib, (x.node).slots, (x.node).custom, cardinality((x.node).gpu_ids),
             cardinality(array_remove((x.node).gpu_parents, null)), (x.node).core_numa
  ) k
  join node n on n.number = k.number
$$;

-- What a node has left of an amount, as amount_left says of its headroom: without making the headroom where the columns
-- say it, for views ask it of every node. One expression without subqueries, so that the planner inlines it.
create or replace function hwqueue.left_on(p_node hwqueue.node, p_load hwqueue.node_load, p_name text) returns bigint
language sql stable parallel safe
as $$
  select case
    when p_name = 'cpu_milli' then coalesce(p_node.cpu_milli - p_load.cpu_used, 9223372036854775807)
    when p_name = 'memory_mib' then coalesce(p_node.memory_mib - p_load.memory_used, 9223372036854775807)
    when p_name = 'slots' then coalesce(p_node.slots - p_load.claim_count, 9223372036854775807)
    when p_name like 'core%' and p_node.core_ids = '{}' then 9223372036854775807
    when p_name like 'gpu%' and p_node.gpu_ids = '{}' then 0
    when p_name = 'gpu_whole' and p_node.gpu_parents = '{}' then cardinality(array_positions(p_load.gpu_used, 0))
    else hwqueue.amount_left(hwqueue.node_headroom(p_node, p_load), p_name) end
$$;

-- The nodes that have at least so much of an amount, as bit strings (numbered_nodes), for each pair of p_names and
-- p_amounts; no row where all of them have. p_idle: of all nodes as if nothing ran; else of those in p_open, now.
-- Each node goes to the largest of the amounts asked that it still has (a step); those of all steps below an amount
-- have not enough of it.
-- p_none: a zero for each node.
create or replace function hwqueue.amount_masks(p_names text[], p_amounts bigint[], p_idle boolean, p_open bit varying,
                                                p_none bit varying, p_now timestamptz, p_shard int)
returns table (name text, amount bigint, mask bit varying)
language sql stable
as $$
  with asked as materialized (
    select a.name, array_agg(distinct a.amount) as steps from unnest(p_names, p_amounts) a(name, amount) group by a.name
  ), short as materialized (
    select t.name, t.step, bit_or(coalesce(t.mask, set_bit(p_none, t.number, 1))) as mask
    from (
      select a.name, width_bucket(hwqueue.amount_left(r.room, a.name), a.steps) as step, cardinality(a.steps) as steps,
             r.mask, null::int as number
      from asked a cross join hwqueue.idle_rooms(p_none, p_now, p_shard) r
      where p_idle
      union all
      select a.name, width_bucket(hwqueue.left_on(n, u, a.name), a.steps), cardinality(a.steps), null, k.number
      from hwqueue.node_numbers(p_shard) k
      join hwqueue.node n on n.shard_id = p_shard and n.node_id = k.node_id
      join hwqueue.newest_loads(p_shard) u on u.node_id = k.node_id
      cross join asked a
      where not p_idle
    ) t
    where t.step < t.steps
    group by t.name, t.step
  )
  select a.name, s.amount, case when p_idle then ~p_none else p_open end & ~bit_or(t.mask)
  from asked a
  cross join lateral unnest(a.steps) with ordinality s(amount, step)
  join short t on t.name = a.name and t.step < s.step
  group by a.name, s.amount
$$;
