-- What nodes have when nothing runs, once for all with the same capacity.
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
-- as if nothing ran; else of those in p_open, now. Amounts left and amounts asked are put into one order, largest first; what is
-- asked is met by all nodes before it.
-- p_none: a zero for each node. Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.amount_masks(p_names text[], p_amounts bigint[], p_idle boolean, p_open bit varying, p_none bit varying, p_now timestamptz,
                                                p_shard int)
returns table (name text, amount bigint, mask bit varying)
language sql stable
as $$
  with room as materialized (
    select * from hwqueue.idle_rooms(p_none, p_now, p_shard) where p_idle
    union all
    select hwqueue.node_headroom(n.node, u), set_bit(p_none, n.number, 1)
    from hwqueue.numbered_nodes(p_now, p_shard) n
    join hwqueue.newest_loads(p_shard) u on u.node_id = (n.node).node_id
    where not p_idle and get_bit(p_open, n.number) = 1
  ), asked as materialized (
    select distinct a.name, a.amount from unnest(p_names, p_amounts) a(name, amount)
  ), line as (
    select a.name, hwqueue.amount_left(r.room, a.name) as amount, bit_or(r.mask) as mask, false as is_asked
    from (select distinct x.name from asked x) a cross join room r group by 1, 2
    union all
    select a.name, a.amount, p_none, true from asked a
  )
  select l.name, l.amount, l.mask
  from (select x.name, x.amount, x.is_asked,
               bit_or(x.mask) over (partition by x.name order by x.amount desc, x.is_asked rows unbounded preceding) as mask
        from line x) l
  where l.is_asked
$$;
