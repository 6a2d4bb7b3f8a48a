-- Checks of a spawn that are shared with updates and settlements.
-- Raises: QHA01.

-- Refuses what check_payload does not let pass.
create or replace function hwqueue.refuse_payload(p_bytes int, p_field text, p_max_bytes int) returns jsonb
language plpgsql immutable
as $$
begin
  perform hwqueue.refuse('QHA01', format('%s has %s bytes, the limit is %s', p_field, p_bytes, p_max_bytes),
    jsonb_build_object('field', p_field, 'bytes', p_bytes, 'limit', p_max_bytes),
    'store large data elsewhere and pass a reference, or raise the queue policy');
  return null;
end
$$;

-- The value itself, unless it is larger than allowed. One expression, as the readers in json_checks.sql; format, unlike a cast, is not
-- run when that is planned.
create or replace function hwqueue.check_payload(p_value jsonb, p_field text, p_max_bytes int) returns jsonb
language sql stable
as $$
  select case when case when hwqueue.may_be_long(p_value) then hwqueue.text_bytes(p_value, p_max_bytes)
                   else octet_length(format('%s', p_value)) end > p_max_bytes
    then hwqueue.refuse_payload(hwqueue.text_bytes(p_value, p_max_bytes), p_field, p_max_bytes) else p_value end
$$;

-- Lease labels: text to text.
create or replace function hwqueue.check_labels(p_labels jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_key text;
begin
  if p_labels is null or jsonb_typeof(p_labels) = 'null' or p_labels = '{}' then
    return '{}'::jsonb;
  end if;
  if jsonb_typeof(p_labels) <> 'object' or (select count(*) from jsonb_object_keys(p_labels)) > 64 then
    perform hwqueue.refuse('QHA01', format('%s must be an object of at most 64 labels', p_field),
      jsonb_build_object('field', p_field), 'for example {"app": "billing"}');
  end if;
  select l.key into v_key from jsonb_each(p_labels) l
  where length(l.key) not between 1 and 253 or jsonb_typeof(l.value) <> 'string' or length(l.value #>> '{}') > 1024 limit 1;
  if found then
    perform hwqueue.refuse('QHA01', format('%s has a bad label %s', p_field, to_json(left(v_key, 60))),
      jsonb_build_object('field', p_field || '.' || left(v_key, 100)),
      'labels of a lease map text of 1 to 253 characters to text of at most 1024');
  end if;
  return p_labels;
end
$$;

-- Lower runs first. Ageing is built in: with a step, every step of waiting is worth one priority.
-- Stable only because extract is: an expression that Postgres puts in place of the call.
create or replace function hwqueue.lease_rank(p_step interval, p_eligible_at timestamptz, p_priority int) returns bigint
language sql stable
as $$
  select case when p_step > interval '0'
    then floor(extract(epoch from p_eligible_at) / extract(epoch from p_step))::bigint else 0 end - p_priority
$$;
