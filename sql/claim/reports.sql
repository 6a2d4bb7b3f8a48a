-- What handlers report while they run: how far claims have come, and log lines.
--
-- An example: the handler of frame 7 says that 40 of 100 tiles are drawn, and logs "texture missing". Its
-- worker sends the first at most once a second (report_progress in api/claims), and the line, number 41 of
-- this claim, within a second with those of its other claims (append_logs). When the claim ends the rows
-- stay: get_lease shows the last progress of each attempt, lease_logs the lines.
--
-- Invariants: only who holds a claim writes its rows, fenced by the token. A claim has at most 1,000 lines: a
-- line deletes those that are 1,000 and more below it. Two calls about one claim at once do not see each
-- other's lines: what is too much then goes with the next; the numbers tell what is missing. A row lives no
-- longer than its lease: a call holds the lease's row, so that prune (delete_leases, remove_leases) waits for
-- it and sees what it wrote.

-- Checks reports of progress, at most 1000, one by one. Raises QHA01, naming the element.
create or replace function hwqueue.check_progress(p_reports jsonb) returns void
language plpgsql immutable
as $$
declare
  v_item jsonb;
  v_field text;
  v_done bigint;
  v_total bigint;
begin
  for v_item, v_field in
    select e.value, format('p_reports[%s]', e.ordinality - 1)
    -- null is no list
    from jsonb_array_elements(hwqueue.json_list(coalesce(nullif(p_reports, 'null'), '""'), 'p_reports', 1000,
      'an array of at most 1000 reports',
      'for example [{"lease_id": "...", "claim_token": 1, "fraction": 0.4, "message": "frame 40"}]'))
      with ordinality e
  loop
    perform hwqueue.check_object(v_item,
        array['lease_id', 'claim_token', 'fraction', 'done', 'total', 'message'], v_field),
      hwqueue.json_number(v_item -> 'fraction', v_field || '.fraction', 0, 1),
      hwqueue.json_text(v_item -> 'message', v_field || '.message', 200);
    perform hwqueue.check_claim(v_item, v_field);
    v_done := hwqueue.json_integer(v_item -> 'done', v_field || '.done', 0, 9223372036854775807);
    v_total := hwqueue.json_integer(v_item -> 'total', v_field || '.total', 1, 9223372036854775807);
    if v_total is not null and (v_done <= v_total) is not true then
      perform hwqueue.refuse('QHA01',
        format('%s.done must be from 0 to total, which is %s', v_field, v_total),
        jsonb_build_object('field', v_field || '.done'), 'give how many of the total are done');
    end if;
  end loop;
end
$$;

-- What a claim has reported last, as get_lease returns it; null: nothing.
create or replace function hwqueue.progress_of(p_lease uuid, p_token bigint) returns jsonb
language plpgsql stable
as $$ begin return (
  select jsonb_build_object('fraction', p.fraction::numeric, 'done', p.done, 'total', p.total,
    'message', p.message, 'reported_at', p.reported_at)
  from hwqueue.progress p where p.lease_id = p_lease and p.claim_token = p_token
); end $$;

-- What get_lease tells, of each of these leases that exists. offset 0: by key, whatever the statistics say.
create or replace function hwqueue.lease_details(p_ids uuid[])
returns table (lease_id uuid, queue text, task_name text, state text, priority smallint,
  tenant text, service_id uuid, labels jsonb, placement jsonb, params jsonb, headers jsonb,
  attempt smallint, max_attempts smallint, available_at timestamptz, deadline timestamptz,
  created_at timestamptz, claimed_at timestamptz, finished_at timestamptz, expires_at timestamptz,
  node_id uuid, claim_token bigint, assignment jsonb, result jsonb, error jsonb, attempts jsonb,
  idempotency_key text, stop_reason text, wire bytea, progress jsonb)
language sql stable
as $$
  select l.lease_id, q.name, l.task_name, hwqueue.lease_state(l.lease_id), l.priority, c.tenant,
         c.service_id, coalesce(l.labels, c.labels), c.placement, l.params, l.headers,
         coalesce(r.attempt, o.attempt, l.attempt_count), coalesce(l.max_attempts, q.max_attempts),
         nullif(l.available_at, 'infinity'), l.deadline, l.created_at,
         coalesce(r.claimed_at, o.claimed_at, l.claimed_at), o.finished_at,
         nullif(r.expires_at, 'infinity'), coalesce(r.node_id, o.node_id, l.node_id),
         nullif(coalesce(r.claim_token, o.claim_token, l.claim_token), 0),
         coalesce(r.assignment, o.assignment), o.result, o.error,
         coalesce((select jsonb_agg(jsonb_build_object('attempt', a.attempt, 'claim_token', a.claim_token,
             'node_id', a.node_id, 'assignment', a.assignment, 'outcome', a.outcome,
             'claimed_at', a.claimed_at, 'ended_at', a.ended_at, 'error', a.error,
             'progress', hwqueue.progress_of(a.lease_id, a.claim_token)) order by a.claim_token)
                   from hwqueue.attempt a where a.lease_id = l.lease_id), '[]'),
         l.idempotency_key, r.stop_reason, l.wire,
         hwqueue.progress_of(l.lease_id, coalesce(r.claim_token, o.claim_token))
  from unnest(p_ids) i(lease_id)
  cross join lateral (select * from hwqueue.lease x where x.lease_id = i.lease_id offset 0) l
  join hwqueue.queue q on q.queue_id = l.queue_id
  join hwqueue.placement_class c on c.class_id = l.class_id
  left join hwqueue.claim r on r.lease_id = l.lease_id
  left join hwqueue.outcome o on o.lease_id = l.lease_id
$$;

-- Checks the log lines of claims: at most 1,000 claims, and at most 1,000 lines of each, which are {"line",
-- "at", "level", "message", "fields"}, the first two of them required. Raises: QHA01, naming the element.
create or replace function hwqueue.check_logs(p_logs jsonb) returns void
language plpgsql stable
as $$
declare
  v_item jsonb;
  v_field text;
  v_line jsonb;
  v_place text;
begin
  for v_item, v_field in
    select e.value, format('p_logs[%s]', e.ordinality - 1)
    from jsonb_array_elements(hwqueue.json_list(coalesce(nullif(p_logs, 'null'), '""'), 'p_logs', 1000,
      'an array of at most 1000 claims with their lines',
      'such as [{"lease_id": "...", "claim_token": 1, "lines": [{"line": 1, "at": "...", "message": "a"}]}]'))
      with ordinality e
  loop
    perform hwqueue.check_object(v_item, array['lease_id', 'claim_token', 'lines'], v_field);
    perform hwqueue.check_claim(v_item, v_field);
    for v_line, v_place in
      select e.value, format('%s.lines[%s]', v_field, e.ordinality - 1)
      from jsonb_array_elements(hwqueue.json_list(v_item -> 'lines', v_field || '.lines', 1000,
        'an array of at most 1000 lines', 'send the last ones: no more are kept')) with ordinality e
    loop
      perform hwqueue.check_object(v_line, array['line', 'at', 'level', 'message', 'fields'], v_place),
        hwqueue.json_choice(v_line -> 'level', v_place || '.level',
          array['debug', 'info', 'warning', 'error']);
      if hwqueue.json_integer(v_line -> 'line', v_place || '.line', 1, 2147483647) is null
         or hwqueue.json_time(v_line -> 'at', v_place || '.at') is null then
        perform hwqueue.refuse('QHA01', format('%s needs line and at', v_place),
          jsonb_build_object('field', v_place), 'give its number in the claim, and when it was logged');
      end if;
      if (jsonb_typeof(v_line -> 'message') = 'string'
          and octet_length(v_line ->> 'message') <= 4096) is false then
        perform hwqueue.refuse_value(v_line -> 'message', v_place || '.message', 'text of at most 4096 bytes',
          'cut it, or log several lines', 'QHA01');
      end if;
      if hwqueue.text_bytes(hwqueue.json_object(v_line -> 'fields', v_place || '.fields'), 4096) > 4096 then
        perform hwqueue.refuse('QHA01', format('%s.fields must have at most 4096 bytes', v_place),
          jsonb_build_object('field', v_place || '.fields'), 'leave some out');
      end if;
    end loop;
  end loop;
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
