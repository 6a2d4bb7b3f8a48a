-- What callers pass as JSON objects: their keys, in one table, and the function that reads them by it.
--
-- Example: policy has "max_attempts": ["integer", 1, 1000, 5]: a whole number from 1 to 1000, 5 in a new
-- queue. read_object refuses other values, drops nulls, and returns spans as seconds. So what it returns can
-- be compared, stored, and made a row of by jsonb_populate_record.
--
-- docs/reference/options.md and what HTTP accepts are made of the table. Options that each lease of a batch
-- may have are read by spawn/read, one expression without a call for what is absent; tests hold that both
-- say the same.

-- The keys of a kind of object, each with [type, least, most, default]. The type is that of a reader of
-- base/json; "choice" has the words, "text" and "names" the lengths, "texts" how many and how long. A null
-- default: there is none, or it is not a constant. "any" is read by the caller.
create or replace function hwqueue.known_keys(p_kind text) returns jsonb
language sql immutable parallel safe
as $$
  select case p_kind
    when 'policy' then '{
      "claim_timeout": ["span", "1 second", "30 days", "40 seconds"],
      "poll_interval": ["span", "0.01 second", null, "1 second"],
      "patience": ["span", "0", null, "2 seconds"],
      "max_attempts": ["integer", 1, 1000, 5],
      "retry": ["retry", null, null,
        {"kind": "exponential", "base": 5, "factor": 2, "max": 600, "jitter": 0.2}],
      "ageing_step": ["span", "0", null, "0"],
      "failure_domain": ["domain", null, null, "rack"],
      "earmarks": ["integer", 0, 1000, 1],
      "everywhere_tenants": ["texts", 1000, 100, []],
      "everywhere_limit": ["integer", 0, 1000, 20],
      "max_params_bytes": ["integer", 1, 104857600, 1048576],
      "max_result_bytes": ["integer", 1, 104857600, 1048576],
      "retain_completed": ["span", "0", null, "7 days"],
      "retain_failed": ["span", "0", null, "30 days"],
      "tuning": ["tuning", null, null, {"window_size": 100, "probe_size": 1000, "weight_affinity": 10,
        "weight_fit": 1, "weight_spread": 1, "notify": true, "earmark_time": 600}]}'::jsonb
    when 'tuning' then '{
      "window_size": ["integer", 1, 10000], "probe_size": ["integer", 0, 100000],
      "weight_affinity": ["number", 0, 1000], "weight_fit": ["number", 0, 1000],
      "weight_spread": ["number", 0, 1000], "notify": ["boolean"],
      "earmark_time": ["span", "1 second", "30 days"]}'
    when 'retry' then '{
      "kind": ["choice", ["exponential", "fixed", "none"], null, "exponential"],
      "base": ["span", "0", null, 5], "factor": ["number", 1, 100, 2],
      "max": ["span", "0", null, 600], "jitter": ["number", 0, 1, 0.2]}'
    end
$$;

-- The keys of a kind that have a default, with it.
create or replace function hwqueue.default_values(p_kind text) returns jsonb
language sql immutable parallel safe
as $$
  select jsonb_object_agg(k.key, k.value -> 3) from jsonb_each(hwqueue.known_keys(p_kind)) k
  where k.value -> 3 <> 'null'
$$;

-- Returns an object of a kind in normal form, without nulls. p_now: what a span from now counts from.
-- Raises: p_code for what is no object, for an unknown key and for a bad value, naming the field; QHA01 for
-- long spans.
create or replace function hwqueue.read_object(p_value jsonb, p_kind text, p_field text,
  p_code text default 'QHA01', p_now timestamptz default null) returns jsonb
language plpgsql stable
as $$
declare
  v_known jsonb := hwqueue.known_keys(p_kind);
begin
  perform hwqueue.check_object(p_value, array(select jsonb_object_keys(v_known)), p_field, p_code);
  return (
    select coalesce(jsonb_object_agg(v.key, hwqueue.read_value(v.value, v_known -> v.key,
      p_field || '.' || v.key, p_code, p_now)), '{}')
    from jsonb_each(p_value) v where v.value <> 'null');
end
$$;

-- Returns a value that is not null, as a row of the table asks (p_rule).
-- Raises: as read_object.
create or replace function hwqueue.read_value(p_value jsonb, p_rule jsonb, p_field text, p_code text,
  p_now timestamptz) returns jsonb
language plpgsql stable
as $$
begin
  return case p_rule ->> 0
    when 'span' then to_jsonb(trim_scale(extract(epoch from case when p_rule ->> 2 is null
      then hwqueue.json_interval(p_value, p_field, (p_rule ->> 1)::interval, p_code)
      else hwqueue.json_short_interval(p_value, p_field, (p_rule ->> 1)::interval,
        (p_rule ->> 2)::interval) end)))
    when 'integer' then to_jsonb(hwqueue.json_integer(p_value, p_field, (p_rule -> 1)::bigint,
      (p_rule -> 2)::bigint, p_code))
    when 'number' then to_jsonb(trim_scale(hwqueue.json_number(p_value, p_field, (p_rule -> 1)::numeric,
      (p_rule -> 2)::numeric, p_code)))
    when 'text' then to_jsonb(hwqueue.json_text(p_value, p_field, (p_rule -> 2)::int, p_code))
    when 'choice' then to_jsonb(hwqueue.json_choice(p_value, p_field,
      array(select jsonb_array_elements_text(p_rule -> 1)), p_code))
    when 'boolean' then to_jsonb(hwqueue.json_boolean(p_value, p_field, p_code))
    when 'uuid' then to_jsonb(hwqueue.json_uuid(p_value, p_field, p_code))
    when 'domain' then to_jsonb(hwqueue.json_domain(p_value, p_field, p_code))
    when 'moment' then to_jsonb(hwqueue.json_moment(p_value, p_field, p_now))
    when 'time' then to_jsonb(hwqueue.json_time(p_value, p_field, p_code))
    when 'texts' then hwqueue.json_texts(p_value, p_field, (p_rule -> 1)::int, (p_rule -> 2)::int, p_code)
    when 'names' then to_jsonb(hwqueue.json_names(p_value, p_field, (p_rule -> 2)::int))
    when 'object' then hwqueue.json_object(p_value, p_field, p_code)
    when 'labels' then hwqueue.check_labels(p_value, p_field)
    when 'retry' then hwqueue.normalise_retry(p_value, p_field)
    when 'any' then p_value
    else hwqueue.read_object(p_value, p_rule ->> 0, p_field, p_code, p_now) end;
end
$$;

-- Reads a list of texts; it is returned sorted and distinct.
create or replace function hwqueue.json_texts(p_value jsonb, p_field text, p_most int, p_max_length int,
  p_code text) returns jsonb
language sql immutable
as $$
  select hwqueue.normal_set(coalesce(jsonb_agg(to_jsonb(coalesce(
    hwqueue.json_text(t.value, f.field, p_max_length, p_code),
    hwqueue.refuse_value(t.value, f.field, 'text', 'leave out what is null', p_code)))), '[]'))
  from jsonb_array_elements(hwqueue.json_list(p_value, p_field, p_most,
    format('a list of at most %s texts', p_most), 'for example ["one", "another"]', p_code))
    with ordinality t
  cross join lateral (select format('%s[%s]', p_field, t.ordinality - 1) as field) f
$$;

-- Returns a retry policy in normal form: {kind, base, factor, max, jitter}, spans in seconds. Null for an
-- absent one.
-- Raises: QHA01.
create or replace function hwqueue.normalise_retry(p_retry jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_retry jsonb;
begin
  if p_retry is null or jsonb_typeof(p_retry) = 'null' then
    return null;
  end if;
  v_retry := hwqueue.read_object(p_retry, 'retry', p_field);
  return case when v_retry ->> 'kind' = 'none' then '{"kind": "none"}'
    else hwqueue.default_values('retry') || v_retry end;
end
$$;

-- Returns lease labels, which map text to text.
-- Raises: QHA01.
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
  where length(l.key) not between 1 and 253 or jsonb_typeof(l.value) <> 'string'
    or length(l.value #>> '{}') > 1024
  limit 1;
  if found then
    perform hwqueue.refuse('QHA01', format('%s has a bad label %s', p_field, to_json(left(v_key, 60))),
      jsonb_build_object('field', p_field || '.' || left(v_key, 100)),
      'labels of a lease map text of 1 to 253 characters to text of at most 1024');
  end if;
  return p_labels;
end
$$;
