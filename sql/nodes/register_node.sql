-- Registers a node, or changes what it is. The same instance_id keeps its epoch; another one raises it, fences the older
-- instance and ends its claims at once (one attempt used), unless keep_claims. Labels judged anew from the next claim on. Taints in
-- the spec are the node's own, and replace those it had; a new one with no_execute counts for what runs there as in taint_node.
-- The node belongs to the login that registers it first: no other may register over it, unless it has that role. Attestations are
-- suspended when another instance registers, or the first login since it was deregistered.
-- Locks: its profile, for key share; node_state; the claims by lease_id; its name. Raises: QHA01, QHN02 name in use,
-- QHN04 another login's, QHN06 busy, QHA02. Idempotent: yes.
create or replace function hwqueue.register_node(p_node uuid, p_spec jsonb, p_shard int default 0) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_old hwqueue.node;
  v_state hwqueue.node_state;
  v_epoch bigint;
  v_keep boolean;
  v_known boolean;
  v_ended int := 0;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_shard(p_shard);
  if p_node is null then
    perform hwqueue.refuse('QHA01', 'p_node must not be null', jsonb_build_object('field', 'p_node'), 'give the node a stable uuid');
  end if;
  v_node := hwqueue.parse_node_spec(p_node, p_spec, p_shard);
  v_keep := coalesce(hwqueue.json_boolean(p_spec -> 'keep_claims', 'spec.keep_claims'), false);
  v_node.operator_taints := hwqueue.operator_taints(p_node, p_shard);
  -- before the lock: it may wait for another registration of such a node
  v_node.profile_id := hwqueue.find_profile(v_node, hwqueue.clock(), p_shard);
  insert into hwqueue.node_state (shard_id, node_id, node_epoch, seen_at, login) values (p_shard, p_node, 1, hwqueue.clock(), session_user)
  on conflict do nothing;
  v_known := not found;  -- node_state outlives a node that was deregistered and pruned: its epochs stay fenced
  if v_known then
    perform hwqueue.await_node(p_node, p_shard);
  end if;
  loop  -- nobody may wait for a profile with a node in hand
    begin
      v_state := hwqueue.lock_node(p_node, null, p_shard);
      exit when hwqueue.operator_taints(p_node, p_shard) = v_node.operator_taints;
      perform hwqueue.give_up();
    exception when sqlstate 'HWX01' then  -- tainted since: it is of another profile
      v_node.operator_taints := hwqueue.operator_taints(p_node, p_shard);
      v_node.profile_id := hwqueue.find_profile(v_node, hwqueue.clock(), p_shard);
    end;
  end loop;
  perform hwqueue.check_login(p_node, v_state.login, p_shard);
  select n.* into v_old from hwqueue.node n where n.shard_id = p_shard and n.node_id = p_node;
  v_now := hwqueue.clock();
  v_epoch := v_state.node_epoch + case
    when v_known and (v_old.instance_id is distinct from v_node.instance_id or v_old.deregistered_at is not null) then 1 else 0 end;
  v_node.anchors := hwqueue.profile_anchors(v_node.labels, v_node.rack) || hwqueue.node_anchors(p_node, v_node.resources || v_node.gpu_ids);
  v_node.registered_at := v_now;
  v_node.cordoned_at := v_old.cordoned_at;  -- a node cannot undo what an operator did
  v_node.drain_by := v_old.drain_by;
  v_node.attested := coalesce(v_old.attested, '{}');
  v_node.attested_until := coalesce(v_old.attested_until, '{}');
  v_node.taints := hwqueue.date_taints(v_node.taints, coalesce(v_old.taints, '[]'), v_now);
  delete from hwqueue.node n where n.shard_id = p_shard and n.node_id = p_node;
  insert into hwqueue.node select v_node.* on conflict do nothing;
  if not found then
    perform hwqueue.refuse('QHN02', format('the name %s belongs to another node', to_json(v_node.name)),
      jsonb_build_object('field', 'spec.name', 'name', v_node.name), 'choose another name, or deregister the other node');
  end if;
  if v_state.login is null then
    perform hwqueue.set_login(p_node, session_user, p_shard);
  end if;
  if v_state.login is null or v_epoch > v_state.node_epoch then
    perform hwqueue.suspend_attestations(v_node, v_state.login is null, format('it registered again as instance %s',
      to_json(left(v_node.instance_id, 100))), v_now, p_shard);
  end if;
  perform hwqueue.note_served(p_node, p_spec, p_shard);
  if v_epoch > 1 and not v_keep then
    v_ended := hwqueue.end_older_claims(p_node, v_epoch, v_now, p_shard);
  end if;
  perform hwqueue.recount_node(v_node, v_epoch, v_now, (v_old.profile_id, v_old.resources, v_old.gpu_ids, v_old.gpu_parents)
    is distinct from (v_node.profile_id, v_node.resources, v_node.gpu_ids, v_node.gpu_parents), p_shard);
  if hwqueue.has_no_execute(v_old) or hwqueue.has_no_execute(v_node) then
    perform hwqueue.set_taint_stops(v_node, hwqueue.lock_claims(p_node, p_shard), v_now, p_shard);
  end if;
  perform hwqueue.note_edit(p_node, p_shard);
  perform hwqueue.note_registration(v_node, v_old, v_epoch, v_ended, p_shard);
  return v_epoch;
end
$$;
