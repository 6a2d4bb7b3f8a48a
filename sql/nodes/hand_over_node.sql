-- Hands a node and its claims over to another login or role: from then on only its members may act for the
-- node. For login roles that change (a role that all of them have), for a role that is gone, and for a
-- machine that changes hands. What runs there goes on. Its attestations are suspended until confirm_node.
-- Locks: node_state, then the claims by lease_id. Raises: QHN01, QHN06 busy, QHA01 no such role, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.hand_over_node(p_node uuid, p_login text, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_state hwqueue.node_state;
  v_node hwqueue.node;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  if not exists (select from pg_catalog.pg_roles r where r.rolname = p_login) then
    perform hwqueue.refuse('QHA01',
      format('role %s does not exist on this server', coalesce(to_json(left(p_login, 100))::text, 'null')),
      jsonb_build_object('field', 'p_login'), 'name the login of the node''s worker, or a role that its logins have');
  end if;
  perform hwqueue.await_node(p_node, p_shard);
  v_state := hwqueue.lock_node(p_node, null, p_shard);
  v_node := hwqueue.read_node(p_node, p_shard);
  if v_state.login is not distinct from p_login then
    return;
  end if;
  perform hwqueue.lock_claims(p_node, p_shard), hwqueue.set_login(p_node, p_login, p_shard);
  perform hwqueue.note_event('node_handed_over', format('node %s belongs to login %s', v_node.name, to_json(p_login)), p_shard,
    jsonb_build_object('from', v_state.login, 'to', p_login), p_node => p_node);
  perform hwqueue.suspend_attestations(v_node, true, format('it was handed over to login %s', to_json(p_login)),
    hwqueue.clock(), p_shard);
end
$$;

-- Writes to which login a node and its claims belong.
-- Locks: node_state is held by the caller; the claims.
create or replace function hwqueue.set_login(p_node uuid, p_login text, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.node_state s set login = p_login where s.shard_id = p_shard and s.node_id = p_node;
  update hwqueue.claim c set login = p_login where c.shard_id = p_shard and c.node_id = p_node;
end
$$;
