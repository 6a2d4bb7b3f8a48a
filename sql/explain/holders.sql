-- Who holds what a lease wants: running leases, at most five of each, the longest running first:
-- [{"lease_id", "task", "queue", "service_id", "node", "since", "expires_at", "stopping", "holds"}].

-- Claims as such a list; p_amounts: with what they have set aside.
create or replace function hwqueue.holder_list(p_leases uuid[], p_amounts boolean, p_now timestamptz, p_shard int) returns jsonb
language sql stable
as $$
  select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('lease_id', c.lease_id, 'task', k.task_name, 'queue', q.name, 'service_id', k.service_id,
           'node', n.name, 'since', c.claimed_at, 'expires_at', c.expires_at, 'stopping', nullif(c.stop_requested_at <= p_now is true, false),
           'holds', case when p_amounts then hwqueue.resource_words(jsonb_strip_nulls(jsonb_build_object(
             'cpu_milli', c.assignment -> 'cpu_milli', 'memory_mib', c.assignment -> 'memory_mib',
             'gpu_milli', (c.assignment ->> 'gpu_milli')::int * jsonb_array_length(c.assignment -> 'gpus')))
             || coalesce(c.assignment -> 'custom', '{}')) end)) order by c.claimed_at, c.lease_id), '[]')
  from hwqueue.claim c
  join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
  join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id
  join hwqueue.node n on n.shard_id = p_shard and n.node_id = c.node_id
  where c.shard_id = p_shard and c.lease_id = any (p_leases)
$$;

-- Those that a term selects in the same place as a node.
create or replace function hwqueue.term_holders(p_spec jsonb, p_domain text, p_node hwqueue.node, p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
declare
  v_classes bigint[] := hwqueue.selected_classes(p_spec, p_shard);
  v_lease uuid := (p_spec #>> '{all,0,lease}')::uuid;
begin
  return hwqueue.holder_list(array(
    select c.lease_id
    from hwqueue.node n
    join hwqueue.claim c on c.shard_id = p_shard and c.node_id = n.node_id
    where n.shard_id = p_shard and c.class_id = any (v_classes) and coalesce(c.lease_id = v_lease, true)
      and hwqueue.domain_value(p_domain, n.node_id, n.rack, n.labels)
        = hwqueue.domain_value(p_domain, p_node.node_id, p_node.rack, p_node.labels)
    order by c.claimed_at, c.lease_id limit 5), false, p_now, p_shard);
end
$$;

-- Those that keep a lease of a class out of a node's place in a domain, since they require to be away from such leases.
create or replace function hwqueue.away_holders(p_class hwqueue.placement_class, p_lease uuid, p_domain text, p_node hwqueue.node, p_now timestamptz, p_shard int)
returns jsonb
language plpgsql stable
as $$
declare
  v_there uuid[] := array(
    select n.node_id from hwqueue.node n
    where n.shard_id = p_shard and hwqueue.domain_value(p_domain, n.node_id, n.rack, n.labels)
      = hwqueue.domain_value(p_domain, p_node.node_id, p_node.rack, p_node.labels));
begin
  return hwqueue.holder_list(array(
    select c.lease_id
    from hwqueue.claim c
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id and k.terms <> '[]'
    where c.shard_id = p_shard and c.node_id = any (v_there)
      and exists (
        select 1 from jsonb_array_elements(k.terms) t
        where t.value #>> '{spec,use}' = 'away' and hwqueue.term_domain(t.value -> 'spec', p_shard) = p_domain
          and (hwqueue.term_selects(t.value -> 'spec', p_class) or (t.value #>> '{spec,all,0,lease}')::uuid = p_lease))
    order by c.claimed_at, c.lease_id limit 5), false, p_now, p_shard);
end
$$;
