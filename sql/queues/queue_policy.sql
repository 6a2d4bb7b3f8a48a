-- A queue's policy as JSON, the form that create_queue and set_queue_policy take; spans in seconds.
create or replace function hwqueue.queue_policy(p_queue hwqueue.queue) returns jsonb
language sql immutable
as $$
  select hwqueue.normal_value(jsonb_build_object(
    'claim_timeout', extract(epoch from p_queue.claim_timeout),
    'heartbeat_interval', extract(epoch from p_queue.heartbeat_interval),
    'poll_interval', extract(epoch from p_queue.poll_interval),
    'patience', extract(epoch from p_queue.patience),
    'max_attempts', p_queue.max_attempts,
    'retry', p_queue.retry,
    'ageing_step', extract(epoch from p_queue.ageing_step),
    'failure_domain', p_queue.failure_domain,
    'notify', p_queue.notify,
    'reap_grace', extract(epoch from p_queue.reap_grace),
    'max_params_bytes', p_queue.max_params_bytes,
    'max_result_bytes', p_queue.max_result_bytes,
    'window', p_queue.window_size,
    'probe', p_queue.probe_size,
    'weights', jsonb_build_object('affinity', p_queue.weight_affinity, 'fit', p_queue.weight_fit, 'spread', p_queue.weight_spread),
    'retain_completed', extract(epoch from p_queue.retain_completed),
    'retain_failed', extract(epoch from p_queue.retain_failed)))
$$;

-- The row that a policy asks for; keys that are not given keep what p_base says.
create or replace function hwqueue.apply_policy(p_base hwqueue.queue, p_policy jsonb) returns hwqueue.queue
language plpgsql immutable
as $$
declare
  v_row hwqueue.queue := p_base;
  v_weights jsonb := coalesce(p_policy -> 'weights', '{}');
begin
  perform hwqueue.check_object(p_policy, array['claim_timeout', 'heartbeat_interval', 'poll_interval', 'max_attempts', 'retry',
    'ageing_step', 'notify', 'reap_grace', 'max_params_bytes', 'max_result_bytes', 'window', 'probe', 'weights',
    'retain_completed', 'retain_failed', 'patience', 'failure_domain'], 'policy');
  perform hwqueue.check_object(v_weights, array['affinity', 'fit', 'spread'], 'policy.weights');
  v_row.claim_timeout := coalesce(hwqueue.json_short_interval(p_policy -> 'claim_timeout', 'policy.claim_timeout', '1 second', '30 days'), v_row.claim_timeout);
  v_row.heartbeat_interval := coalesce(hwqueue.json_interval(p_policy -> 'heartbeat_interval', 'policy.heartbeat_interval', '0.1 second'),
    case when p_policy ? 'claim_timeout' then v_row.claim_timeout / 4 else v_row.heartbeat_interval end);
  v_row.poll_interval := coalesce(hwqueue.json_interval(p_policy -> 'poll_interval', 'policy.poll_interval', '0.01 second'), v_row.poll_interval);
  v_row.patience := coalesce(hwqueue.json_interval(p_policy -> 'patience', 'policy.patience'), v_row.patience);
  v_row.max_attempts := coalesce(hwqueue.json_integer(p_policy -> 'max_attempts', 'policy.max_attempts', 1, 1000), v_row.max_attempts);
  v_row.retry := coalesce(hwqueue.normalise_retry(p_policy -> 'retry', 'policy.retry'), v_row.retry);
  v_row.ageing_step := coalesce(hwqueue.json_interval(p_policy -> 'ageing_step', 'policy.ageing_step'), v_row.ageing_step);
  v_row.failure_domain := coalesce(hwqueue.json_domain(p_policy -> 'failure_domain', 'policy.failure_domain'), v_row.failure_domain);
  v_row.notify := coalesce(hwqueue.json_boolean(p_policy -> 'notify', 'policy.notify'), v_row.notify);
  v_row.reap_grace := coalesce(hwqueue.json_interval(p_policy -> 'reap_grace', 'policy.reap_grace'), v_row.reap_grace);
  v_row.max_params_bytes := coalesce(hwqueue.json_integer(p_policy -> 'max_params_bytes', 'policy.max_params_bytes', 1, 104857600), v_row.max_params_bytes);
  v_row.max_result_bytes := coalesce(hwqueue.json_integer(p_policy -> 'max_result_bytes', 'policy.max_result_bytes', 1, 104857600), v_row.max_result_bytes);
  v_row.window_size := coalesce(hwqueue.json_integer(p_policy -> 'window', 'policy.window', 1, 10000), v_row.window_size);
  v_row.probe_size := coalesce(hwqueue.json_integer(p_policy -> 'probe', 'policy.probe', 0, 100000), v_row.probe_size);
  v_row.weight_affinity := coalesce(hwqueue.json_number(v_weights -> 'affinity', 'policy.weights.affinity', 0, 1000), v_row.weight_affinity);
  v_row.weight_fit := coalesce(hwqueue.json_number(v_weights -> 'fit', 'policy.weights.fit', 0, 1000), v_row.weight_fit);
  v_row.weight_spread := coalesce(hwqueue.json_number(v_weights -> 'spread', 'policy.weights.spread', 0, 1000), v_row.weight_spread);
  v_row.retain_completed := coalesce(hwqueue.json_interval(p_policy -> 'retain_completed', 'policy.retain_completed'), v_row.retain_completed);
  v_row.retain_failed := coalesce(hwqueue.json_interval(p_policy -> 'retain_failed', 'policy.retain_failed'), v_row.retain_failed);
  if v_row.heartbeat_interval >= v_row.claim_timeout then
    perform hwqueue.refuse('QHA01', format('policy.heartbeat_interval (%s) must be shorter than claim_timeout (%s)', v_row.heartbeat_interval, v_row.claim_timeout),
      jsonb_build_object('field', 'policy.heartbeat_interval'), 'a quarter of the claim timeout is a good choice');
  end if;
  return v_row;
end
$$;

-- The policy of a queue that asks for nothing special.
create or replace function hwqueue.default_policy() returns hwqueue.queue
language sql immutable
as $$
  select jsonb_populate_record(null::hwqueue.queue, '{"claim_timeout": "60 seconds", "heartbeat_interval": "15 seconds",
    "poll_interval": "1 second", "patience": "2 seconds", "max_attempts": 5, "ageing_step": "0", "failure_domain": "rack",
    "notify": true, "reap_grace": "0",
    "retry": {"kind": "exponential", "base": 5, "factor": 2, "max": 600, "jitter": 0.2},
    "max_params_bytes": 1048576, "max_result_bytes": 1048576, "window_size": 100, "probe_size": 1000,
    "weight_affinity": 10, "weight_fit": 1, "weight_spread": 1, "retain_completed": "7 days", "retain_failed": "30 days"}')
$$;
