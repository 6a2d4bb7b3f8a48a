-- What nodes have when nothing runs, once for all with the same capacity, and which nodes these are, as bit
-- strings (numbered_nodes).
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

-- What a node has left of an amount, as amount_left says of its headroom, by columns alone; null: only the
-- headroom tells. Views ask it of every node: one expression, which the planner inlines, and no whole rows.
create or replace function hwqueue.plainly_left(p_name text, p_cpu_milli bigint, p_memory_mib bigint, p_slots int, p_core_ids int[],
  p_gpu_ids uuid[], p_gpu_parents uuid[], p_cpu_used bigint, p_memory_used bigint, p_claim_count int, p_gpu_used int[])
returns bigint
language sql immutable parallel safe
as $$
  select case
    when p_name = 'cpu_milli' then coalesce(p_cpu_milli - p_cpu_used, 9223372036854775807)
    when p_name = 'memory_mib' then coalesce(p_memory_mib - p_memory_used, 9223372036854775807)
    when p_name = 'slots' then coalesce(p_slots - p_claim_count, 9223372036854775807)
    when p_name like 'core%' and p_core_ids = '{}' then 9223372036854775807
    when p_name like 'gpu%' and p_gpu_ids = '{}' then 0
    when p_name = 'gpu_whole' and p_gpu_parents = '{}' then cardinality(array_positions(p_gpu_used, 0)) end
$$;

-- The nodes that have at least so much of an amount, as bit strings (numbered_nodes), for each pair of
-- p_names and p_amounts; no row where all of them have. p_idle: of all nodes as if nothing ran; else of those
-- in p_open, now. Each node goes to the largest of the amounts asked that it still has (a step); those of all
-- steps below an amount have not enough of it. p_none: a zero for each node.
create or replace function hwqueue.amount_masks(p_names text[], p_amounts bigint[], p_idle boolean, p_open bit varying,
                                                p_none bit varying, p_now timestamptz, p_shard int)
returns table (name text, amount bigint, mask bit varying)
language sql stable
as $$
  with asked as materialized (
    select a.name, array_agg(distinct a.amount) as steps from unnest(p_names, p_amounts) a(name, amount) group by a.name
  ), plain as materialized (
    select a.name, k.number, k.node_id, hwqueue.plainly_left(a.name, n.cpu_milli, n.memory_mib, n.slots, n.core_ids, n.gpu_ids,
             n.gpu_parents, u.cpu_used, u.memory_used, u.claim_count, u.gpu_used) as amount
    from hwqueue.node_numbers(p_shard) k
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = k.node_id
    join hwqueue.newest_loads(p_shard) u on u.node_id = k.node_id
    cross join asked a
    where not p_idle
  ), short as materialized (
    select t.name, t.step, bit_or(coalesce(t.mask, set_bit(p_none, t.number, 1))) as mask
    from (
      select a.name, width_bucket(hwqueue.amount_left(r.room, a.name), a.steps) as step, cardinality(a.steps) as steps,
             r.mask, null::int as number
      from asked a cross join hwqueue.idle_rooms(p_none, p_now, p_shard) r
      where p_idle
      union all
      select p.name, width_bucket(p.amount, a.steps), cardinality(a.steps), null, p.number
      from plain p join asked a on a.name = p.name
      where p.amount is not null
      union all
      select p.name, width_bucket(hwqueue.amount_left(hwqueue.node_headroom(n, u), p.name), a.steps), cardinality(a.steps), null,
             p.number
      from plain p
      join asked a on a.name = p.name
      join hwqueue.node n on n.shard_id = p_shard and n.node_id = p.node_id
      join hwqueue.newest_loads(p_shard) u on u.node_id = p.node_id
      where p.amount is null
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
