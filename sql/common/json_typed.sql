-- Checked readers of JSON arguments that Postgres itself parses: spans, times, ids. Null for absent or JSON null.
-- What is absent costs no call: the outer functions are expressions (json_checks.sql).
-- Locks: none. Raises: p_code (QHA01 or QHC03), naming the field. Idempotent: yes.

-- A span that is there.
create or replace function hwqueue.parse_interval(p_value jsonb, p_field text, p_min interval, p_code text) returns interval
language plpgsql immutable
as $$
declare
  v_span interval;
begin
  begin
    if jsonb_typeof(p_value) = 'number' and p_value::numeric between 0 and 315360000 then
      v_span := make_interval(secs => round(p_value::numeric, 6)::double precision);
    elsif jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') <= 100 then
      v_span := (p_value #>> '{}')::interval;
    end if;
  exception when invalid_datetime_format or datetime_field_overflow or interval_field_overflow then
    v_span := null;
  end;
  if v_span is null or extract(year from v_span) <> 0 or extract(month from v_span) <> 0
     or extract(epoch from v_span) not between extract(epoch from p_min) and 315360000 then
    perform hwqueue.refuse_value(p_value, p_field, format('a span of %s or more, at most ten years', p_min),
      'give seconds (90) or interval text without months ("1 minute 30 seconds")', p_code);
  end if;
  return v_span;
end
$$;

-- Seconds, or interval text without months (a month has no fixed length); at most ten years.
create or replace function hwqueue.json_interval(p_value jsonb, p_field text, p_min interval default interval '0',
                                                 p_code text default 'QHA01') returns interval
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_interval(p_value, p_field, p_min, p_code) end
$$;

-- A span that is there, with an end: what is over only after such a span must be so within a time that people
-- plan for.
create or replace function hwqueue.parse_short_interval(p_value jsonb, p_field text, p_min interval, p_most interval)
returns interval
language plpgsql immutable
as $$
declare
  v_span interval := hwqueue.parse_interval(p_value, p_field, p_min, 'QHA01');
begin
  if v_span > p_most then
    perform hwqueue.refuse_value(p_value, p_field, format('a span of %s to %s', p_min, p_most),
      'give a shorter one: a heartbeat makes a claim or a node live on', 'QHA01');
  end if;
  return v_span;
end
$$;

-- Seconds, or interval text without months; at most p_most.
create or replace function hwqueue.json_short_interval(p_value jsonb, p_field text, p_min interval, p_most interval)
returns interval
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_short_interval(p_value, p_field, p_min, p_most) end
$$;

-- A time that is there, in the years 1 to 9999 in UTC: clients read no other, and one lease would keep them from reading any.
create or replace function hwqueue.parse_time(p_value jsonb, p_field text, p_code text) returns timestamptz
language plpgsql stable
as $$
declare
  v_time timestamptz;
begin
  if jsonb_typeof(p_value) = 'string'
     and p_value #>> '{}' ~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}[t ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(z|[+-][0-9]{2}:?[0-9]{2})$' then
    begin
      v_time := (p_value #>> '{}')::timestamptz;
    exception when invalid_datetime_format or datetime_field_overflow or invalid_time_zone_displacement_value then
      v_time := null;
    end;
  end if;
  if v_time is null or v_time not between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
    perform hwqueue.refuse_value(p_value, p_field, 'a time with an offset',
      'use RFC 3339 and years 1 to 9999 in UTC, for example "2030-01-31T12:00:00Z"', p_code);
  end if;
  return v_time;
end
$$;

-- RFC 3339 with an offset: a time without one would mean something else in every session.
create or replace function hwqueue.json_time(p_value jsonb, p_field text, p_code text default 'QHA01') returns timestamptz
language sql stable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    else hwqueue.parse_time(p_value, p_field, p_code) end
$$;

-- A uuid in its usual form.
create or replace function hwqueue.json_uuid(p_value jsonb, p_field text, p_code text default 'QHA01') returns uuid
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when jsonb_typeof(p_value) = 'string'
         and p_value #>> '{}' ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then (p_value #>> '{}')::uuid
    else hwqueue.refuse_value(p_value, p_field, 'a uuid', 'give an id such as "0197f3a2-7c1e-7000-8000-000000000000"',
      p_code)::uuid end
$$;

-- A domain, what "the same place" means: node, rack or label:KEY with a label key of 1 to 253 characters.
create or replace function hwqueue.json_domain(p_value jsonb, p_field text, p_code text default 'QHA01') returns text
language sql immutable
as $$
  select case when p_value is null or jsonb_typeof(p_value) = 'null' then null
    when p_value in ('"node"', '"rack"') then p_value #>> '{}'
    when jsonb_typeof(p_value) = 'string' and p_value #>> '{}' like 'label:_%' and length(p_value #>> '{}') <= 259 then p_value #>> '{}'
    else hwqueue.refuse_value(p_value, p_field, '"node", "rack" or "label:KEY"',
      'KEY is a node label of 1 to 253 characters, as in "label:zone"', p_code) end
$$;
