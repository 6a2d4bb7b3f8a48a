-- The time from which a spawn is claimable, for options that name one. Raises: QHA01.
create or replace function hwqueue.spawn_time(p_options jsonb, p_now timestamptz) returns timestamptz
language plpgsql stable
as $$
declare
  v_delay interval := hwqueue.json_interval(p_options -> 'delay', 'options.delay');
  v_at timestamptz := hwqueue.json_time(p_options -> 'available_at', 'options.available_at');
begin
  if v_delay is not null and v_at is not null then
    perform hwqueue.refuse('QHA01', 'options has both delay and available_at', jsonb_build_object('field', 'options.delay'),
      'give one of them');
  end if;
  return coalesce(v_at, p_now + v_delay, p_now);
end
$$;

-- One spawn, read and checked: all but its class, which comes from spawn_class, checked there.
-- A single expression, so that Postgres puts it in place of the call: a batch is read by one statement.
-- Raises: QHA01, naming the field.
create or replace function hwqueue.read_spawn(p_ordinal int, p_lease_id uuid, p_position bigint, p_class_id bigint, p_task text,
                                              p_params jsonb, p_options jsonb, p_max_params_bytes int, p_now timestamptz)
returns hwqueue.spawn_request
language sql stable
as $$
  select row(
    p_ordinal,
    coalesce(hwqueue.json_uuid(p_options -> 'lease_id', 'options.lease_id'), p_lease_id),
    jsonb_typeof(p_options -> 'lease_id') = 'string',
    p_position,
    p_class_id,
    p_task,
    hwqueue.check_payload(coalesce(p_params, '{}'), 'params', p_max_params_bytes),
    case when p_options ? 'headers'
      then hwqueue.check_payload(hwqueue.json_object(p_options -> 'headers', 'options.headers'), 'options.headers', 16384) end,
    coalesce(hwqueue.json_integer(p_options -> 'priority', 'options.priority', -32768, 32767), 0),
    hwqueue.json_integer(p_options -> 'max_attempts', 'options.max_attempts', 1, 1000),
    case when p_options ? 'retry' then hwqueue.normalise_retry(p_options -> 'retry', 'options.retry') end,
    hwqueue.json_short_interval(p_options -> 'claim_timeout', 'options.claim_timeout', '1 second', '30 days'),
    hwqueue.json_time(p_options -> 'deadline', 'options.deadline'),
    case when p_options ?| array['delay', 'available_at'] then hwqueue.spawn_time(p_options, p_now) else p_now end,
    hwqueue.json_text(p_options -> 'idempotency_key', 'options.idempotency_key', 255),
    null,
    coalesce(hwqueue.json_boolean(p_options -> 'notify', 'options.notify'), true),
    case when p_options ? 'wire' then hwqueue.wire_blob(p_options -> 'wire', 'options.wire') end
  )::hwqueue.spawn_request
$$;

-- A spawn on its own.
-- Locks: none beyond a new class. Raises: QHA01, QHC03, QHC04, QHW01, naming the field.
create or replace function hwqueue.read_single_spawn(p_queue hwqueue.queue, p_task text, p_params jsonb, p_options jsonb, p_now timestamptz,
                                                     p_shard int) returns hwqueue.spawn_request
language plpgsql volatile
as $$
declare
  v_class_id bigint := hwqueue.spawn_class(p_queue.queue_id, p_task, hwqueue.class_options(p_options), p_shard);
begin
  if p_options is null or not p_options ?| hwqueue.kept_options() then
    -- null is written as a constant here, so that Postgres leaves out whatever reads options
    return hwqueue.read_spawn(1, hwqueue.new_id(), nextval('hwqueue.ready_position_seq'), v_class_id, p_task, p_params, null,
                              p_queue.max_params_bytes, p_now);
  end if;
  return hwqueue.read_spawn(1, hwqueue.new_id(), nextval('hwqueue.ready_position_seq'), v_class_id, p_task, p_params, p_options,
                            p_queue.max_params_bytes, p_now);
end
$$;
