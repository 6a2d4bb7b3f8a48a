-- Public: registering nodes and operating them.
--
-- Workers register their node; operators cordon, drain, taint, attest and deregister nodes. An example:
-- before a driver update of gpu-1 an operator calls drain_node with ten minutes; claims stop by then,
-- and uncordon_node ends it.
--
-- Invariant: what an operator has set (cordon, drain, taints, attestations) survives a registration.
-- node_state is locked before the node's claims, and a command that may wait for claims waits
-- (await_node) before it locks anything.

-- Registers a node, or changes what it has, and returns its node epoch. The same instance_id keeps the
-- epoch. Another one raises it, fences the older instance and ends its claims at once (one attempt
-- used), unless keep_claims is true. The next claim judges changed labels. Taints in the spec are the
-- node's own, and replace those it had; a new one with no_execute applies to running leases, as in
-- taint_node. Everywhere tasks that suit the node book their room before others get any (spawn_everywhere).
-- Running leases with a requirement during execution that the node does not meet any more are asked to
-- stop, at once or after its grace. The node belongs to the login that registers it first: only its members
-- may register over it. Attestations are suspended when another instance registers, or the first login
-- after a deregistration. Locks: its profile, for key share; node_state; the claims by lease_id; its name.
-- Raises: QHA01, QHN02 name in use, QHN04 another login's, QHN06 busy, QHA02. Idempotent.
create or replace function hwqueue.register_node(p_node uuid, p_spec jsonb) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_node hwqueue.node;
  v_old hwqueue.node;
  v_state hwqueue.node_state;
  v_epoch bigint;
  v_keep boolean;
  v_known boolean;
  v_ended int := 0;
  v_bound uuid[];
  v_now timestamptz;
begin
  perform set_config('hwqueue.ended', '', true);  -- note_ended fills the list
  perform hwqueue.require_read_committed();
  if p_node is null then
    perform hwqueue.refuse_field('QHA01', 'p_node', 'must not be null', 'give the node a stable uuid');
  end if;
  v_node := hwqueue.parse_node_spec(p_node, p_spec);
  v_keep := coalesce(hwqueue.json_boolean(p_spec -> 'keep_claims', 'spec.keep_claims'), false);
  loop
    v_node.operator_taints := coalesce((
      select n.operator_taints from hwqueue.node n where n.node_id = p_node), '[]');
    -- found without the lock, since it may wait for a registration; else two could deadlock
    v_node.profile_id := hwqueue.find_profile(v_node, hwqueue.clock());
    v_known := coalesce(v_known, hwqueue.is_known_node(p_node));
    if v_known then
      perform hwqueue.await_node(p_node);
    end if;
    begin
      v_state := hwqueue.lock_node(p_node, null);
      select n.* into v_old from hwqueue.node n where n.node_id = p_node;
      exit when coalesce(v_old.operator_taints, '[]') = v_node.operator_taints;
      perform hwqueue.abort_subtransaction();
    exception when sqlstate 'HWX01' then  -- tainted since: it has another profile
    end;
  end loop;
  perform hwqueue.check_login(p_node, v_state.login);
  v_now := hwqueue.clock();
  v_epoch := v_state.node_epoch;
  if not v_known or v_old.instance_id is distinct from v_node.instance_id
    or v_old.deregistered_at is not null then
    -- above the epochs of all nodes that prune has deleted: one with the same id may have been among them,
    -- and its worker stays fenced. is_known_node has waited for such a prune, so this sees the floor that it
    -- wrote. Each later life of the server begins far higher: instances of the one before may have been lost
    select greatest(s.node_epoch_floor, case when v_known then v_epoch end,
      case when s.timeline is not null and s.generation <> g.generation  -- this life may not be noted yet
        then g.generation >> 22 end) + 1
    into v_epoch from hwqueue.installation s, hwqueue.this_generation() g (generation);
  end if;
  v_node.anchors := array(select a from hwqueue.anchors_of(v_node.labels, v_node.rack) a)
    || hwqueue.node_anchors(v_node.node_id, v_node.resources || v_node.gpu_ids);
  v_node.registered_at := v_now;
  v_node.cordoned_at := v_old.cordoned_at;  -- a node cannot undo what an operator did
  v_node.drain_by := v_old.drain_by;
  v_node.attestations := coalesce(v_old.attestations, '{}');
  v_node.attested := coalesce(v_old.attested, '{}');
  v_node.attested_until := coalesce(v_old.attested_until, '{}');
  v_node.taints := hwqueue.date_taints(v_node.taints, coalesce(v_old.taints, '[]'), v_now);
  delete from hwqueue.node n where n.node_id = v_node.node_id
  returning n.silent_since into v_node.silent_since;
  insert into hwqueue.node select v_node.* on conflict do nothing;
  if not found then
    perform hwqueue.refuse('QHN02', format('the name %s belongs to another node', to_json(v_node.name)),
      jsonb_build_object('field', 'spec.name', 'name', v_node.name),
      'choose another name, or deregister the other node');
  end if;
  -- it has no claims then: deregister_node has ended them
  update hwqueue.node_state s set login = session_user where s.node_id = p_node and s.login is null;
  if v_state.login is null or v_epoch > v_state.node_epoch then
    perform hwqueue.suspend_attestations(v_node, v_state.login is null,
      format('it registered again as instance %s', to_json(left(v_node.instance_id, 100))), v_now);
  end if;
  if v_epoch > 1 and not v_keep then
    v_ended := hwqueue.end_older_claims(p_node, v_epoch, v_now);
  end if;
  perform hwqueue.follow_ended(false);
  v_bound := hwqueue.recount_node(v_node, v_epoch, v_now,
    (v_old.profile_id, v_old.resources, v_old.gpu_ids, v_old.gpu_parents)
      is distinct from (v_node.profile_id, v_node.resources, v_node.gpu_ids, v_node.gpu_parents));
  if hwqueue.has_no_execute(v_old) or hwqueue.has_no_execute(v_node) then
    perform hwqueue.set_stops(v_node, hwqueue.lock_claims(p_node), v_now);
  end if;
  if v_bound is not null then
    perform hwqueue.recheck_claims(p_node, v_bound, v_now);
  end if;
  perform hwqueue.refresh_node_state(p_node);
  if v_old.node_id is null or v_old.deregistered_at is not null then
    perform hwqueue.note_event('node_registered', format('node %s is registered', v_node.name),
      jsonb_build_object('node_epoch', v_epoch, 'instance_id', v_node.instance_id), p_node => p_node);
  elsif v_old.instance_id <> v_node.instance_id then
    perform hwqueue.note_event('node_superseded',
      format('node %s has a new instance, %s claims of older ones ended', v_node.name, v_ended),
      jsonb_build_object('node_epoch', v_epoch, 'instance_id', v_node.instance_id, 'claims_ended', v_ended),
      p_node => p_node);
  end if;
  -- its first claims, or reap, look at everywhere tasks (expand_node): others wait for at most five seconds
  update hwqueue.node_state s set expands_until = v_now + interval '5 seconds', has_reserved = true
  where s.node_id = p_node and exists (select from hwqueue.everywhere e where e.finished_at is null);
  return v_epoch;
end
$$;

-- Grants a node no new claims until uncordon_node. What runs there goes on.
-- Locks: node_state. Raises: QHN01, QHA02, QHA03. Idempotent.
create or replace function hwqueue.cordon_node(p_node uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node := hwqueue.hold_node(p_node);
begin
  if v_node.cordoned_at is null then
    update hwqueue.node n set cordoned_at = hwqueue.clock() where n.node_id = p_node;
    perform hwqueue.refresh_node_state(p_node);
    perform hwqueue.note_event('node_cordoned', format('node %s is cordoned', v_node.name), p_node => p_node);
  end if;
end
$$;

-- Ends cordon and drain. Claims that were asked to stop stay asked.
-- Locks: node_state. Raises: QHN01, QHA02, QHA03. Idempotent.
create or replace function hwqueue.uncordon_node(p_node uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node := hwqueue.hold_node(p_node);
begin
  if v_node.cordoned_at is not null then
    update hwqueue.node n set cordoned_at = null, drain_by = null where n.node_id = p_node;
    perform hwqueue.refresh_node_state(p_node);
    perform hwqueue.note_event('node_uncordoned', format('node %s gets work again', v_node.name),
        p_node => p_node);
  end if;
end
$$;

-- Cordons a node. With p_deadline its claims are asked to stop within that time (verdict preempted at
-- the next heartbeat); without one, what runs there may finish. p_deadline is from 0 to ten years.
-- Locks: node_state, then the claims by lease_id. Raises: QHN01, QHN06 busy, QHA01, QHA02, QHA03.
-- Idempotent.
create or replace function hwqueue.drain_node(p_node uuid, p_deadline interval default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_now timestamptz;
  v_by timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.check_span(coalesce(p_deadline, '0'), 'p_deadline', '0', '3650 days', 'from 0 to ten years',
    'give a span such as interval ''10 minutes''');
  if p_deadline is not null then
    perform hwqueue.await_node(p_node);
  end if;
  v_node := hwqueue.hold_node(p_node);
  v_now := hwqueue.clock();
  v_by := v_now + hwqueue.in_seconds(p_deadline);
  update hwqueue.node n set drain_by = v_by, cordoned_at = coalesce(n.cordoned_at, v_now)
  where n.node_id = p_node;
  perform hwqueue.refresh_node_state(p_node);
  perform hwqueue.note_event('node_drained', format('node %s is drained',
      v_node.name) || coalesce(', what runs there is to stop by ' || to_char(v_by at time zone 'UTC',
        'YYYY-MM-DD HH24:MI:SS "UTC"'), ''), jsonb_build_object('drain_by', v_by), p_node => p_node);
  if p_deadline is not null then
    perform hwqueue.ask_to_stop(p_node, hwqueue.lock_claims(p_node), v_by, 'node is drained', v_now);
  end if;
end
$$;

-- Takes a node out of the fleet and ends its claims at once, with one attempt used. Its epoch is kept,
-- so an instance that missed it stays fenced when the node is registered again. Its attestations end,
-- and it belongs to no login any more. Operators' taints and cordons stay.
-- Locks: node_state, then the claims by lease_id. Raises: QHN01, QHN06 busy, QHA02, QHA03. Not
-- idempotent: the second call raises QHN01.
create or replace function hwqueue.deregister_node(p_node uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_ended int;
  v_now timestamptz;
begin
  perform set_config('hwqueue.ended', '', true);  -- note_ended fills the list
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.await_node(p_node);
  v_node := hwqueue.hold_node(p_node);
  v_now := hwqueue.clock();
  v_ended := hwqueue.end_older_claims(p_node, null, v_now);
  perform hwqueue.follow_ended(false);
  v_node.attestations := '{}';
  update hwqueue.node_state s set login = null where s.node_id = p_node;
  perform hwqueue.leave_fleet(v_node, format('%s claims ended', v_ended),
    jsonb_build_object('claims_ended', v_ended), v_now);
end
$$;

-- Takes the caller's own node out of the fleet, because its worker stops, and returns whether it did. A
-- node stays that holds claims, or has what an operator set: a cordon, taints or an attestation. What is only
-- reserved for it waits again. One that left belongs to its login still.
-- Locks: node_state; the reserved claims by lease_id. Raises: QHN01, QHN03, QHN04, QHA02. Not idempotent:
-- after a call that returned true the next one raises QHN01.
create or replace function hwqueue.deregister_own_node(p_node uuid, p_epoch bigint) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
begin
  perform set_config('hwqueue.ended', '', true);  -- note_ended fills the list
  perform hwqueue.require_read_committed();
  perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0));
  v_node := hwqueue.read_node(p_node);
  if hwqueue.is_kept_by_operators(v_node) or exists (
      select from hwqueue.claim c
      where c.node_id = p_node and c.is_reserved is not true) then
    return false;
  end if;
  perform hwqueue.end_older_claims(p_node, null, hwqueue.clock());
  perform hwqueue.follow_ended(false);
  perform hwqueue.leave_fleet(v_node, 'its worker stopped', '{"reason": "stopped"}', hwqueue.clock());
  return true;
end
$$;

-- Sets for how long a node may be silent before prune deregisters it, from one hour to ten years, and
-- returns the span before. Null: for ever. Such a node stays as with deregister_own_node: with claims, or
-- with what an operator set. A worker that comes back registers its node again.
-- Locks: the installation's row. Raises: QHA01, QHA03.
create or replace function hwqueue.set_node_expiry(p_after interval) returns interval
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_was interval;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_span(coalesce(p_after, '1 hour'), 'p_after', '1 hour', '3650 days',
    'from one hour to ten years', 'give a span such as interval ''7 days'', or null for never');
  p_after := hwqueue.in_seconds(p_after);
  select s.node_expiry into v_was from hwqueue.installation s for no key update;
  if v_was is distinct from p_after then
    update hwqueue.installation s set node_expiry = p_after;
    perform hwqueue.note_event('node_expiry_set',
      format('silent nodes are deregistered after: %s', coalesce(p_after::text, 'never')),
      jsonb_build_object('from', v_was, 'to', p_after));
  end if;
  return v_was;
end
$$;

-- Returns the payload of notifications on channel hwqueue that tell a node's worker to heartbeat at once,
-- because its claims have ended or are to stop. It changes when the node gets another login.
-- Raises: QHN01, QHN04.
create or replace function hwqueue.node_wake_payload(p_node uuid) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_login text;
begin
  perform hwqueue.read_node(p_node);
  select s.login into v_login from hwqueue.node_state s where s.node_id = p_node;
  perform hwqueue.check_login(p_node, v_login);
  return (
    select hwqueue.wake_payload(s.wake_key, ':' || p_node || ':' || v_login) from hwqueue.installation s);
end
$$;

-- Puts a taint {"key", "value"?, "effect"} on a node. It replaces one of the same key and effect. Leases
-- that do not tolerate it are not claimed there any more. With no_execute, running ones are asked to
-- stop as well: at once, or when the seconds of their toleration are over.
-- Locks: its profile, for key share; node_state; the claims by lease_id. Raises: QHN01, QHN06 busy,
-- QHA01, QHA02, QHA03. Idempotent.
create or replace function hwqueue.taint_node(p_node uuid, p_taint jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_taint jsonb;
begin
  perform hwqueue.require_all_tenants();
  v_taint := hwqueue.parse_taint(p_taint, 'p_taint');
  perform hwqueue.require_read_committed();
  perform hwqueue.edit_operator_taints(p_node, v_taint, v_taint ->> 'key', v_taint ->> 'effect');
end
$$;

-- Takes an operator's taints of a key (with p_effect: of this effect only) off a node, and returns how
-- many it took off. Taints that the node registered with stay. Claims that were to stop later because of
-- a taint may stay; those that have been asked to stop stay asked.
-- Locks: its profile, for key share; node_state; the claims by lease_id. Raises: QHN01, QHN06 busy,
-- QHA01, QHA02, QHA03. Idempotent.
create or replace function hwqueue.untaint_node(p_node uuid, p_key text, p_effect text default null)
returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  if p_key is null then
    perform hwqueue.refuse_field('QHA01', 'p_key', 'must not be null', 'name the key of the taint');
  end if;
  return hwqueue.edit_operator_taints(p_node, null, p_key,
    hwqueue.taint_effect(to_jsonb(p_effect), 'p_effect'));
end
$$;

-- Says for which tenants a node is, any of them, instead of those before; {}: for all. Leases of others, and
-- of no tenant, are not claimed there any more; with p_stop running ones are asked to stop as well. It writes
-- taints with keys tenant:NAME, which no toleration matches.
-- Locks and raises as taint_node. Idempotent.
create or replace function hwqueue.set_node_tenants(p_node uuid, p_tenants text[],
  p_stop boolean default false) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.edit_operator_taints(p_node, (
    select coalesce(jsonb_agg(jsonb_build_object('key', 'tenant:' || t, 'effect', case when p_stop
      then 'no_execute' else 'no_schedule' end) order by t), '[]')
    from jsonb_array_elements_text(
      hwqueue.json_texts(to_jsonb(p_tenants), 'p_tenants', 100, 100, 'QHA01')) t), null, null);
end
$$;

-- Hands a node and its claims over to another login or role: from then on only its members may act for
-- the node. Use it for login roles that change (hand over to a role that all of them have), for a role
-- that was dropped, and for a machine that changes hands, also when the node has left the fleet. What
-- runs there goes on. Attestations are suspended until confirm_node. Locks: node_state, then the claims
-- by lease_id. Raises: QHN01, QHN06 busy, QHA01 no such role, QHA02, QHA03. Idempotent.
create or replace function hwqueue.hand_over_node(p_node uuid, p_login text) returns void
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
      jsonb_build_object('field', 'p_login'),
        'name the login of the node''s worker, or a role that its logins have');
  end if;
  perform hwqueue.await_node(p_node);
  v_state := hwqueue.lock_node(p_node, null);
  -- its login outlives the node's row
  select n.* into v_node from hwqueue.node n where n.node_id = p_node;
  if v_state.login is not distinct from p_login then
    return;
  end if;
  perform hwqueue.lock_claims(p_node);
  update hwqueue.node_state s set login = p_login, token_name = null where s.node_id = p_node;
  update hwqueue.claim c set login = p_login where c.node_id = p_node;
  perform hwqueue.wake_node(p_node, v_state.login);
  perform hwqueue.note_event('node_handed_over', format('node %s belongs to login %s',
      coalesce(v_node.name, p_node::text), to_json(p_login)),
    jsonb_build_object('from', v_state.login, 'to', p_login), p_node => p_node);
  perform hwqueue.suspend_attestations(v_node, true, format('it was handed over to login %s',
      to_json(p_login)),
    hwqueue.clock());
end
$$;

-- Confirms a node's suspended attestations, so that its registered instance is trusted as the one before
-- was. Returns how many there were. With p_instance_id it does so only if that instance is the
-- registered one. Locks: node_state. Raises: QHN01, QHN03 another instance has registered since, QHA02,
-- QHA03. Idempotent.
create or replace function hwqueue.confirm_node(p_node uuid, p_instance_id text default null) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node := hwqueue.hold_node(p_node);
  v_domains text[];
  v_confirmed jsonb;
begin
  if v_node.instance_id <> p_instance_id then
    perform hwqueue.refuse('QHN03', format('node %s is registered by instance %s, not %s', v_node.name,
        to_json(v_node.instance_id), to_json(left(p_instance_id, 100))),
      jsonb_build_object('node_id', p_node, 'instance_id', v_node.instance_id),
      'look at the node again before you confirm it');
  end if;
  select array_agg(a.key order by a.key),
         jsonb_object_agg(a.key, a.value - array['suspended_at', 'suspended_why']
           || jsonb_build_object('attested_at', hwqueue.clock(), 'attested_by', session_user))
  into v_domains, v_confirmed
  from jsonb_each(v_node.attestations) a where a.value ? 'suspended_at';
  if v_domains is not null then
    perform hwqueue.write_attestations(p_node, v_node.attestations || v_confirmed);
    perform hwqueue.note_event('node_confirmed',
      format('node %s is trusted again as instance %s', v_node.name, to_json(left(v_node.instance_id, 100))),
      jsonb_build_object('domains', v_domains, 'instance_id', v_node.instance_id), p_node => p_node);
  end if;
  return coalesce(cardinality(v_domains), 0);
end
$$;

-- Attests that a node belongs to a trust domain, until p_expires_at, or for p_expires_after: leases that
-- require {"trust": domain} may run there. Domains are compared byte for byte. Attesting again sets
-- another expiry. The attestation records the session's login.
-- It holds for the registered instance: when another one registers, it is suspended until confirm_node
-- or another attest_node. With p_any_instance it holds for every instance that the node's login
-- registers, which fits nodes that have a login of their own; of a worker over HTTP, if its token is for
-- that node alone.
-- Locks: node_state. Raises: QHN01, QHA01, QHA02, QHA03. Idempotent.
create or replace function hwqueue.attest_node(p_node uuid, p_domain text,
  p_expires_at timestamptz default null, p_any_instance boolean default false,
  p_expires_after interval default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_now timestamptz;
  v_expires_at timestamptz;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_trust_domain(p_domain);
  v_node := hwqueue.hold_node(p_node);
  if p_any_instance and exists (
    select from hwqueue.node_state s join hwqueue.api_token t on t.name = s.token_name
    where s.node_id = p_node and t.nodes <> array[v_node.name]) then
    perform hwqueue.refuse_field('QHA01', 'p_any_instance', 'must be false: its token is for others, too',
      'attest the instance, or give the node a token of its own');
  end if;
  v_now := hwqueue.clock();
  v_expires_at := hwqueue.check_expiry(p_expires_at, p_expires_after, v_now);
  perform hwqueue.write_attestations(p_node, v_node.attestations || jsonb_build_object(p_domain,
    jsonb_build_object('expires_at', v_expires_at, 'attested_at', v_now, 'attested_by', session_user,
      'any_instance', coalesce(p_any_instance, false))));
  perform hwqueue.note_event('node_attested', format('node %s is attested for %s', v_node.name,
      to_json(p_domain)),
    jsonb_build_object('domain', p_domain, 'expires_at', v_expires_at) || case when p_any_instance
      then '{"any_instance": true}'::jsonb else '{}' end,
    p_node => p_node);
end
$$;

-- Ends an attestation, and returns whether there was one. Running leases whose requirements the node
-- does not meet without it are asked to stop at once, as for a no_execute taint.
-- Locks: node_state, then the claims by lease_id. Raises: QHN01, QHN06 busy, QHA01, QHA02, QHA03.
-- Idempotent.
create or replace function hwqueue.revoke_attestation(p_node uuid, p_domain text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_node hwqueue.node;
  v_attested text[];
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.check_trust_domain(p_domain);
  perform hwqueue.await_node(p_node);
  v_node := hwqueue.hold_node(p_node);
  if not v_node.attestations ? p_domain then
    return false;
  end if;
  perform hwqueue.write_attestations(p_node, v_node.attestations - p_domain);
  v_node := hwqueue.read_node(p_node);
  perform hwqueue.note_event('node_attestation_revoked', format('node %s is no longer attested for %s',
      v_node.name, to_json(p_domain)),
    jsonb_build_object('domain', p_domain), p_node => p_node);
  perform hwqueue.lock_claims(p_node);
  v_now := hwqueue.clock();
  v_attested := hwqueue.attested_at(v_node, v_now);
  perform hwqueue.ask_to_stop(p_node, array(
    select c.lease_id
    from hwqueue.claim c
    join hwqueue.placement_class k on k.class_id = c.class_id
    where c.node_id = p_node and p_domain = any (k.trusts)
      and not hwqueue.is_still_attested_for(k.class_id, v_node, v_attested)
  ), v_now, format('trust %s is revoked', to_json(p_domain)), v_now);
  return true;
end
$$;

-- Lists registered nodes by name, with what they have and what is in use. It returns a page where
-- p_limit is given: pass the last name of a page as p_after of the next.
-- taints: {"key", "value", "effect", "since", "by": "node"|"operator"}.
-- attestations: {"domain", "expires_at", "attested_at", "attested_by", "any_instance", "suspended_at",
-- "suspended_why"}, also those that have expired or are suspended.
-- login: the role whose members may act for the node.
-- cores: {"core", "numa", "threads"} as declared, and "milli_used" where cores are counted.
-- isolation: {"cpu", "gpu"}, the classes that it honours, and {"default_cpu", "gpu_share_mode"}.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_nodes(p_name text default null, p_node uuid default null,
  p_after text default null, p_limit int default null)
returns table (node_id uuid, name text, node_epoch bigint, live boolean, seen_at timestamptz,
  cordoned boolean, draining boolean, labels jsonb, rack bigint, capacity jsonb, used jsonb, gpus jsonb,
  slots int, claims int, registered_at timestamptz, taints jsonb, attestations jsonb, cores jsonb,
  isolation jsonb, login text, instance_id text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select n.node_id, n.name, s.node_epoch, hwqueue.is_live(n, s, t.now), s.seen_at, n.cordoned_at is not null,
    n.drain_by is not null, n.labels, n.rack,
    jsonb_strip_nulls(jsonb_build_object('cpu_milli', n.cpu_milli, 'memory_mib', n.memory_mib)) || n.custom,
    jsonb_build_object('cpu_milli', u.cpu_used, 'memory_mib', u.memory_used) || u.custom_used,
    coalesce((
      select jsonb_agg(jsonb_build_object('resource_id', g.id, 'model', g.model, 'memory_mib', g.memory,
          'milli_used', g.used) || jsonb_strip_nulls(jsonb_build_object('parent_resource_id', g.parent))
        order by g.ordinality)
      from unnest(n.gpu_ids, n.gpu_models, n.gpu_memory_mib, u.gpu_used, n.gpu_parents)
        with ordinality g(id, model, memory, used, parent, ordinality)), '[]'),
    coalesce(n.slots, n.concurrency),
    (select count(*)::int from hwqueue.claim c where c.node_id = n.node_id), n.registered_at,
    coalesce((
      select jsonb_agg(t.taint order by t.taint ->> 'key', t.taint ->> 'effect', t.taint ->> 'by') from (
        select x || '{"by": "node"}' as taint from jsonb_array_elements(n.taints) x
        union all select x || '{"by": "operator"}' from jsonb_array_elements(n.operator_taints) x) t), '[]'),
    coalesce((
      select jsonb_agg(jsonb_build_object('domain', a.key) || to_jsonb(t) order by a.key)
      from jsonb_each(n.attestations) a, jsonb_to_record(a.value) t(expires_at timestamptz,
        attested_at timestamptz, attested_by text, any_instance boolean, suspended_at timestamptz,
        suspended_why text)), '[]'),  -- read again, so that times are in the reader's zone
    coalesce((
      select jsonb_agg(jsonb_strip_nulls(c.core
        || jsonb_build_object('milli_used', u.core_used[c.ordinality])) order by c.ordinality)
      from jsonb_array_elements(n.cores) with ordinality c(core, ordinality)), '[]'),
    jsonb_build_object('cpu', n.cpu_isolation, 'gpu', n.gpu_exclusivity, 'default_cpu',
      n.default_cpu_isolation, 'gpu_share_mode', n.gpu_share_mode),
    s.login, n.instance_id
  from (
    select o.* from hwqueue.node o where o.deregistered_at is null and (p_name is null or o.name = p_name)
      and (p_node is null or o.node_id = p_node) and (p_after is null or o.name > p_after)
    order by o.name limit hwqueue.checked_limit(p_limit)
  ) o
  join hwqueue.node n on n.node_id = o.node_id
  join hwqueue.node_state s on s.node_id = n.node_id
  cross join lateral hwqueue.read_load(n.node_id) u
  cross join (select hwqueue.clock() as now) t
  order by n.name
$$;

-- What runs on a node and what is allocated for it, the oldest claims first. stop_by: when it has to
-- stop, if it was asked to. p_limit: from 1 to 10,000.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.node_claims(p_node uuid, p_limit int default 500)
returns table (lease_id uuid, queue text, task_name text, tenant text, service_id uuid,
  claim_token bigint, attempt smallint, claimed_at timestamptz, expires_at timestamptz, stop_reason text,
  stop_by timestamptz, assignment jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'ask for fewer');
  return query
    select r.lease_id, q.name, l.task_name, c.tenant, c.service_id, r.claim_token, r.attempt,
           r.claimed_at, nullif(r.expires_at, 'infinity'),
           r.stop_reason, r.stop_by, r.assignment
    from hwqueue.claim r
    join hwqueue.lease l on l.lease_id = r.lease_id
    join hwqueue.queue q on q.queue_id = r.queue_id
    join hwqueue.placement_class c on c.class_id = r.class_id
    where r.node_id = p_node
    order by r.claimed_at, r.lease_id limit p_limit;
end
$$;
