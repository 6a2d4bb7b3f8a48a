-- A node's own rows: its lock, its epoch and its load.
--
-- Every call that grants on a node, settles for it or edits it starts with lock_node. One that edits it calls
-- refresh_node_state. The invariant: node_load is written only while node_state is locked.

-- Locks a node's state. p_epoch: functions that a node calls pass its epoch, 0 for none. Null is for callers
-- that act on a node from outside, whichever login registered it.
-- Locks: node_state.
-- Raises: QHN01 unknown or deregistered, QHN03 when p_epoch is not its epoch, QHN04 another login's.
create or replace function hwqueue.lock_node(p_node uuid, p_epoch bigint) returns hwqueue.node_state
language plpgsql volatile
as $$
declare
  v_state hwqueue.node_state;
begin
  select s.* into v_state from hwqueue.node_state s where s.node_id = p_node for no key update;
  if p_epoch is not null then
    perform hwqueue.check_login(p_node, v_state.login);
  end if;
  if v_state.node_epoch is null or v_state.node_epoch <> p_epoch then
    perform hwqueue.refuse_epoch(p_node, v_state.node_epoch, p_epoch);
  end if;
  return v_state;
end
$$;

-- Locks a node's state if no other session holds it. False: one does, or there is no such node. A condition
-- of a statement that locks claims asks it last, because of its cost.
-- Locks: node_state, skip locked.
create or replace function hwqueue.lock_free_node(p_node uuid) returns boolean
language plpgsql volatile cost 10000
as $$
begin
  perform 1 from hwqueue.node_state s where s.node_id = p_node for no key update skip locked;
  return found;
end
$$;

-- Refuses a call for a node that is not registered (p_node_epoch is null) or is at another epoch than
-- the caller has.
-- Raises: QHN01, QHN03.
create or replace function hwqueue.refuse_epoch(p_node uuid, p_node_epoch bigint, p_epoch bigint) returns void
language plpgsql volatile
as $$
begin
  if p_node_epoch is null then
    perform hwqueue.refuse('QHN01', format('node %s is not registered', coalesce(p_node::text, 'null')),
      jsonb_build_object('node_id', p_node), 'register it first with register_node');
  end if;
  perform hwqueue.refuse('QHN03',
    format('node %s is at epoch %s, this call has %s', p_node, p_node_epoch, p_epoch),
    jsonb_build_object('node_id', p_node, 'node_epoch', p_node_epoch, 'given_epoch', p_epoch),
    'another instance registered this node: stop this one, or register again to take over');
end
$$;

-- The row of a locked node. Read after the lock, in a statement of its own, so that no edit is missed.
-- Raises: QHN01.
create or replace function hwqueue.read_node(p_node uuid) returns hwqueue.node
language plpgsql volatile
as $$
declare
  v_node hwqueue.node;
begin
  select n.* into v_node from hwqueue.node n where n.node_id = p_node and n.deregistered_at is null;
  if not found then
    perform hwqueue.refuse_epoch(p_node, null, null);
  end if;
  return v_node;
end
$$;

-- Brings a node's state up to date with its row. Called by every function that edits a node, or adds
-- work to it outside its claims.
-- Locks: the caller holds node_state.
create or replace function hwqueue.refresh_node_state(p_node uuid) returns void
language plpgsql volatile
as $$ begin
  update hwqueue.node_state s
  set profile_id = (select coalesce(p.judged_as, p.profile_id) from hwqueue.profile p
      where p.profile_id = n.profile_id),
      heartbeat_timeout = n.heartbeat_timeout, moved_xid = pg_current_xact_id(),
      on_fast_path = n.deregistered_at is null and n.cordoned_at is null and n.gpu_ids = '{}'
        and n.custom = '{}' and n.core_ids = '{}',
      -- any capacity is counted: its claims allocate and must be granted one at a time
      has_limits = n.slots is not null or n.cpu_milli is not null or n.memory_mib is not null
        or n.gpu_ids <> '{}' or n.custom <> '{}' or n.core_ids <> '{}'
  from hwqueue.node n
  where s.node_id = p_node and n.node_id = p_node;
end $$;

-- Notifies a node's worker, so that it heartbeats at once and learns which claims ended or are to stop; one
-- without a login has none. A worker that misses it learns the same from its next heartbeat. The login is in
-- the payload, so that one which had the node before does not know it.
-- Notifies: listeners of hwqueue.
create or replace function hwqueue.wake_node(p_node uuid, p_login text) returns void
language plpgsql volatile
as $$ begin
  perform pg_notify('hwqueue', hwqueue.wake_payload(s.wake_key, ':' || p_node || ':' || p_login))
  from hwqueue.installation s where p_login is not null;
end $$;

-- What is in use on a node now: its newest version, the last in the index, so that the scan reads none
-- before it. A node without one uses nothing. A caller that goes on to write holds node_state.
create or replace function hwqueue.read_load(p_node uuid) returns hwqueue.node_load
language plpgsql stable
as $$
declare
  v_load hwqueue.node_load;
begin
  select u.* into v_load from hwqueue.node_load u where u.node_id = p_node order by u.version desc limit 1;
  if not found then
    v_load := row(p_node, 0, 0, 0, 0, 0, '{}', '{}', '{}');
  end if;
  return v_load;
end
$$;

-- Writes what is in use on a node now: in place, and every 32 updates as a new row.
-- Locks: the caller holds node_state. Not idempotent.
create or replace function hwqueue.write_load(p_load hwqueue.node_load) returns void
language plpgsql volatile
as $$
begin
  if p_load.version > 0 and p_load.updates < 32 then
    update hwqueue.node_load u
    set updates = p_load.updates + 1, claim_count = p_load.claim_count, cpu_used = p_load.cpu_used,
        memory_used = p_load.memory_used, gpu_used = p_load.gpu_used, custom_used = p_load.custom_used,
        core_used = p_load.core_used
    where u.node_id = p_load.node_id and u.version = p_load.version;
  else
    delete from hwqueue.node_load u where u.node_id = p_load.node_id and u.version = p_load.version;
    insert into hwqueue.node_load
      (node_id, version, claim_count, cpu_used, memory_used, gpu_used, custom_used, core_used)
    values (p_load.node_id, p_load.version + 1, p_load.claim_count, p_load.cpu_used,
      p_load.memory_used, p_load.gpu_used, p_load.custom_used, p_load.core_used);
  end if;
end
$$;
