-- Whether a node may run leases of a class, by what it is and not by what runs there. Without p_node: whether every node of its
-- profile may; classes that name nodes, resources or trust domains are asked with it. The one place that knows all static rules; claims
-- remember its answer, class_reasons says why not. p_attested: the trust domains that the node is attested for.
-- p_gpu_ids, p_gpu_parents: its devices, for a class that names one.
create or replace function hwqueue.suits(p_class hwqueue.placement_class, p_profile hwqueue.profile, p_node uuid, p_resources uuid[],
                                         p_attested text[] default '{}', p_gpu_ids uuid[] default '{}', p_gpu_parents uuid[] default '{}')
returns boolean
language sql immutable parallel safe
as $$
  select case when p_profile.left_out = '{}' then true else not hwqueue.mentions_label(p_class, p_profile.left_out) end
     and (p_profile.taints = '[]' or hwqueue.barring_taints(p_profile.taints, p_class.tolerate) = '[]')
     and hwqueue.exprs_hold(p_class.required, p_profile.labels, p_profile.rack, p_node, p_resources, null, p_attested)
     -- asked only where there may be something: most classes and nodes know no isolation
     and case when p_class.cpu_isolation is null and p_class.gpu_exclusivity is null and p_class.gpu_wanted = '{}'
                   and p_profile.gpu_share_mode = 'fractional' then true
         else not hwqueue.has_isolation_conflict(p_class, p_profile.cpu_isolation, p_profile.gpu_exclusivity, p_profile.gpu_share_mode,
                                                 p_gpu_ids, p_gpu_parents) end
$$;

-- Of these trust domains, each attested until its time, those that have not expired.
create or replace function hwqueue.still_attested(p_domains text[], p_until timestamptz[], p_now timestamptz) returns text[]
language sql immutable parallel safe
as $$ select array(select a.domain from unnest(p_domains, p_until) a(domain, until) where a.until > p_now) $$;

-- The trust domains that a node is attested for at a time; those of its attestations that have expired are not among them.
create or replace function hwqueue.attested_at(p_node hwqueue.node, p_now timestamptz) returns text[]
language plpgsql immutable parallel safe
as $$
begin
  return case when p_node.attested = '{}' then '{}' else  -- as of most nodes: every claim asks
    hwqueue.still_attested(p_node.attested, p_node.attested_until, p_now) end;
end
$$;

-- Whether a node may still run a class that mentions trust domains, now that only p_attested have not expired.
create or replace function hwqueue.still_suits(p_class_id bigint, p_node hwqueue.node, p_attested text[], p_shard int) returns boolean
language sql stable
as $$
  select hwqueue.exprs_hold(c.required, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids, null, p_attested)
  from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id
$$;
