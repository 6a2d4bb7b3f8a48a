-- Classes that ask the same, with one of them to speak for all.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.class_asks(p_class_ids bigint[], p_shard int) returns table (ask_id bigint, class_ids bigint[], class hwqueue.placement_class)
language sql stable
as $$
  select c.class_id, a.class_ids, c
  from (
    select min(x.class_id) as class_id, array_agg(x.class_id) as class_ids
    from hwqueue.placement_class x
    where x.shard_id = p_shard and x.class_id = any (p_class_ids)
    group by x.required, x.tolerate, x.cpu_milli, x.memory_mib, x.gpu_count, x.gpu_milli, x.gpu_wanted, x.custom, x.cpu_isolation, x.gpu_exclusivity
  ) a
  join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = a.class_id
$$;

-- The nodes none of whose taints keeps leases with these tolerations off, as bit strings (numbered_nodes).
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.toleration_masks(p_tolerate jsonb[], p_none bit varying, p_now timestamptz, p_shard int)
returns table (tolerate jsonb, mask bit varying)
language sql stable
as $$
  with tainted as materialized (  -- profiles that differ in taints
    select p.taints, bit_or(set_bit(p_none, n.number, 1)) as mask
    from hwqueue.numbered_nodes(p_now, p_shard) n
    join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = (n.node).profile_id
    group by p.taints
  )
  select t, coalesce(bit_or(x.mask), p_none)
  from unnest(p_tolerate) t
  left join tainted x on x.taints = '[]' or hwqueue.barring_taints(x.taints, t) = '[]'
  group by t
$$;

-- The nodes that meet each part of what classes ask, as bit strings (numbered_nodes): a row for each requirement, for the taints, the isolation
-- classes and the capacity. A class may run where all of its parts are met: these are the parts that suits and class_shortage have, asked of
-- many classes and nodes at once. room: those of them that have room now, of capacity only; p_open: where that is of interest.
-- A part that every node meets may be left out. mask is null where it is not known (expr_masks).
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.class_parts(p_class_ids bigint[], p_open bit varying, p_none bit varying, p_now timestamptz, p_shard int)
returns table (ask_id bigint, part text, expr jsonb, mask bit varying, room bit varying)
language sql stable
as $$
  with ask as materialized (
    select a.ask_id, a.class from hwqueue.class_asks(p_class_ids, p_shard) a
  ), node as materialized (
    select n.number, n.node from hwqueue.numbered_nodes(p_now, p_shard) n
  ), required as materialized (
    select a.ask_id, e.value as expr from ask a cross join lateral jsonb_array_elements((a.class).required) e
  ), manner as materialized (  -- nodes that are alike in what isolation they honour
    select row_number() over () as manner_id, m.*
    from (select (n.node).cpu_isolation, (n.node).gpu_exclusivity, (n.node).default_cpu_isolation, (n.node).gpu_share_mode,
                 bit_or(set_bit(p_none, n.number, 1)) as mask
          from node n group by 1, 2, 3, 4) m
  ), need as materialized (
    select a.ask_id, m.manner_id, d.name, d.amount
    from ask a cross join manner m
    cross join lateral (
      select hwqueue.cpu_isolation_on((a.class).cpu_isolation, m.default_cpu_isolation) as cpu,
             hwqueue.gpu_exclusivity_on((a.class).gpu_exclusivity, m.gpu_share_mode) as gpu) i
    cross join lateral hwqueue.needed_amounts(hwqueue.cpu_needed((a.class).cpu_milli, i.cpu), (a.class).memory_mib, (a.class).gpu_count,
                                              (a.class).gpu_milli, (a.class).custom, i.cpu, i.gpu) d
  ), enough as materialized (
    select t.name, t.amount, t.mask, r.mask as room
    from (select array_agg(d.name) as names, array_agg(d.amount) as amounts from (select distinct x.name, x.amount from need x) d) l
    cross join lateral hwqueue.amount_masks(l.names, l.amounts, true, p_open, p_none, p_now, p_shard) t
    join lateral hwqueue.amount_masks(l.names, l.amounts, false, p_open, p_none, p_now, p_shard) r on r.name = t.name and r.amount = t.amount
  ), device as (  -- of classes that name devices: only nodes that have them count, and each by itself
    select w.ask_id, coalesce(bit_or(set_bit(p_none, n.number, 1)) filter (
             where hwqueue.class_shortage(w.class, n.node, hwqueue.idle_load(n.node)) = 0
               and not hwqueue.has_isolation_conflict(w.class, (n.node).cpu_isolation, (n.node).gpu_exclusivity, (n.node).gpu_share_mode,
                                                      (n.node).gpu_ids, (n.node).gpu_parents)), p_none) as mask,
           coalesce(bit_or(set_bit(p_none, n.number, 1)) filter (
             where hwqueue.class_shortage(w.class, n.node, hwqueue.read_load((n.node).node_id, p_shard)) = 0), p_none) as room
    from (select a.ask_id, a.class, u.id from ask a cross join lateral unnest((a.class).gpu_wanted) u(id)) w
    join (select i.id, x.number, x.node from node x cross join lateral unnest((x.node).resources || (x.node).gpu_ids) i(id)) n on n.id = w.id
    group by w.ask_id
  )
  select r.ask_id, 'require', r.expr, e.mask, null::bit varying
  from required r
  join hwqueue.expr_masks(array(select distinct x.expr from required x), p_none, p_now, p_shard) e on e.expr = r.expr
  union all
  select a.ask_id, 'taints', null, t.mask, null
  from ask a
  join hwqueue.toleration_masks(array(select distinct (x.class).tolerate from ask x), p_none, p_now, p_shard) t on t.tolerate = (a.class).tolerate
  union all
  select a.ask_id, 'isolation', null, bit_or(case when i.is_met then m.mask else p_none end), null
  from ask a cross join manner m
  cross join lateral (
    -- the first for most, and cheap
    select (a.class).cpu_isolation is null and (a.class).gpu_exclusivity is null and m.gpu_share_mode = 'fractional'
           or not hwqueue.has_isolation_conflict(a.class, m.cpu_isolation, m.gpu_exclusivity, m.gpu_share_mode, '{}', '{}') as is_met) i
  group by a.ask_id having not bool_and(i.is_met)
  union all
  select c.ask_id, 'capacity', null, bit_or(c.mask & m.mask), bit_or(c.room & m.mask)
  from (select d.ask_id, d.manner_id, bit_and(e.mask) as mask, bit_and(e.room) as room
        from need d join enough e on e.name = d.name and e.amount = d.amount group by 1, 2) c
  join manner m on m.manner_id = c.manner_id
  group by c.ask_id
  union all
  select a.ask_id, 'device', null, coalesce(d.mask, p_none), coalesce(d.room, p_none)
  from ask a left join device d on d.ask_id = a.ask_id
  where (a.class).gpu_wanted <> '{}'
$$;
