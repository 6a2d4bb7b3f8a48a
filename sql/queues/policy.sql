-- Queues: their policies, retry delays, and waking workers that wait for work.
--
-- Example: a worker's claim finds nothing and sets waiting_since in queue_signal. The next spawn into
-- the queue finds it set, sends one NOTIFY and clears it. The worker hears the NOTIFY and claims again.
-- The other 2,000 spawns find nothing set and send nothing, because commits that notify wait for each
-- other.
--
-- Spawns call find_spawn_queue, create_queue and set_queue_policy call apply_policy, settlement calls
-- retry_delay. The invariant: a NOTIFY is a hint and never data. Workers also poll.
--
-- Reading order: find_queue, apply_policy, retry_delay, wake_workers.

-- The queue of a name.
-- Raises: QHQ01.
create or replace function hwqueue.find_queue(p_queue text) returns hwqueue.queue
language plpgsql stable
as $$
declare
  v_queue hwqueue.queue;
begin
  select q.* into v_queue from hwqueue.queue q where q.name = p_queue and q.dropped_at is null;
  if not found then
    perform hwqueue.refuse('QHQ01', format('queue %s does not exist',
        coalesce(to_json(left(p_queue, 100))::text, 'null')), jsonb_build_object('queue', left(p_queue, 100)),
      'create it first: select hwqueue.create_queue(p_queue => ''...''), or hwqueue queue create');
  end if;
  return v_queue;
end
$$;

-- The name of a queue, dropped or not.
create or replace function hwqueue.queue_name(p_queue_id int) returns text
language sql stable
as $$ select q.name from hwqueue.queue q where q.queue_id = p_queue_id $$;

-- The same for a spawn, with the defaults of its task (p_task null: of none). One statement reads both,
-- so that a spawn of a task without defaults pays no more than the lookup. It takes a transaction id
-- before it reads, so that a dropped queue is not deleted while the spawn uses it.
-- Locks: above read committed the queue, for key share.
-- Raises: QHQ01; above read committed also 40001.
create or replace function hwqueue.find_spawn_queue(p_queue text, p_task text) returns hwqueue.spawn_target
language plpgsql volatile
as $$
declare
  v_target hwqueue.spawn_target;
begin
  perform pg_current_xact_id();
  select q, (select t.defaults from hwqueue.task t where t.name = p_task)
  into v_target
  from hwqueue.queue q where q.name = p_queue and q.dropped_at is null;
  if not found then
    v_target.queue := hwqueue.find_queue(p_queue);
  end if;
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    -- an older MVCC snapshot may show a queue that is dropped by now: lock it, or fail with 40001 as such
    -- transactions do
    perform 1 from hwqueue.queue q where q.queue_id = (v_target.queue).queue_id for key share;
  end if;
  return v_target;
end
$$;

-- A queue's policy as JSON, in the form that create_queue and set_queue_policy take; spans in seconds.
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
    'earmarks', p_queue.earmarks,
    'earmark_time', extract(epoch from p_queue.earmark_time),
    'everywhere_tenants', p_queue.everywhere_tenants,
    'everywhere_limit', p_queue.everywhere_limit,
    'notify', p_queue.notify,
    'reap_grace', extract(epoch from p_queue.reap_grace),
    'max_params_bytes', p_queue.max_params_bytes,
    'max_result_bytes', p_queue.max_result_bytes,
    'window', p_queue.window_size,
    'probe', p_queue.probe_size,
    'weights', jsonb_build_object('affinity', p_queue.weight_affinity, 'fit', p_queue.weight_fit,
      'spread', p_queue.weight_spread),
    'retain_completed', extract(epoch from p_queue.retain_completed),
    'retain_failed', extract(epoch from p_queue.retain_failed)))
$$;

-- The row that a policy asks for; keys that are not given keep the value of p_base.
create or replace function hwqueue.apply_policy(p_base hwqueue.queue, p_policy jsonb) returns hwqueue.queue
language plpgsql immutable
as $$
declare
  v_row hwqueue.queue := p_base;
  v_weights jsonb := coalesce(p_policy -> 'weights', '{}');
begin
  perform hwqueue.check_object(p_policy, array[
    'claim_timeout', 'heartbeat_interval', 'poll_interval', 'max_attempts', 'retry', 'ageing_step', 'notify',
    'reap_grace', 'max_params_bytes', 'max_result_bytes', 'window', 'probe', 'weights', 'retain_completed',
    'retain_failed', 'patience', 'failure_domain', 'earmarks', 'earmark_time',
    'everywhere_tenants', 'everywhere_limit'], 'policy');
  perform hwqueue.check_object(v_weights, array['affinity', 'fit', 'spread'], 'policy.weights');
  v_row.claim_timeout := coalesce(
    hwqueue.json_short_interval(p_policy -> 'claim_timeout', 'policy.claim_timeout', '1 second', '30 days'),
    v_row.claim_timeout);
  v_row.heartbeat_interval := coalesce(
    hwqueue.json_interval(p_policy -> 'heartbeat_interval', 'policy.heartbeat_interval', '0.1 second'),
    case when p_policy ? 'claim_timeout' then v_row.claim_timeout / 4 else v_row.heartbeat_interval end);
  v_row.poll_interval := coalesce(
    hwqueue.json_interval(p_policy -> 'poll_interval', 'policy.poll_interval', '0.01 second'),
    v_row.poll_interval);
  v_row.patience := coalesce(
    hwqueue.json_interval(p_policy -> 'patience', 'policy.patience'), v_row.patience);
  v_row.max_attempts := coalesce(
    hwqueue.json_integer(p_policy -> 'max_attempts', 'policy.max_attempts', 1, 1000), v_row.max_attempts);
  v_row.retry := coalesce(hwqueue.normalise_retry(p_policy -> 'retry', 'policy.retry'), v_row.retry);
  v_row.ageing_step := coalesce(
    hwqueue.json_interval(p_policy -> 'ageing_step', 'policy.ageing_step'), v_row.ageing_step);
  v_row.failure_domain := coalesce(
    hwqueue.json_domain(p_policy -> 'failure_domain', 'policy.failure_domain'), v_row.failure_domain);
  v_row.earmarks := coalesce(
    hwqueue.json_integer(p_policy -> 'earmarks', 'policy.earmarks', 0, 1000), v_row.earmarks);
  v_row.earmark_time := coalesce(
    hwqueue.json_short_interval(p_policy -> 'earmark_time', 'policy.earmark_time', '1 second', '30 days'),
    v_row.earmark_time);
  if nullif(p_policy -> 'everywhere_tenants', 'null') is not null then
    v_row.everywhere_tenants := array(
      select distinct hwqueue.json_text(t, 'policy.everywhere_tenants', 100)
      from jsonb_array_elements(hwqueue.json_list(p_policy -> 'everywhere_tenants',
        'policy.everywhere_tenants', 1000, 'a list of at most 1000 tenants',
        'for example ["acme"], or ["*"] for all')) t order by 1);
  end if;
  v_row.everywhere_limit := coalesce(
    hwqueue.json_integer(p_policy -> 'everywhere_limit', 'policy.everywhere_limit', 0, 1000),
    v_row.everywhere_limit);
  v_row.notify := coalesce(hwqueue.json_boolean(p_policy -> 'notify', 'policy.notify'), v_row.notify);
  v_row.reap_grace := coalesce(
    hwqueue.json_interval(p_policy -> 'reap_grace', 'policy.reap_grace'), v_row.reap_grace);
  v_row.max_params_bytes := coalesce(
    hwqueue.json_integer(p_policy -> 'max_params_bytes', 'policy.max_params_bytes', 1, 104857600),
    v_row.max_params_bytes);
  v_row.max_result_bytes := coalesce(
    hwqueue.json_integer(p_policy -> 'max_result_bytes', 'policy.max_result_bytes', 1, 104857600),
    v_row.max_result_bytes);
  v_row.window_size := coalesce(
    hwqueue.json_integer(p_policy -> 'window', 'policy.window', 1, 10000), v_row.window_size);
  v_row.probe_size := coalesce(
    hwqueue.json_integer(p_policy -> 'probe', 'policy.probe', 0, 100000), v_row.probe_size);
  v_row.weight_affinity := coalesce(
    hwqueue.json_number(v_weights -> 'affinity', 'policy.weights.affinity', 0, 1000), v_row.weight_affinity);
  v_row.weight_fit := coalesce(
    hwqueue.json_number(v_weights -> 'fit', 'policy.weights.fit', 0, 1000), v_row.weight_fit);
  v_row.weight_spread := coalesce(
    hwqueue.json_number(v_weights -> 'spread', 'policy.weights.spread', 0, 1000), v_row.weight_spread);
  v_row.retain_completed := coalesce(
    hwqueue.json_interval(p_policy -> 'retain_completed', 'policy.retain_completed'), v_row.retain_completed);
  v_row.retain_failed := coalesce(
    hwqueue.json_interval(p_policy -> 'retain_failed', 'policy.retain_failed'), v_row.retain_failed);
  if v_row.heartbeat_interval >= v_row.claim_timeout then
    perform hwqueue.refuse('QHA01',
      format('policy.heartbeat_interval (%s) must be shorter than claim_timeout (%s)',
        v_row.heartbeat_interval, v_row.claim_timeout),
      jsonb_build_object('field', 'policy.heartbeat_interval'),
      'a quarter of the claim timeout is a good choice');
  end if;
  return v_row;
end
$$;

-- The policy of a queue that asks for nothing special.
create or replace function hwqueue.default_policy() returns hwqueue.queue
language sql immutable
as $$
  select jsonb_populate_record(null::hwqueue.queue, '{
    "claim_timeout": "40 seconds", "heartbeat_interval": "10 seconds", "poll_interval": "1 second",
    "patience": "2 seconds", "max_attempts": 5, "ageing_step": "0", "failure_domain": "rack",
    "earmarks": 1, "earmark_time": "10 minutes", "everywhere_tenants": [], "everywhere_limit": 20,
    "notify": true, "reap_grace": "0",
    "retry": {"kind": "exponential", "base": 5, "factor": 2, "max": 600, "jitter": 0.2},
    "max_params_bytes": 1048576, "max_result_bytes": 1048576, "window_size": 100, "probe_size": 1000,
    "weight_affinity": 10, "weight_fit": 1, "weight_spread": 1,
    "retain_completed": "7 days", "retain_failed": "30 days", "has_prices": false}')
$$;

-- A retry policy in normal form: {kind, base, factor, max, jitter}, spans in seconds.
-- Raises: QHA01.
create or replace function hwqueue.normalise_retry(p_retry jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_kind text;
begin
  if p_retry is null or jsonb_typeof(p_retry) = 'null' then
    return null;
  end if;
  perform hwqueue.check_object(p_retry, array['kind', 'base', 'factor', 'max', 'jitter'], p_field);
  v_kind := coalesce(hwqueue.json_text(p_retry -> 'kind', p_field || '.kind', 32), 'exponential');
  if v_kind not in ('fixed', 'exponential', 'none') then
    perform hwqueue.refuse('QHA01', format('%s.kind must be fixed, exponential or none', p_field),
      jsonb_build_object('field', p_field || '.kind'),
        'for example {"kind": "exponential", "base": 5, "factor": 2, "max": 600}');
  end if;
  if v_kind = 'none' then
    return '{"kind": "none"}'::jsonb;
  end if;
  return jsonb_build_object(
    'kind', v_kind,
    'base', extract(epoch from coalesce(hwqueue.json_interval(p_retry -> 'base', p_field || '.base'),
        interval '5 seconds')),
    'factor', coalesce(hwqueue.json_number(p_retry -> 'factor', p_field || '.factor', 1, 100), 2),
    'max', extract(epoch from coalesce(hwqueue.json_interval(p_retry -> 'max', p_field || '.max'),
        interval '10 minutes')),
    'jitter', coalesce(hwqueue.json_number(p_retry -> 'jitter', p_field || '.jitter', 0, 1), 0.2));
end
$$;

-- How long to wait before the attempt after p_attempt (1, 2, ...): base x factor^(attempt - 1), at most
-- max, less a random part of up to jitter; null when the policy is none.
create or replace function hwqueue.retry_delay(p_retry jsonb, p_attempt int) returns interval
language sql volatile
as $$
  select case when p_retry ->> 'kind' <> 'none' then make_interval(secs =>
    least(
      (p_retry ->> 'base')::double precision * case when p_retry ->> 'kind' = 'fixed' then 1
        else power((p_retry ->> 'factor')::double precision, least(p_attempt - 1, 60)) end,
      (p_retry ->> 'max')::double precision)
    * (1 - random() * (p_retry ->> 'jitter')::double precision)) end
$$;

-- Notifies waiting workers if an empty claim has set waiting_since, and clears it. Most spawns find it
-- clear and send nothing, because commits that notify wait for each other.
-- Locks: the queue_signal row, skip locked: another session that holds it is clearing it. Notifies:
-- listeners of hwqueue.
create or replace function hwqueue.wake_workers(p_queue hwqueue.queue) returns void
language plpgsql volatile
as $$
begin
  if not p_queue.notify then
    return;
  end if;
  perform 1 from hwqueue.queue_signal s where s.queue_id = p_queue.queue_id and s.waiting_since is not null;
  if not found then
    return;
  end if;
  -- a hint, never data
  perform pg_notify('hwqueue', hwqueue.wake_payload(s.wake_key, p_queue.name)) from hwqueue.installation s;
  perform 1 from hwqueue.queue_signal s where s.queue_id = p_queue.queue_id for update skip locked;
  if found then
    update hwqueue.queue_signal s set waiting_since = null where s.queue_id = p_queue.queue_id;
  end if;
end
$$;

-- Sets waiting_since for a claim that found nothing. Written only where it is clear, and skipped while
-- another session is writing it.
-- Locks: queue_signal rows, skip locked.
create or replace function hwqueue.flag_waiting(p_queue_ids int[], p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_ids int[];
begin
  v_ids := array(
    select s.queue_id from hwqueue.queue_signal s
    where s.queue_id = any (p_queue_ids) and s.waiting_since is null
    for update skip locked);
  if v_ids <> '{}' then
    update hwqueue.queue_signal s set waiting_since = p_now where s.queue_id = any (v_ids);
  end if;
end
$$;

-- The payload of notifications of new work in a queue. Any login of the database hears notifications and
-- may send them, so the payload holds no names. It is a digest of the queue, keyed by the
-- installation's secret.
create or replace function hwqueue.wake_payload(p_key uuid, p_queue text) returns text
language sql stable
as $$
  select left(encode(sha256(convert_to(p_key || ':' || p_queue, 'UTF8')), 'hex'), 32)
$$;
