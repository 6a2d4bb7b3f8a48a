-- What nodes have when nothing runs, once for all with the same capacity, and which nodes these are, as bit strings (numbered_nodes).
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.idle_rooms(p_none bit varying, p_now timestamptz, p_shard int) returns table (room hwqueue.headroom, mask bit varying)
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

-- The nodes that have at least so much of an amount, as bit strings (numbered_nodes), for each pair of p_names and p_amounts. p_idle: of all nodes
-- as if nothing ran; else of those in p_open, now. Each node goes to the largest of the amounts asked that it still has (a step); what has
-- that much, has less, too.
-- p_none: a zero for each node. Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.amount_masks(p_names text[], p_amounts bigint[], p_idle boolean, p_open bit varying, p_none bit varying, p_now timestamptz,
                                                p_shard int)
returns table (name text, amount bigint, mask bit varying)
language sql stable
as $$
  with room as materialized (
    select r.room, r.mask from hwqueue.idle_rooms(p_none, p_now, p_shard) r where p_idle
    union all
    select hwqueue.node_headroom(n.node, u), set_bit(p_none, n.number, 1)
    from hwqueue.numbered_nodes(p_now, p_shard) n
    join hwqueue.newest_loads(p_shard) u on u.node_id = (n.node).node_id
    where not p_idle and get_bit(p_open, n.number) = 1
  ), asked as materialized (
    select a.name, array_agg(distinct a.amount) as steps from unnest(p_names, p_amounts) a(name, amount) group by a.name
  ), reached as (
    select a.name, width_bucket(hwqueue.amount_left(r.room, a.name), a.steps) as step, bit_or(r.mask) as mask
    from asked a cross join room r group by 1, 2
  )
  select a.name, s.amount, bit_or(coalesce(r.mask, p_none)) over (partition by a.name order by s.step desc)
  from asked a
  cross join lateral unnest(a.steps) with ordinality s(amount, step)
  left join reached r on r.name = a.name and r.step = s.step
$$;
