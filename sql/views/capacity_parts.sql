-- The nodes whose isolation classes, capacity and devices do for each of these classes, as bit strings
-- (numbered_nodes): what has_isolation_conflict and class_shortage say, asked of many classes and nodes at
-- once. p_idle: of all nodes, as if nothing ran; else of those in p_open whether they have room now, by
-- capacity and devices alone. A part that every node meets may be left out. Bit strings of 10,000 nodes for
-- 10,000 classes: each operation on them counts. p_none: a zero for each node.
create or replace function hwqueue.capacity_parts(p_class_ids bigint[], p_idle boolean, p_open bit varying, p_none bit varying,
                                                  p_now timestamptz, p_shard int)
returns table (class_id bigint, part text, mask bit varying)
language sql stable
as $$
  with ask as materialized (
    select c.class_id, c as class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = any (p_class_ids)
  ), manner as materialized (  -- nodes that are alike in what isolation they honour
    select row_number() over () as manner_id, m.*, ~m.mask as others
    from (select case when p_idle then n.cpu_isolation end as cpu_isolation, case when p_idle then n.gpu_exclusivity end as gpu_exclusivity,
                 n.default_cpu_isolation, n.gpu_share_mode,
                 bit_or(set_bit(p_none, k.number, 1)) as mask
          from hwqueue.node_numbers(p_shard) k join hwqueue.node n on n.shard_id = p_shard and n.node_id = k.node_id
          group by 1, 2, 3, 4) m
  ), need as materialized (
    select a.class_id, m.manner_id, d.name, d.amount
    from ask a cross join manner m
    cross join lateral (
      select hwqueue.cpu_isolation_on((a.class).cpu_isolation, m.default_cpu_isolation) as cpu,
             hwqueue.gpu_exclusivity_on((a.class).gpu_exclusivity, m.gpu_share_mode) as gpu) i
    cross join lateral hwqueue.needed_amounts(hwqueue.cpu_needed((a.class).cpu_milli, i.cpu), (a.class).memory_mib, (a.class).gpu_count,
                                              (a.class).gpu_milli, (a.class).custom, i.cpu, i.gpu) d
  ), amount as materialized (
    select array_agg(d.name) as names, array_agg(d.amount) as amounts from (select distinct x.name, x.amount from need x) d
  ), enough as materialized (
    select t.name, t.amount, t.mask
    from amount l
    cross join lateral hwqueue.amount_masks(l.names, l.amounts, p_idle, p_open, p_none, p_now, p_shard) t
  ), wanted as (  -- of classes that name devices: only nodes that have them count, and each by itself
    select a.class_id, a.class, u.id from ask a cross join lateral unnest((a.class).gpu_wanted) u(id)
  ), device as (
    select w.class_id, coalesce(bit_or(set_bit(p_none, n.number, 1)) filter (
             where hwqueue.class_shortage(w.class, n.node,
                     case when p_idle then hwqueue.idle_load(n.node) else hwqueue.read_load((n.node).node_id, p_shard) end) = 0
               and not (p_idle and hwqueue.has_isolation_conflict(
                 w.class, (n.node).cpu_isolation, (n.node).gpu_exclusivity, (n.node).gpu_share_mode,
                 (n.node).gpu_ids, (n.node).gpu_parents))), p_none) as mask
    from wanted w
    join (
      select i.id, x.number, x.node
      from hwqueue.numbered_nodes(p_now, p_shard) x
      cross join lateral unnest((x.node).resources || (x.node).gpu_ids) i(id)
      where exists (select 1 from wanted)) n on n.id = w.id
    group by w.class_id
  )
  select a.class_id, 'isolation', ~bit_or(m.mask)
  from ask a cross join manner m
  -- asked only where there may be something: most classes and nodes know no isolation
  where p_idle and ((a.class).cpu_isolation is not null or (a.class).gpu_exclusivity is not null or m.gpu_share_mode <> 'fractional')
    and hwqueue.has_isolation_conflict(a.class, m.cpu_isolation, m.gpu_exclusivity, m.gpu_share_mode, '{}', '{}')
  group by a.class_id
  union all
  -- every node has enough of what is needed on nodes of its manner
  select d.class_id, 'capacity', bit_and(e.mask | m.others)
  from need d
  join enough e on e.name = d.name and e.amount = d.amount
  join manner m on m.manner_id = d.manner_id
  group by d.class_id
  union all
  select a.class_id, 'device', coalesce(d.mask, p_none)
  from ask a left join device d on d.class_id = a.class_id
  where (a.class).gpu_wanted <> '{}'
$$;
