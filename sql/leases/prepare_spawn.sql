-- Reads and checks one spawn; writes nothing. p_class is what spawn_class gave for the same task and options.
-- Locks: none. Raises: QHA01, QHC05, naming the field. Idempotent: yes, but for the new lease_id.
create or replace function hwqueue.prepare_spawn(p_queue hwqueue.queue, p_ordinal int, p_task text, p_params jsonb, p_options jsonb,
                                                 p_class jsonb, p_now timestamptz) returns hwqueue.spawn_request
language plpgsql volatile
as $$
declare
  v_spawn hwqueue.spawn_request;
  v_options jsonb := coalesce(p_options, '{}');
  v_field text := 'options';
  v_delay interval;
begin
  v_spawn.ordinal := p_ordinal;
  v_spawn.task_name := p_task;
  v_spawn.params := hwqueue.check_payload(coalesce(p_params, '{}'), 'params', p_queue.max_params_bytes);
  v_spawn.available_at := p_now;
  v_spawn.notify := true;
  v_spawn.tenant := '';
  v_spawn.priority := 0;
  if v_options <> '{}' then
    if v_options ?| array['wire', 'patience'] then
      perform hwqueue.refuse('QHC05', format('%s.%s is not served by this version', v_field, case when v_options ? 'wire' then 'wire' else 'patience' end),
        jsonb_build_object('field', v_field || case when v_options ? 'wire' then '.wire' else '.patience' end), 'leave it out');
    end if;
    v_spawn.lease_id := hwqueue.json_uuid(v_options -> 'lease_id', v_field || '.lease_id');
    v_spawn.priority := coalesce(hwqueue.json_integer(v_options -> 'priority', v_field || '.priority', -32768, 32767), 0);
    v_spawn.tenant := coalesce(hwqueue.json_text(v_options -> 'tenant', v_field || '.tenant', 100), '');
    v_delay := hwqueue.json_interval(v_options -> 'delay', v_field || '.delay');
    v_spawn.available_at := coalesce(hwqueue.json_time(v_options -> 'available_at', v_field || '.available_at'), p_now + v_delay, p_now);
    if v_delay is not null and jsonb_typeof(v_options -> 'available_at') = 'string' then
      perform hwqueue.refuse('QHA01', format('%s has both delay and available_at', v_field),
        jsonb_build_object('field', v_field || '.delay'), 'give one of them');
    end if;
    v_spawn.max_attempts := hwqueue.json_integer(v_options -> 'max_attempts', v_field || '.max_attempts', 1, 1000);
    v_spawn.retry := hwqueue.normalise_retry(v_options -> 'retry', v_field || '.retry');
    v_spawn.claim_timeout := hwqueue.json_interval(v_options -> 'claim_timeout', v_field || '.claim_timeout', '1 second');
    v_spawn.deadline := hwqueue.json_time(v_options -> 'deadline', v_field || '.deadline');
    v_spawn.idempotency_key := hwqueue.json_text(v_options -> 'idempotency_key', v_field || '.idempotency_key', 255);
    v_spawn.notify := coalesce(hwqueue.json_boolean(v_options -> 'notify', v_field || '.notify'), true);
    if jsonb_typeof(v_options -> 'headers') <> 'null' then
      v_spawn.headers := hwqueue.check_payload(v_options -> 'headers', v_field || '.headers', 16384);
      if jsonb_typeof(v_spawn.headers) <> 'object' then
        perform hwqueue.refuse('QHA01', format('%s.headers must be a JSON object', v_field),
          jsonb_build_object('field', v_field || '.headers'), 'for example {"traceparent": "..."}');
      end if;
    end if;
  end if;
  v_spawn.own_id := v_spawn.lease_id is not null;
  v_spawn.lease_id := coalesce(v_spawn.lease_id, hwqueue.new_id());
  v_spawn.rank := hwqueue.lease_rank(p_queue.ageing_step, greatest(v_spawn.available_at, p_now), v_spawn.priority);
  v_spawn.class_id := (p_class ->> 'class_id')::bigint;
  if v_spawn.idempotency_key is not null then
    v_spawn.content := sha256(convert_to(
      jsonb_build_array(p_task, v_spawn.params, p_class -> 'placement', p_class -> 'labels')::text, 'UTF8'));
  end if;
  return v_spawn;
end
$$;
