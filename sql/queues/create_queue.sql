-- Creates a queue. The same name with the same policy is a no-op, so that deployments can call it every time.
-- With retain_completed 0 a lease is gone when it completes, and its result with it; one with an idempotency key stays until prune takes it.
-- Locks: the queue's unique name. Raises: QHA01, QHQ02 exists with another policy, QHA03. Idempotent: yes.
create or replace function hwqueue.create_queue(p_queue text, p_policy jsonb default '{}', p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.queue;
  v_existing hwqueue.queue;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_queue, 'queue');
  perform hwqueue.check_shard(p_shard);
  v_row := hwqueue.apply_policy(hwqueue.default_policy(), coalesce(p_policy, '{}'));
  insert into hwqueue.queue (
    shard_id, name, claim_timeout, heartbeat_interval, poll_interval, patience, max_attempts, retry, ageing_step, notify, reap_grace,
    max_params_bytes, max_result_bytes, window_size, probe_size, weight_affinity, weight_fit, weight_spread,
    retain_completed, retain_failed, failure_domain, created_at)
  values (
    p_shard, p_queue, v_row.claim_timeout, v_row.heartbeat_interval, v_row.poll_interval, v_row.patience, v_row.max_attempts, v_row.retry,
    v_row.ageing_step, v_row.notify, v_row.reap_grace, v_row.max_params_bytes, v_row.max_result_bytes, v_row.window_size,
    v_row.probe_size, v_row.weight_affinity, v_row.weight_fit, v_row.weight_spread, v_row.retain_completed,
    v_row.retain_failed, v_row.failure_domain, hwqueue.clock())
  on conflict do nothing
  returning * into v_existing;
  if found then
    insert into hwqueue.queue_signal (shard_id, queue_id) values (p_shard, v_existing.queue_id);
    perform hwqueue.write_first_mark(v_existing.queue_id, 0, 0, p_shard);
    perform hwqueue.note_event('queue_created', format('queue %s is created', p_queue), p_shard, nullif(p_policy, '{}'), p_queue => p_queue);
    return;
  end if;
  v_existing := hwqueue.find_queue(p_queue, p_shard);
  if hwqueue.queue_policy(v_existing) <> hwqueue.queue_policy(v_row) then
    perform hwqueue.refuse('QHQ02', format('queue %s exists with another policy', p_queue),
      jsonb_build_object('queue', p_queue, 'policy', hwqueue.queue_policy(v_existing)),
      'change it with set_queue_policy, or create it with the policy it has');
  end if;
end
$$;
