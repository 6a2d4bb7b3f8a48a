-- Puts a taint {"key", "value"?, "effect"} on a node; of the same key and effect there is one, so another value replaces it. Leases that
-- do not tolerate it do not come there any more; with no_execute those that run there are asked to stop as well: at once, or when the
-- seconds of their toleration are over.
-- Locks: its profile, for key share; node_state; the claims by lease_id. Raises: QHN01, QHN06 busy, QHA01, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.taint_node(p_node uuid, p_taint jsonb, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_taint jsonb;
begin
  perform hwqueue.require_all_tenants();
  v_taint := hwqueue.parse_taint(p_taint, 'p_taint');
  perform hwqueue.require_read_committed();
  perform hwqueue.edit_operator_taints(p_node, v_taint, v_taint ->> 'key', v_taint ->> 'effect', p_shard);
end
$$;

-- Takes an operator's taints of a key (with p_effect: of this effect alone) off a node; those that the node registered with stay. Claims
-- that were to stop later because of it may stay; those that have been asked stay asked. Gives how many taints it took off.
-- Locks: its profile, for key share; node_state; the claims by lease_id. Raises: QHN01, QHN06 busy, QHA01, QHA02, QHA03. Idempotent: yes.
create or replace function hwqueue.untaint_node(p_node uuid, p_key text, p_effect text default null, p_shard int default 0) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  if p_key is null then
    perform hwqueue.refuse('QHA01', 'p_key must not be null', jsonb_build_object('field', 'p_key'), 'name the key of the taint');
  elsif p_effect is not null then
    perform hwqueue.check_taint_effect(p_effect, 'p_effect');
  end if;
  return hwqueue.edit_operator_taints(p_node, null, p_key, p_effect, p_shard);
end
$$;

-- Replaces an operator's taints of a key and effect (null: any) by p_taint (null: by none); gives how many there were.
-- Locks, raises: as taint_node. Idempotent: yes.
create or replace function hwqueue.edit_operator_taints(p_node uuid, p_taint jsonb, p_key text, p_effect text, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_before hwqueue.node;
  v_node hwqueue.node;
  v_now timestamptz;
  v_count int;
begin
  loop
    v_before := hwqueue.read_node(p_node, p_shard);
    -- before the lock: it may wait for a registration of such a node
    v_node := hwqueue.with_taint(v_before, p_taint, p_key, p_effect, hwqueue.clock(), p_shard);
    if hwqueue.has_no_execute(v_before) or hwqueue.has_no_execute(v_node) then
      perform hwqueue.await_node(p_node, p_shard);
    end if;
    begin
      perform hwqueue.lock_node(p_node, null, p_shard);
      exit when hwqueue.read_node(p_node, p_shard) is not distinct from v_before;
      perform hwqueue.give_up();
    exception when sqlstate 'HWX01' then  -- edited since: once more
    end;
  end loop;
  v_now := hwqueue.clock();
  if jsonb_array_length(v_node.operator_taints) > 100 then
    perform hwqueue.refuse('QHA01', format('node %s has 100 taints already', p_node), jsonb_build_object('field', 'p_taint'),
      'take off one that is not needed any more');
  end if;
  update hwqueue.node n
  set operator_taints = v_node.operator_taints, profile_id = v_node.profile_id
  where n.shard_id = p_shard and n.node_id = p_node;
  if v_node.profile_id <> v_before.profile_id then
    perform hwqueue.forget_node(p_node, p_shard);
  end if;
  if hwqueue.has_no_execute(v_before) or hwqueue.has_no_execute(v_node) then
    perform hwqueue.set_taint_stops(v_node, hwqueue.lock_claims(p_node, p_shard), v_now, p_shard);
  end if;
  v_count := (select count(*) from jsonb_array_elements(v_before.operator_taints) t
              where t ->> 'key' = p_key and (p_effect is null or t ->> 'effect' = p_effect));
  if v_node.operator_taints <> v_before.operator_taints then
    perform hwqueue.note_edit(p_node, p_shard);
    perform hwqueue.note_event(case when p_taint is not null then 'node_tainted' else 'node_untainted' end,
      case when p_taint is not null then format('node %s is tainted %s', v_node.name, hwqueue.taint_text(p_taint))
           else format('%s taints %s are off node %s', v_count, to_json(p_key), v_node.name) end,
      p_shard, coalesce(p_taint, jsonb_build_object('key', p_key, 'effect', p_effect)), p_node => p_node);
  end if;
  return v_count;
end
$$;

-- A node as it is with such operators' taints, and the profile that it has then.
-- Locks: the profile, for key share.
create or replace function hwqueue.with_taint(p_node hwqueue.node, p_taint jsonb, p_key text, p_effect text, p_now timestamptz, p_shard int)
returns hwqueue.node
language plpgsql volatile
as $$
declare
  v_node hwqueue.node := p_node;
begin
  v_node.operator_taints := hwqueue.date_taints(hwqueue.normal_set(
    coalesce((select jsonb_agg(t - 'since') from jsonb_array_elements(p_node.operator_taints) t
              where t ->> 'key' <> p_key or t ->> 'effect' <> p_effect), '[]')
    || coalesce(p_taint, '[]')), p_node.operator_taints, p_now);
  v_node.profile_id := hwqueue.find_profile(v_node, p_now, p_shard);
  return v_node;
end
$$;
