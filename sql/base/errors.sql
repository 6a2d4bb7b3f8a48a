-- How the SQL API fails, and the argument checks that most calls begin with.
-- Every error that hwqueue raises on purpose goes through refuse. So each one has a code of class QH, a
-- message that starts in lower case, a JSON detail and a hint. docs/reference/errors.md lists the codes.
-- The functions of api/ call the checks before they read or lock a row. A check either returns or
-- raises. Those that stand inside an expression return the value that they have checked.

-- Checks a list of queue names. It returns true, so that it can stand in an expression.
-- Raises: QHA01.
create or replace function hwqueue.check_queue_names(p_queues text[]) returns boolean
language plpgsql immutable
as $$
begin
  if array_ndims(p_queues) is distinct from 1 or cardinality(p_queues) > 1000
    or array_position(p_queues, null) is not null then
    perform hwqueue.refuse_field('QHA01', 'p_queues', 'must name 1 to 1000 queues',
      'for example array[''default'']');
  end if;
  return true;
end
$$;

-- Returns an expiry time, or null where it is infinite or absent, which means that nothing expires. It is
-- the earlier one of a time and of a span from now.
-- Times beyond the year 9999 are refused. Clients cannot read them, and one such row would make every
-- list that holds it unreadable.
-- Raises: QHA01.
create or replace function hwqueue.check_expiry(p_expires_at timestamptz, p_after interval,
  p_now timestamptz) returns timestamptz
language plpgsql immutable
as $$
begin
  if p_after <= '0' or p_after > interval '3650 days' then
    perform hwqueue.refuse_field('QHA01', 'p_expires_after',
      format('must be above 0 and at most ten years, got %s', p_after),
      'give a span such as interval ''90 days''');
  end if;
  if p_expires_at <= p_now then
    perform hwqueue.refuse_field('QHA01', 'p_expires_at', format('%s has passed', p_expires_at),
      'give a time to come, or leave it out: what has no such time does not expire');
  end if;
  if p_expires_at > '9999-12-31 23:59:59.999999+00' and p_expires_at <> 'infinity' then
    perform hwqueue.refuse_field('QHA01', 'p_expires_at', format('%s is beyond the year 9999', p_expires_at),
      'leave it out: what has no such time does not expire');
  end if;
  return nullif(least(p_expires_at, p_now + hwqueue.in_seconds(p_after)), 'infinity');
end
$$;

-- Returns a row limit, and refuses one below 1. Null means all rows.
-- Raises: QHA01.
create or replace function hwqueue.checked_limit(p_limit int) returns int
language plpgsql immutable
as $$
begin
  if p_limit < 1 then
    perform hwqueue.refuse_field('QHA01', 'p_limit', format('must be at least 1, got %s', p_limit),
      'give a number of rows, or null for all');
  end if;
  return p_limit;
end
$$;

-- Refuses an argument that is null or out of its range.
-- Raises: QHA01.
create or replace function hwqueue.check_range(p_value bigint, p_field text, p_min bigint, p_max bigint,
  p_hint text) returns void
language plpgsql immutable
as $$
begin
  if (p_value between p_min and p_max) is not true then
    perform hwqueue.refuse_field('QHA01', p_field, format('must be from %s to %s', p_min, p_max), p_hint);
  end if;
end
$$;

-- Refuses a span that is null or out of its range, p_range in words.
-- Raises: QHA01.
create or replace function hwqueue.check_span(p_span interval, p_field text, p_min interval, p_max interval,
  p_range text, p_hint text) returns void
language plpgsql stable
as $$
begin
  if (p_span between p_min and p_max) is not true then
    perform hwqueue.refuse_field('QHA01', p_field,
      format('must be %s, got %s', p_range, coalesce(p_span::text, 'null')), p_hint);
  end if;
end
$$;

-- Rolls the caller's subtransaction back, which also releases the locks that it took. The caller catches
-- the error.
-- Raises: HWX01, which never leaves hwqueue.
create or replace function hwqueue.abort_subtransaction() returns void
language plpgsql volatile
as $$
begin
  raise exception 'not this one' using errcode = 'HWX01', hint = 'caught by the caller';
end
$$;

-- Refuses isolation levels above read committed.
-- Functions that grant, settle, reap or edit nodes decide on rows that they read after taking locks. A
-- snapshot that is older than the lock would show them outdated rows.
-- Raises: QHA02.
create or replace function hwqueue.require_read_committed() returns void
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform hwqueue.refuse('QHA02',
      format('this function needs isolation level read committed, not %s',
        current_setting('transaction_isolation')),
      jsonb_build_object('isolation', current_setting('transaction_isolation')),
      'set transaction isolation level read committed first; where the database or the role has another '
      || 'default: alter role ... set default_transaction_isolation = ''read committed''');
  end if;
end
$$;

-- Refuses names that would not survive a command line, a metric label or a URL.
-- Raises: QHA01.
create or replace function hwqueue.check_name(p_name text, p_field text, p_max_length int default 100)
returns void
language plpgsql immutable
as $$
begin
  if p_name is null or length(p_name) > p_max_length or p_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.:@/-]*$' then
    perform hwqueue.refuse('QHA01',
      format('%s is no valid name: %s', p_field, coalesce(to_json(left(p_name, 60))::text, 'null')),
      jsonb_build_object('field', p_field, 'length', length(p_name)),
      format('use 1 to %s characters of A-Z, a-z, 0-9, _ . : @ / - and start with a letter, digit or _',
        p_max_length));
  end if;
end
$$;

-- Raises an error. Every deliberate error of hwqueue comes from here.
-- p_code is of class QH, p_message starts in lower case, p_detail holds ids and values, p_hint says what
-- to do.
-- Raises: p_code, always.
create or replace function hwqueue.refuse(p_code text, p_message text, p_detail jsonb, p_hint text)
returns void
language plpgsql volatile
as $$
begin
  raise exception using
    errcode = p_code,
    message = p_message,
    detail = coalesce(jsonb_strip_nulls(p_detail), '{}'::jsonb)::text,
    hint = p_hint;
end
$$;

-- The same for one field: the message begins with its name.
-- Raises: p_code, always.
create or replace function hwqueue.refuse_field(p_code text, p_field text, p_words text, p_hint text)
returns void
language sql volatile
as $$
  select hwqueue.refuse(p_code, p_field || ' ' || p_words, jsonb_build_object('field', p_field), p_hint)
$$;

-- Says what is kept of a failure in one line: "ValueError: no such film", "its run has stopped".
create or replace function hwqueue.error_words(p_error jsonb) returns text
language sql stable parallel safe
as $$
  select left(regexp_replace(coalesce(
    case when jsonb_typeof(p_error) = 'object' then nullif(concat_ws(': ', p_error ->> 'type',
      coalesce(p_error ->> 'message', case when jsonb_typeof(p_error -> 'detail') = 'string'
        then p_error ->> 'detail' end, replace(p_error ->> 'reason', '_', ' ')),
      p_error ->> 'first_error'), '') end,
    p_error #>> '{}'), '[[:cntrl:][:space:]]+', ' ', 'g'), 200)
$$;
