-- Records work that already runs on a node, for moving in from another system: no filter and no room check; from then on it
-- counts like any claim. Devices: {"gpus": [resource ids]} in the options, else those with most left. Nothing is adopted onto cores
-- or devices that others have to themselves, nor to itself where others are.
-- Locks: its idempotency key; node_state; the entry. Raises: QHQ01, QHN01, QHA01, QHC03, QHC04, QHW01, QHT01, QHL06, QHL07, QHA02, QHA03.
-- Idempotent: no.
create or replace function hwqueue.adopt_lease(p_queue text, p_node uuid, p_task text, p_params jsonb default '{}', p_options jsonb default '{}',
                                               p_shard int default 0)
returns table (lease_id uuid, claim_token bigint, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue;
  v_options jsonb := case when jsonb_typeof(p_options) = 'object' then p_options - 'gpus' else p_options end;
  v_spawn hwqueue.spawn_request;
  v_state hwqueue.node_state;
  v_load hwqueue.node_load;
  v_node hwqueue.node;
  v_lease hwqueue.lease;
  v_class hwqueue.placement_class;
  v_entry hwqueue.scheduled;
  v_now timestamptz;
  v_taken record;
  v_timeout interval;
  v_token bigint;
  v_counted jsonb;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  v_queue := hwqueue.spawn_queue(p_queue, p_shard);
  -- spawned before the node is locked: its key may have to wait for a producer. Nobody can claim it before this commits
  v_now := hwqueue.clock();
  v_spawn := (hwqueue.write_spawns(
    array[hwqueue.read_single_spawn(v_queue, p_task, p_params, v_options, v_now, p_shard)], v_queue, v_now, p_shard))[1];
  v_lease.lease_id := coalesce(v_spawn.stands_for, v_spawn.lease_id);
  v_state := hwqueue.lock_node(p_node, null, p_shard);
  v_entry := hwqueue.take_entry(v_lease.lease_id, p_shard);
  if v_entry.lease_id is null then
    perform hwqueue.refuse('QHL07', format('lease %s is claimed or finished already', v_lease.lease_id),
      jsonb_build_object('lease_id', v_lease.lease_id), 'its idempotency key stands for work that is recorded already');
  end if;
  v_node := hwqueue.read_node(p_node, p_shard);
  v_now := hwqueue.clock();
  v_lease := hwqueue.find_lease(v_lease.lease_id, p_shard);
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_lease.class_id;
  v_load := hwqueue.read_load(p_node, p_shard);
  select t.p_load, t.assignment into v_taken
  from hwqueue.take_room(v_class, v_node, hwqueue.adopted_devices(v_class, v_node, v_load, p_options -> 'gpus'),
                         hwqueue.adopted_cores(v_class, v_node, v_load), v_load) t;
  perform hwqueue.write_load(v_taken.p_load);
  perform hwqueue.note_selected(array[v_class.class_id], p_shard);
  v_counted := hwqueue.counts_of(v_class, v_lease.lease_id, v_node, p_shard);
  v_timeout := coalesce(v_lease.claim_timeout, v_queue.claim_timeout);
  v_token := (hwqueue.current_generation(p_shard) << 40) + v_entry.claim_count + 1;
  insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt, claim_timeout,
    claimed_at, expires_at, check_at, assignment, counted, login, eligible_at)
  values (p_shard, v_lease.lease_id, v_queue.queue_id, v_lease.class_id, p_node, v_state.node_epoch, v_token, v_entry.attempt_count + 1,
    v_timeout, v_now, v_now + v_timeout, v_now + v_timeout, v_taken.assignment, v_counted,
    v_state.login, case when v_queue.retain_completed = '0' and v_lease.idempotency_key is null then greatest(v_lease.available_at, v_lease.created_at) end);
  perform hwqueue.add_counts(v_counted, 1, p_shard), hwqueue.wake_classes(v_lease.lease_id, p_shard), hwqueue.note_edit(p_node, p_shard);
  perform hwqueue.note_leases('lease_adopted', array[v_lease.lease_id], format('adopted on node %s', v_node.name), p_shard,
    jsonb_build_object('claim_token', v_token), p_node);
  return query select v_lease.lease_id, v_token, p_shard;
end
$$;
