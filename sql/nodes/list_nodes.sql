-- Live: the last heartbeat or claim is within the node's timeout. Not immutable (days and daylight saving), or it would not be inlined.
create or replace function hwqueue.is_live(p_node hwqueue.node, p_state hwqueue.node_state, p_now timestamptz) returns boolean
language sql stable parallel safe
as $$ select p_state.seen_at + p_node.heartbeat_timeout > p_now $$;

-- Registered nodes with what they have and what of it is in use. taints: {"key", "value", "effect", "since", "by": "node"|"operator"};
-- attestations: {"domain", "expires_at", "attested_at", "attested_by", "any_instance", "suspended_at", "suspended_why"}, those that have
-- expired or are suspended as well. login: the role whose members may act for it; null: any worker. cores: {"core", "numa", "threads"} as
-- declared, and "milli_used" where they are counted. isolation: {"cpu", "gpu"}: classes honoured, {"default_cpu", "gpu_share_mode"}.
-- By name, a page at a time where p_limit says so: pass the last name of a page as p_after of the next.
-- Locks: none. Raises: QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.list_nodes(p_name text default null, p_node uuid default null, p_after text default null,
                                              p_limit int default null, p_shard int default 0)
returns table (node_id uuid, shard_id int, name text, node_epoch bigint, live boolean, seen_at timestamptz, cordoned boolean,
               draining boolean, labels jsonb, rack bigint, capacity jsonb, used jsonb, gpus jsonb, slots int, claims int,
               registered_at timestamptz, taints jsonb, attestations jsonb, cores jsonb, isolation jsonb,
               login text, instance_id text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select n.node_id, n.shard_id, n.name, s.node_epoch, hwqueue.is_live(n, s, t.now), s.seen_at, n.cordoned_at is not null,
         n.drain_by is not null, n.labels, n.rack,
         jsonb_strip_nulls(jsonb_build_object('cpu_milli', n.cpu_milli, 'memory_mib', n.memory_mib)) || n.custom,
         jsonb_build_object('cpu_milli', u.cpu_used, 'memory_mib', u.memory_used) || u.custom_used,
         coalesce((select jsonb_agg(jsonb_build_object('resource_id', g.id, 'model', g.model, 'memory_mib', g.memory, 'milli_used', g.used)
                                    || jsonb_strip_nulls(jsonb_build_object('parent_resource_id', g.parent)) order by g.ordinality)
                   from unnest(n.gpu_ids, n.gpu_models, n.gpu_memory_mib, u.gpu_used, n.gpu_parents) with ordinality
                          g(id, model, memory, used, parent, ordinality)), '[]'),
         n.slots,
         (select count(*)::int from hwqueue.claim c where c.shard_id = n.shard_id and c.node_id = n.node_id),
         n.registered_at,
         coalesce((select jsonb_agg(t.taint order by t.taint ->> 'key', t.taint ->> 'effect', t.taint ->> 'by') from (
           select x || '{"by": "node"}' as taint from jsonb_array_elements(n.taints) x
           union all select x || '{"by": "operator"}' from jsonb_array_elements(n.operator_taints) x) t), '[]'),
         coalesce((select jsonb_agg(jsonb_build_object('domain', a.domain, 'expires_at', a.expires_at, 'attested_at', a.attested_at,
                                                       'attested_by', a.attested_by, 'any_instance', a.any_instance,
                                                       'suspended_at', a.suspended_at, 'suspended_why', a.suspended_why) order by a.domain)
                   from hwqueue.attestation a where a.shard_id = n.shard_id and a.node_id = n.node_id), '[]'),
         coalesce((select jsonb_agg(jsonb_strip_nulls(c.core || jsonb_build_object('milli_used', u.core_used[c.ordinality])) order by c.ordinality)
                   from jsonb_array_elements(n.cores) with ordinality c(core, ordinality)), '[]'),
         jsonb_build_object('cpu', n.cpu_isolation, 'gpu', n.gpu_exclusivity, 'default_cpu', n.default_cpu_isolation,
                            'gpu_share_mode', n.gpu_share_mode),
         s.login, n.instance_id
  from (
    select o.* from hwqueue.node o
    where o.shard_id = p_shard and o.deregistered_at is null and (p_name is null or o.name = p_name)
      and (p_node is null or o.node_id = p_node) and (p_after is null or o.name > p_after)
    order by o.name limit hwqueue.checked_limit(p_limit)
  ) o
  join hwqueue.node n on n.shard_id = o.shard_id and n.node_id = o.node_id
  join hwqueue.node_state s on s.shard_id = n.shard_id and s.node_id = n.node_id
  cross join lateral hwqueue.read_load(n.node_id, p_shard) u
  cross join (select hwqueue.clock() as now) t
  order by n.name
$$;
