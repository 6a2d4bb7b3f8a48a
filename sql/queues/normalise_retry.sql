-- A retry policy in normal form: {kind, base, factor, max, jitter}, spans in seconds. Raises: QHA01.
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
      jsonb_build_object('field', p_field || '.kind'), 'for example {"kind": "exponential", "base": 5, "factor": 2, "max": 600}');
  end if;
  if v_kind = 'none' then
    return '{"kind": "none"}'::jsonb;
  end if;
  return jsonb_build_object(
    'kind', v_kind,
    'base', extract(epoch from coalesce(hwqueue.json_interval(p_retry -> 'base', p_field || '.base'), interval '5 seconds')),
    'factor', coalesce(hwqueue.json_number(p_retry -> 'factor', p_field || '.factor', 1, 100), 2),
    'max', extract(epoch from coalesce(hwqueue.json_interval(p_retry -> 'max', p_field || '.max'), interval '10 minutes')),
    'jitter', coalesce(hwqueue.json_number(p_retry -> 'jitter', p_field || '.jitter', 0, 1), 0.2));
end
$$;

-- How long to wait before the attempt after p_attempt (1, 2, ...): base x factor^(attempt - 1), at most max, less a random
-- part of up to jitter; null when the policy is none.
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
