-- Confirms a node's suspended attestations: its registered instance is trusted as the one before. With
-- p_instance_id only if that instance is the one that is registered. Returns how many there were.
-- Locks: node_state. Raises: QHN01, QHN03 another instance has registered since, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.confirm_node(p_node uuid, p_instance_id text default null, p_shard int default 0) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_domains text[];
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.lock_node(p_node, null, p_shard);
  v_node := hwqueue.read_node(p_node, p_shard);
  if v_node.instance_id <> p_instance_id then
    perform hwqueue.refuse('QHN03', format('node %s is registered by instance %s, not %s', v_node.name,
        to_json(v_node.instance_id), to_json(left(p_instance_id, 100))),
      jsonb_build_object('node_id', p_node, 'instance_id', v_node.instance_id),
      'look at the node again before you confirm it');
  end if;
  with confirmed as (
    update hwqueue.attestation a
    set suspended_at = null, suspended_why = null, attested_at = hwqueue.clock(), attested_by = session_user
    where a.shard_id = p_shard and a.node_id = p_node and a.suspended_at is not null
    returning a.domain
  )
  select array_agg(c.domain order by c.domain) into v_domains from confirmed c;
  if v_domains is not null then
    perform hwqueue.note_attestations(p_node, p_shard);
    perform hwqueue.note_event('node_confirmed',
      format('node %s is trusted again as instance %s', v_node.name, to_json(left(v_node.instance_id, 100))), p_shard,
      jsonb_build_object('domains', v_domains, 'instance_id', v_node.instance_id), p_node => p_node);
  end if;
  return coalesce(cardinality(v_domains), 0);
end
$$;

-- Suspends a node's attestations: claims do not count them until they are confirmed. Without p_all those stay
-- that hold for any instance. p_why completes "not attested since ...".
-- Locks: node_state is held by the caller.
create or replace function hwqueue.suspend_attestations(p_node hwqueue.node, p_all boolean, p_why text,
  p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_domains text[];
begin
  with suspended as (
    update hwqueue.attestation a set suspended_at = p_now, suspended_why = p_why
    where a.shard_id = p_shard and a.node_id = p_node.node_id and a.suspended_at is null
      and (p_all or not a.any_instance)
    returning a.domain
  )
  select array_agg(s.domain order by s.domain) into v_domains from suspended s;
  if v_domains is not null then
    perform hwqueue.note_attestations(p_node.node_id, p_shard);
    perform hwqueue.note_event('node_trust_suspended', format('node %s is not trusted since %s', p_node.name, p_why), p_shard,
      jsonb_build_object('domains', v_domains, 'instance_id', p_node.instance_id), p_node => p_node.node_id);
  end if;
end
$$;

-- Why a node is not attested for a domain that it was attested for; null: it was not.
create or replace function hwqueue.suspended_words(p_node uuid, p_domain text, p_shard int) returns text
language sql stable
as $$
  select format('trust %s is not attested since %s: hwqueue node confirm', to_json(a.domain), a.suspended_why)
  from hwqueue.attestation a
  where a.shard_id = p_shard and a.node_id = p_node and a.domain = p_domain and a.suspended_at is not null
$$;
