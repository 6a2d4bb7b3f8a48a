-- What operators do to nodes: cordon, taint, stop, attest.
--
-- The functions of api/nodes check rights and arguments and call this module. An example: taint_node
-- puts maintenance=yes:no_execute on gpu-1. edit_operator_taints finds the profile that the node has
-- then, locks the node, writes its taints, and set_stops (nodes/stops) asks the claims that do not
-- tolerate it to stop.
--
-- Invariant: a session finds a profile before it locks a node, and waits for claims before it holds any
-- (await_node). Otherwise an operator and a registration could deadlock.

-- Locks a node that an operator edits, and returns its row.
-- Locks: node_state. Raises: QHN01, QHA02, QHA03.
create or replace function hwqueue.hold_node(p_node uuid) returns hwqueue.node
language plpgsql volatile
as $$
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.lock_node(p_node, null);
  return hwqueue.read_node(p_node);
end
$$;

-- Suspends a node's attestations: claims ignore them until they are confirmed. Without p_all those stay
-- that hold for any instance. p_why completes "not attested since ...".
-- Locks: the caller holds node_state.
create or replace function hwqueue.suspend_attestations(p_node hwqueue.node, p_all boolean, p_why text,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_domains text[];
  v_suspended jsonb;
begin
  select array_agg(a.key order by a.key), jsonb_object_agg(a.key, a.value
           || jsonb_build_object('suspended_at', p_now, 'suspended_why', p_why))
  into v_domains, v_suspended
  from jsonb_each(p_node.attestations) a
  where not a.value ? 'suspended_at' and (p_all or a.value -> 'any_instance' = 'false');
  if v_domains is not null then
    perform hwqueue.write_attestations(p_node.node_id, p_node.attestations || v_suspended);
    perform hwqueue.note_event('node_trust_suspended', format('node %s is not trusted since %s', p_node.name,
      p_why),
      jsonb_build_object('domains', v_domains, 'instance_id', p_node.instance_id), p_node => p_node.node_id);
  end if;
end
$$;

-- Writes a node's attestations, with what claims read of those that are not suspended, and drops what was
-- judged with the old ones.
-- Locks: the caller holds node_state.
create or replace function hwqueue.write_attestations(p_node uuid, p_attestations jsonb) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.node n
  set attestations = p_attestations, (attested, attested_until) = (
    select coalesce(array_agg(a.key order by a.key), '{}'),
           coalesce(array_agg(coalesce((a.value ->> 'expires_at')::timestamptz, 'infinity') order by a.key),
             '{}')
    from jsonb_each(p_attestations) a where not a.value ? 'suspended_at')
  where n.node_id = p_node;
  perform hwqueue.forget_node(p_node);
end
$$;

-- Replaces an operator's taints of a key (null: those of tenants) and effect (null: any) by p_taint (null: by
-- none; a list of those of tenants). Returns how many there were.
-- Locks and raises as taint_node.
create or replace function hwqueue.edit_operator_taints(p_node uuid, p_taint jsonb, p_key text,
  p_effect text) returns int
language plpgsql volatile
as $$
declare
  v_before hwqueue.node;
  v_node hwqueue.node;
  v_now timestamptz;
  v_kept jsonb;
  v_count int;
begin
  loop
    v_before := hwqueue.read_node(p_node);
    v_kept := (
      select coalesce(jsonb_agg(t - 'since'), '[]') from jsonb_array_elements(v_before.operator_taints) t
      where t ->> 'key' <> p_key or t ->> 'effect' <> p_effect
        or p_key is null and not starts_with(t ->> 'key', 'tenant:'));
    -- before the lock: finding the profile may wait for a registration of such a node
    v_now := hwqueue.clock();
    v_node := v_before;
    v_node.operator_taints := hwqueue.date_taints(hwqueue.normal_set(v_kept || coalesce(p_taint, '[]')),
      v_before.operator_taints, v_now);
    v_node.profile_id := hwqueue.find_profile(v_node, v_now);
    if hwqueue.has_no_execute(v_before) or hwqueue.has_no_execute(v_node) then
      perform hwqueue.await_node(p_node);
    end if;
    begin
      perform hwqueue.lock_node(p_node, null);
      exit when hwqueue.read_node(p_node) is not distinct from v_before;
      perform hwqueue.abort_subtransaction();
    exception when sqlstate 'HWX01' then  -- edited since: try again
    end;
  end loop;
  v_now := hwqueue.clock();
  if jsonb_array_length(v_node.operator_taints) > 100 then
    perform hwqueue.refuse('QHA01', format('node %s has 100 taints already', p_node),
        jsonb_build_object('field', 'p_taint'),
      'take off one that is not needed any more');
  end if;
  update hwqueue.node n
  set operator_taints = v_node.operator_taints, profile_id = v_node.profile_id
  where n.node_id = p_node;
  if v_node.profile_id <> v_before.profile_id then
    perform hwqueue.forget_node(p_node);
  end if;
  if hwqueue.has_no_execute(v_before) or hwqueue.has_no_execute(v_node) then
    perform hwqueue.set_stops(v_node, hwqueue.lock_claims(p_node), v_now);
    perform hwqueue.wake_node(p_node, max(c.login)) from hwqueue.claim c
    where c.node_id = p_node and c.stop_requested_at = v_now;
  end if;
  v_count := jsonb_array_length(v_before.operator_taints) - jsonb_array_length(v_kept);
  if v_node.operator_taints <> v_before.operator_taints then
    perform hwqueue.refresh_node_state(p_node);
    perform hwqueue.note_event(case when p_key is null then 'node_reserved'
        when p_taint is not null then 'node_tainted' else 'node_untainted' end,
      case when p_key is null then format('node %s is for %s', v_node.name,
          coalesce('tenants ' || (select string_agg(substr(t ->> 'key', 8), ', ' order by t ->> 'key')
            from jsonb_array_elements(p_taint) t), 'all tenants'))
        when p_taint is not null then format('node %s is tainted %s', v_node.name,
          hwqueue.taint_text(p_taint))
           else format('%s taints %s are off node %s', v_count, to_json(p_key), v_node.name) end,
           case when p_key is null then jsonb_build_object('taints', p_taint)
             else coalesce(p_taint, jsonb_build_object('key', p_key, 'effect', p_effect)) end,
           p_node => p_node);
  end if;
  return v_count;
end
$$;

-- True if a node has what an operator set: a cordon, a taint or an attestation. A node that leaves by
-- itself would lose it in the end.
create or replace function hwqueue.is_kept_by_operators(p_node hwqueue.node) returns boolean
language sql stable
as $$
  select p_node.cordoned_at is not null or p_node.operator_taints <> '[]' or p_node.attestations <> '{}'
$$;

-- Takes a node out of the fleet: what it serves and what was judged for it is dropped. Its row, its epoch
-- and its login stay for 30 days.
-- Locks: the caller holds node_state.
create or replace function hwqueue.leave_fleet(p_node hwqueue.node, p_why text, p_detail jsonb,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.node n
  set deregistered_at = p_now, queues = null, tasks = null, concurrency = null, hears_deaths = false,
      declared = null
  where n.node_id = p_node.node_id;
  perform hwqueue.write_attestations(p_node.node_id, p_node.attestations);
  perform hwqueue.refresh_node_state(p_node.node_id);
  perform hwqueue.note_event('node_deregistered', format('node %s is deregistered, %s', p_node.name, p_why),
    p_detail, p_node => p_node.node_id);
end
$$;
