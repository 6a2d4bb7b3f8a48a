-- Sets of nodes as bit strings. Whether 10,000 classes suit 10,000 nodes is a hundred million questions; but
-- classes share what they ask, nodes share what they are, and "the nodes that meet this" is one bit a node.
-- What suits a class is then a few ANDs, how many nodes that are a count of bits. docs/explanation/views.md
-- tells the whole.

-- The numbers of the registered nodes of a shard, from 0: the same in every statement of a stable function.
create or replace function hwqueue.node_numbers(p_shard int) returns table (number int, node_id uuid)
language sql stable
as $$
  select (row_number() over (order by n.node_id))::int - 1, n.node_id
  from hwqueue.node n where n.shard_id = p_shard and n.deregistered_at is null
$$;

-- The nodes with their numbers. attested: trust domains that it is vouched for now. The ids are sorted alone,
-- which is cheaper than whole rows.
create or replace function hwqueue.numbered_nodes(p_now timestamptz, p_shard int)
returns table (number int, node hwqueue.node, attested text[], is_live boolean)
language sql stable
as $$
  select k.number, n, case when n.attested = '{}' then n.attested else hwqueue.attested_at(n, p_now) end,
         hwqueue.is_live(n, s, p_now)
  from hwqueue.node_numbers(p_shard) k
  join hwqueue.node n on n.shard_id = p_shard and n.node_id = k.node_id
  join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = k.node_id
$$;

-- The registered nodes as bit strings, as numbered_nodes numbers them.
--   none: a zero for each; live: those that give signs of life; open: those of them that are not cordoned.
--   digest: of all that decides which nodes suit a class: what each registered as, its operator's taints, what
--     it announced to serve, what it is vouched for now. What was found out with one digest holds wherever
--     it is the same. Who is live or cordoned is not part of it: that is counted at each read (class_match).
create or replace function hwqueue.look_at_nodes(p_now timestamptz, p_shard int) returns hwqueue.fleet_look
language plpgsql stable
  -- all nodes: by hash, whatever the statistics say
  set plan_cache_mode = force_custom_plan set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on
  set jit = off
as $$
declare
  v_look hwqueue.fleet_look;
begin
  with node as (
    select k.node_id, l.is_live, l.is_live and n.cordoned_at is null as is_open, hash_record_extended(row(
             n.node_id, n.profile_id, n.labels, n.rack, n.taints, n.operator_taints, n.resources, n.cpu_milli, n.memory_mib, n.custom,
             n.slots, n.gpu_ids, n.gpu_parents, n.core_ids, n.core_numa, n.cpu_isolation, n.gpu_exclusivity, n.default_cpu_isolation,
             n.gpu_share_mode, v.queues, v.tasks,
             case when n.attested <> '{}' then hwqueue.still_attested(n.attested, n.attested_until, p_now) end), 0) as hash
    from hwqueue.node_numbers(p_shard) k
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = k.node_id
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = k.node_id
    left join hwqueue.served v on v.shard_id = p_shard and v.node_id = k.node_id
    cross join lateral (select hwqueue.is_live(n, s, p_now) as is_live) l
    order by k.number
  )
  select count(*), coalesce(array_agg(k.node_id), '{}'), repeat('0', count(*)::int),
         coalesce(string_agg(case when k.is_live then '1' else '0' end, ''), ''),
         coalesce(string_agg(case when k.is_open then '1' else '0' end, ''), ''), coalesce(bit_xor(k.hash), 0)
  into v_look.registered, v_look.node_ids, v_look.none, v_look.live, v_look.open, v_look.digest
  from node k;
  return v_look;
end
$$;

-- What is in use on each node now: the newest versions.
create or replace function hwqueue.newest_loads(p_shard int) returns setof hwqueue.node_load
language sql stable
as $$
  select distinct on (u.node_id) u.* from hwqueue.node_load u where u.shard_id = p_shard order by u.node_id, u.version desc
$$;
