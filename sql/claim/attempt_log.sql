-- The log lines of attempts: what handlers log while they run.
--
-- api/claims.append_logs and api/leases.lease_logs call this module. An example: the handler of frame 7
-- logs "texture missing". Its worker numbers the line, 41 of this claim, and sends it within a second with
-- those of its other claims; write_logs adds a row. When the claim ends the rows stay.
--
-- Invariants: only who holds a claim adds lines, fenced by the token. A claim has at most 1,000 rows: a
-- line deletes those that are 1,000 and more below it, so that what was logged last is kept. Two calls about
-- one claim at once do not see each other's lines: what is too much then goes with the next. The numbers
-- tell what is missing. A row lives no longer than its lease: a call holds the lease's row, so that prune
-- (remove_leases) waits for it and sees what it wrote.
--
-- Read write_logs first; check_logs refuses what it could not write.

-- Adds the lines of claims, checked by check_logs. Claims that have ended or are another login's are left
-- out, and so are lines that are there already. Returns how many lines were added.
-- Locks: the rows of the leases, for key share, skip locked.
create or replace function hwqueue.write_logs(p_logs jsonb) returns int
language plpgsql volatile
as $$
declare
  v_count int;
begin
  with told as (
    select t.lease_id, t.claim_token, t.lines,
           max(m.line) over (partition by t.lease_id, t.claim_token) as last_line
    from jsonb_to_recordset(p_logs) as t(lease_id uuid, claim_token numeric, lines jsonb)
    cross join lateral (
      select max((e.value ->> 'line')::int) as line from jsonb_array_elements(t.lines) e) m
  ), held as (
    select t.*, own.attempt from told t
    cross join lateral (
      select c.attempt from hwqueue.claim c
      where c.lease_id = t.lease_id and c.claim_token = t.claim_token
        and hwqueue.is_own(c.login) offset 0) own
    join hwqueue.lease l on l.lease_id = t.lease_id
    order by l.lease_id for key share of l skip locked
  ), kept as (
    select h.lease_id, h.claim_token::bigint as claim_token, h.attempt, h.lines,
           greatest(h.last_line, (
             select a.line from hwqueue.attempt_log a
             where a.lease_id = h.lease_id and a.claim_token = h.claim_token::bigint
             order by a.line desc limit 1)) - 1000 as dropped_to
    from held h
  ), dropped as (
    delete from hwqueue.attempt_log a using kept k
    where k.dropped_to > 0 and a.lease_id = k.lease_id
      and a.claim_token = k.claim_token and a.line <= k.dropped_to
  )
  insert into hwqueue.attempt_log (lease_id, claim_token, line, attempt, logged_at, level, message, fields)
  select k.lease_id, k.claim_token, t.line, k.attempt, t.at, coalesce(t.level, 'info'),
         coalesce(t.message, ''), nullif(nullif(t.fields, 'null'), '{}')
  from kept k
  cross join lateral jsonb_to_recordset(k.lines) as t(
    line int, at timestamptz, level text, message text, fields jsonb)
  where t.line > k.dropped_to
  on conflict (lease_id, claim_token, line) do nothing;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Checks the log lines of claims: at most 1,000 claims, and at most 1,000 lines of each.
-- Raises: QHA01, naming the element.
create or replace function hwqueue.check_logs(p_logs jsonb) returns void
language plpgsql stable
as $$
declare
  v_item jsonb;
  v_field text;
begin
  if jsonb_typeof(p_logs) is distinct from 'array' or jsonb_array_length(p_logs) > 1000 then
    perform hwqueue.refuse('QHA01', 'p_logs must be a JSON array of at most 1000 claims with their lines',
      jsonb_build_object('field', 'p_logs'),
      'such as [{"lease_id": "...", "claim_token": 1, "lines": [{"line": 1, "at": "...", "message": "a"}]}]');
  end if;
  for v_item, v_field in
    select e.value, format('p_logs[%s]', e.ordinality - 1)
    from jsonb_array_elements(p_logs) with ordinality e
  loop
    perform hwqueue.check_object(v_item, array['lease_id', 'claim_token', 'lines'], v_field);
    perform hwqueue.check_claim(v_item, v_field);
    perform hwqueue.check_log_line(e.value, format('%s.lines[%s]', v_field, e.ordinality - 1))
    from jsonb_array_elements(hwqueue.json_list(v_item -> 'lines', v_field || '.lines', 1000,
      'an array of at most 1000 lines', 'send the last ones: no more are kept')) with ordinality e;
  end loop;
end
$$;

-- Checks one line: {"line", "at", "level", "message", "fields"}, the first two of them required.
-- Raises: QHA01, naming the field.
create or replace function hwqueue.check_log_line(p_line jsonb, p_field text) returns void
language plpgsql stable
as $$
declare
  v_message jsonb := p_line -> 'message';
  v_fields jsonb;
begin
  perform hwqueue.check_object(p_line, array['line', 'at', 'level', 'message', 'fields'], p_field),
    hwqueue.json_choice(p_line -> 'level', p_field || '.level', array['debug', 'info', 'warning', 'error']);
  if hwqueue.json_integer(p_line -> 'line', p_field || '.line', 1, 2147483647) is null
     or hwqueue.json_time(p_line -> 'at', p_field || '.at') is null then
    perform hwqueue.refuse('QHA01', format('%s needs line and at', p_field),
      jsonb_build_object('field', p_field), 'give its number in the claim, and when it was logged');
  end if;
  if v_message is not null
     and (jsonb_typeof(v_message) <> 'string' or octet_length(v_message #>> '{}') > 4096) then
    perform hwqueue.refuse_value(v_message, p_field || '.message', 'text of at most 4096 bytes',
      'cut it, or log several lines', 'QHA01');
  end if;
  v_fields := hwqueue.json_object(p_line -> 'fields', p_field || '.fields');
  if hwqueue.text_bytes(v_fields, 4096) > 4096 then
    perform hwqueue.refuse('QHA01', format('%s.fields must have at most 4096 bytes', p_field),
      jsonb_build_object('field', p_field || '.fields'), 'leave some out');
  end if;
end
$$;

-- Reads the place of a line as lease_logs returns it: claim token and line. Both are 0 for null.
-- Raises: QHA01.
create or replace function hwqueue.read_log_place(p_after text, out claim_token bigint, out line int)
language plpgsql immutable
as $$
begin
  if p_after !~ '^[0-9]{1,19}[.][0-9]{1,10}$'
     or split_part(p_after, '.', 1)::numeric > 9223372036854775807
     or split_part(p_after, '.', 2)::numeric > 2147483647 then
    perform hwqueue.refuse('QHA01', 'p_after must be the cursor of a line',
      jsonb_build_object('field', 'p_after'), 'pass it as lease_logs returned it, or null to begin');
  end if;
  claim_token := coalesce(split_part(p_after, '.', 1)::bigint, 0);
  line := coalesce(split_part(p_after, '.', 2)::int, 0);
end
$$;
