-- Vouches that a node belongs to a trust domain, until p_expires_at if that is given: leases that require {"trust": domain} may run there.
-- Domains are compared byte for byte. Attesting it again sets another expiry. Who did it is noted.
-- It holds for the instance that is registered: when another one registers it is suspended until confirm_node, or until it is attested
-- again. With p_any_instance it holds for every instance that the node's login registers, as when each node has a login of its own.
-- Locks: node_state. Raises: QHN01, QHA01, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.attest_node(p_node uuid, p_domain text, p_expires_at timestamptz default null,
                                               p_any_instance boolean default false, p_shard int default 0)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_now timestamptz;
  v_expires_at timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.check_trust_domain(p_domain);
  perform hwqueue.lock_node(p_node, null, p_shard);
  v_node := hwqueue.read_node(p_node, p_shard);
  v_now := hwqueue.clock();
  v_expires_at := hwqueue.check_expiry(p_expires_at, v_now);
  insert into hwqueue.attestation as a (shard_id, node_id, domain, expires_at, attested_at, attested_by, any_instance)
  values (p_shard, p_node, p_domain, v_expires_at, v_now, session_user, coalesce(p_any_instance, false))
  on conflict (shard_id, node_id, domain) do update
  set expires_at = excluded.expires_at, attested_at = excluded.attested_at, attested_by = excluded.attested_by,
      any_instance = excluded.any_instance, suspended_at = null, suspended_why = null;
  perform hwqueue.note_attestations(p_node, p_shard);
  perform hwqueue.note_event('node_attested', format('node %s is attested for %s', v_node.name, to_json(p_domain)), p_shard,
    jsonb_build_object('domain', p_domain, 'expires_at', v_expires_at) || case when p_any_instance then '{"any_instance": true}'::jsonb else '{}' end,
    p_node => p_node);
end
$$;

-- Ends an attestation. Like a no_execute taint: running leases whose requirements the node does not meet without it are asked to stop at once.
-- Gives whether there was one.
-- Locks: node_state, then the claims by lease_id. Raises: QHN01, QHN06 busy, QHA01, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.revoke_attestation(p_node uuid, p_domain text, p_shard int default 0) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_attested text[];
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.check_trust_domain(p_domain);
  perform hwqueue.await_node(p_node, p_shard);
  perform hwqueue.lock_node(p_node, null, p_shard), hwqueue.read_node(p_node, p_shard);
  delete from hwqueue.attestation a where a.shard_id = p_shard and a.node_id = p_node and a.domain = p_domain;
  if not found then
    return false;
  end if;
  perform hwqueue.note_attestations(p_node, p_shard);
  v_node := hwqueue.read_node(p_node, p_shard);
  perform hwqueue.note_event('node_attestation_revoked', format('node %s is no longer attested for %s', v_node.name, to_json(p_domain)), p_shard,
    jsonb_build_object('domain', p_domain), p_node => p_node);
  perform hwqueue.lock_claims(p_node, p_shard);
  v_now := hwqueue.clock();
  v_attested := hwqueue.attested_at(v_node, v_now);
  perform hwqueue.ask_to_stop(p_node, array(
    select c.lease_id
    from hwqueue.claim c
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
    where c.shard_id = p_shard and c.node_id = p_node and p_domain = any (k.trusts)
      and not hwqueue.still_suits(k.class_id, v_node, v_attested, p_shard)
  ), v_now, format('trust %s is revoked', to_json(p_domain)), v_now, p_shard);
  return true;
end
$$;

-- Refuses what can be no trust domain. Raises: QHA01.
create or replace function hwqueue.check_trust_domain(p_domain text) returns void
language plpgsql immutable
as $$
begin
  if (octet_length(convert_to(p_domain, 'UTF8')) between 1 and 255) is not true then
    perform hwqueue.refuse('QHA01', 'p_domain must be text of 1 to 255 bytes', jsonb_build_object('field', 'p_domain'),
      'give the name that leases require with {"trust": ...}');
  end if;
end
$$;

-- Copies a node's attestations that are not suspended to where claims read them; what was judged with the old ones is judged again.
-- Locks: node_state is held by the caller.
create or replace function hwqueue.note_attestations(p_node uuid, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.node n
  set (attested, attested_until) = (
    select coalesce(array_agg(a.domain order by a.domain), '{}'),
           coalesce(array_agg(coalesce(a.expires_at, 'infinity') order by a.domain), '{}')
    from hwqueue.attestation a where a.shard_id = p_shard and a.node_id = p_node and a.suspended_at is null)
  where n.shard_id = p_shard and n.node_id = p_node;
  perform hwqueue.forget_node(p_node, p_shard);
end
$$;
