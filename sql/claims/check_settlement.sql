-- Checks the parts of a settlement before anything is locked: {"outcome", "result", "error", "retry", "retry_at", "delay"}.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_settlement(p_settlement jsonb, p_field text) returns void
language plpgsql stable
as $$
begin
  perform hwqueue.check_object(p_settlement, array['lease_id', 'claim_token', 'outcome', 'result', 'error', 'retry', 'retry_at', 'delay'], p_field);
  if coalesce(p_settlement -> 'outcome' not in ('"complete"', '"fail"', '"release"'), true) then
    perform hwqueue.refuse('QHA01', format('%s.outcome must be complete, fail or release', p_field),
      jsonb_build_object('field', p_field || '.outcome'), 'for example {"lease_id": "...", "claim_token": 1, "outcome": "complete"}');
  end if;
  if jsonb_typeof(p_settlement -> 'error') not in ('object', 'null') then
    perform hwqueue.refuse('QHA01', format('%s.error must be a JSON object', p_field), jsonb_build_object('field', p_field || '.error'),
      'for example {"message": "..."}');
  end if;
  perform hwqueue.check_payload(p_settlement -> 'error', p_field || '.error', 65536),
          hwqueue.json_boolean(p_settlement -> 'retry', p_field || '.retry'),
          hwqueue.json_time(p_settlement -> 'retry_at', p_field || '.retry_at'),
          hwqueue.json_interval(p_settlement -> 'delay', p_field || '.delay');
end
$$;

-- A result must fit its queue's limit.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_result(p_lease uuid, p_result jsonb, p_field text, p_shard int) returns void
language plpgsql stable
as $$
declare
  v_limit int;
begin
  if p_result is null then
    return;
  end if;
  select q.max_result_bytes into v_limit
  from hwqueue.lease l join hwqueue.queue q on q.shard_id = l.shard_id and q.queue_id = l.queue_id
  where l.shard_id = p_shard and l.lease_id = p_lease;
  perform hwqueue.check_payload(p_result, p_field, coalesce(v_limit, 10000000));
end
$$;
