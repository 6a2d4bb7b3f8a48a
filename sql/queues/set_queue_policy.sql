-- Changes the policy keys that are given and keeps the rest; leases already spawned keep their rank, and
-- what runs stays or goes when it completes as retain_completed said at its claim.
-- Locks: the queue's row; when the failure domain changes, the shard's row. Raises: QHQ01, QHA01, QHA03. Idempotent: yes. Gives the whole policy.
create or replace function hwqueue.set_queue_policy(p_queue text, p_policy jsonb, p_shard int default 0) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.queue;
  v_before jsonb;
begin
  perform hwqueue.require_all_tenants();
  v_row := hwqueue.find_queue(p_queue, p_shard);
  select q.* into v_row from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_row.queue_id for update;
  v_before := hwqueue.queue_policy(v_row);
  v_row := hwqueue.apply_policy(v_row, coalesce(p_policy, '{}'));
  update hwqueue.queue q
  set claim_timeout = v_row.claim_timeout, heartbeat_interval = v_row.heartbeat_interval, poll_interval = v_row.poll_interval,
      patience = v_row.patience,
      max_attempts = v_row.max_attempts, retry = v_row.retry, ageing_step = v_row.ageing_step, notify = v_row.notify,
      reap_grace = v_row.reap_grace, max_params_bytes = v_row.max_params_bytes, max_result_bytes = v_row.max_result_bytes,
      window_size = v_row.window_size, probe_size = v_row.probe_size, weight_affinity = v_row.weight_affinity,
      weight_fit = v_row.weight_fit, weight_spread = v_row.weight_spread, retain_completed = v_row.retain_completed,
      retain_failed = v_row.retain_failed, failure_domain = v_row.failure_domain
  where q.shard_id = p_shard and q.queue_id = v_row.queue_id;
  perform hwqueue.move_terms(p_shard);
  perform hwqueue.note_policy('queue_policy_set', format('queue %s', p_queue), v_before, hwqueue.queue_policy(v_row), p_queue, p_shard);
  return hwqueue.queue_policy(v_row);
end
$$;
