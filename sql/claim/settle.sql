-- Settling claims: the checks, the verdicts, one claim or a batch.
--
-- Which function calls which; those that end a claim are in claim/end_claim:
--
--   complete_lease ----------------> end_completed_claim; if that does nothing, settle_one
--   fail_lease, release_lease,
--   suspend_lease -----------------> settle_one (workflows/ending), which raises the error of a verdict
--   settle_and_claim --------------> one completion: end_completed_claim; what else: settle_lists
--   complete_leases ---------------> settle_lists
--   settle_lists ------------------> end_completed_claims, in one statement; the rest one by one: completions
--                                    end_completed_claim, what is left then settle_claim
--   settle_one --------------------> settle_claim, and from there end_completed_claim or end_claim
--
-- Invariant: a claim is settled once, by the token that it was granted with and by its own login. What
-- waits for another session's lock waits for a bounded time. All verdicts come from settle_claim.

-- Settles p_settle, of which check_settlements returned p_plain, then p_completed: claims of a node; p_node
-- null: of the caller. Completions go in one statement, unless a lease is named twice: then its first mention
-- counts. The rest goes one by one. It waits once for all claims that other sessions hold, less than a second
-- (or lock_timeout), so that it never holds up a node for longer than deadlock_timeout; what is held then is
-- busy. Returns a row for each of p_settle, and for those of p_completed that it did not complete.
-- traceparent, of the span of an attempt, is a setting while its claim ends: note_ended keeps it.
-- Locks: the caller holds node_state; of p_node null this does, skip locked; the claims; leases that go back.
-- Raises QHA01 for a result that is too large. Not idempotent.
create or replace function hwqueue.settle_lists(p_node uuid, p_settle jsonb, p_plain bigint[],
  p_completed uuid[], p_completed_tokens bigint[])
returns table (ordinal int, lease_id uuid, verdict text, state text)
language plpgsql volatile
as $$
declare
  v_given int := cardinality(p_plain);
  v_leases uuid[] := p_completed[:];  -- a slice begins at 1
  v_tokens bigint[] := p_plain || p_completed_tokens[:];
  v_token bigint;
  v_item jsonb;
  v_result record;
  v_held uuid[];
  v_busy int[] := '{}';
  v_done int[] := '{}';
  v_rest int[];
  v_has_waited boolean := false;
  v_trace text := '';
begin
  if v_given > 0 then
    v_leases := array(
      select (e.value ->> 'lease_id')::uuid
      from jsonb_array_elements(p_settle) with ordinality e order by e.ordinality) || v_leases;
  end if;
  -- wait before holding any claim: a session that cancels several leases may want one of these next
  if v_given > 0 and p_completed <> '{}' then
    v_held := array(
      select c.lease_id from hwqueue.claim c
      where c.lease_id = any (v_leases) and c.xmax <> '0' and not hwqueue.is_unlocked(c.xmax));
    if v_held <> '{}' then
      perform hwqueue.await_claims(v_held, '900ms');
    end if;
  end if;
  if array_position(p_plain, null) is null
    or cardinality(v_leases) = (select count(distinct l) from unnest(v_leases) l) then
    v_done := hwqueue.end_completed_claims(v_leases, v_tokens, p_node, p_settle);
    if v_given > 0 then
      return query select d, v_leases[d], 'ok', 'completed' from unnest(v_done) d where d <= v_given;
    end if;
    if cardinality(v_done) = cardinality(v_leases) then
      return;
    end if;
  end if;
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  v_rest := array(
    select n from generate_subscripts(v_leases, 1) n where n <> all (v_done) order by v_leases[n], n);
  loop
    foreach ordinal in array v_rest loop
      lease_id := v_leases[ordinal];
      v_item := coalesce(p_settle -> (ordinal - 1), '{"outcome": "complete"}');
      v_token := coalesce(v_tokens[ordinal], (v_item ->> 'claim_token')::numeric::bigint);
      if v_trace <> coalesce(v_item ->> 'traceparent', '') then
        v_trace := coalesce(v_item ->> 'traceparent', '');
        perform set_config('hwqueue.traceparent', v_trace, true);
      end if;
      if v_item ? 'result' then
        perform hwqueue.check_kept(lease_id, nullif(v_item -> 'result', 'null'),
          format('p_settle[%s].result', ordinal - 1));
      end if;
      if v_item ->> 'outcome' = 'complete' and hwqueue.end_completed_claim(lease_id, v_token, p_node,
        p_node is not null, false, nullif(v_item -> 'result', 'null')) then
        verdict := 'ok';
        state := 'completed';
      else
        v_result := hwqueue.settle_claim(lease_id, v_token, v_item, p_node is not null, hwqueue.clock(),
          p_node);
        verdict := case v_result.verdict when 'unknown' then 'lost' when 'foreign' then 'bad_token'
          else v_result.verdict end;
        state := v_result.state;
      end if;
      if verdict = 'busy' and not v_has_waited then
        v_busy := v_busy || ordinal;
      elsif ordinal <= v_given or verdict <> 'ok' then
        return next;
      end if;
    end loop;
    exit when v_has_waited or v_busy = '{}';
    v_rest := v_busy;
    v_has_waited := true;
    perform hwqueue.await_claims(array(select v_leases[n] from unnest(v_rest) n), '900ms');
  end loop;
  if v_trace <> '' then
    perform set_config('hwqueue.traceparent', '', true);
  end if;
end
$$;

-- Checks a batch before anything is locked, all but the size of its results. Returns for each element its
-- token if it completes a claim and is written as usual: short, without a trace, the id in small letters. For
-- others it returns null. Raises QHA01, naming the element.
create or replace function hwqueue.check_settlements(p_settle jsonb) returns bigint[]
language plpgsql stable
as $$
declare
  v_plain bigint[];
begin
  if jsonb_typeof(p_settle) <> 'array' then
    perform hwqueue.refuse('QHA01', 'p_settle must be a JSON array', jsonb_build_object('field', 'p_settle'),
      'for example [{"lease_id": "...", "claim_token": 1, "outcome": "complete"}]');
  end if;
  v_plain := array(
    select case when jsonb_typeof(e.value -> 'lease_id') = 'string'
        and jsonb_typeof(e.value -> 'claim_token') = 'number' then case
      when e.value - array['lease_id', 'claim_token', 'result'] = '{"outcome": "complete"}'
        and (e.value -> 'claim_token')::numeric between 0 and 9223372036854775807
        and (e.value -> 'claim_token')::numeric % 1 = 0
        -- three conditions, because one pattern with counted repeats takes three times as long
        and e.value ->> 'lease_id' like '________-____-____-____-____________'
        and e.value ->> 'lease_id' !~ '[^0-9a-f-]'
        and length(replace(e.value ->> 'lease_id', '-', '')) = 32
        and not hwqueue.may_be_long(e.value)
      then (e.value -> 'claim_token')::bigint end end
    from jsonb_array_elements(p_settle) with ordinality e order by e.ordinality);
  if array_position(v_plain, null) is not null then
    perform hwqueue.check_settlement(e.value, f.field || '.'), hwqueue.check_claim(e.value, f.field)
    from jsonb_array_elements(p_settle) with ordinality e
    cross join lateral (select format('p_settle[%s]', e.ordinality - 1) as field) f
    where v_plain[e.ordinality] is null order by e.ordinality;
  end if;
  return v_plain;
end
$$;

-- Returns the length of the two lists if they match. The names of the arguments are for its errors.
-- Raises QHA01.
create or replace function hwqueue.check_completions(p_lease_ids uuid[], p_tokens bigint[], p_ids_name text,
  p_tokens_name text) returns int
language plpgsql immutable
as $$
begin
  if array_ndims(p_lease_ids) > 1 or array_ndims(p_tokens) > 1
    or cardinality(p_lease_ids) is distinct from cardinality(p_tokens)
    or cardinality(p_lease_ids) is null or cardinality(p_lease_ids) > 1000 then
    perform hwqueue.refuse_field('QHA01', p_ids_name,
      format('and %s must be lists of the same length, of at most 1000', p_tokens_name),
      'give each lease''s claim_token at the same place as its lease_id');
  end if;
  if array_position(p_lease_ids, null) is not null or array_position(p_tokens, null) is not null then
    p_ids_name := case when array_position(p_lease_ids, null) is null then p_tokens_name else p_ids_name end;
    perform hwqueue.refuse('QHA01', format('%s must not contain null', p_ids_name),
      jsonb_build_object('field', p_ids_name), 'pass each lease_id and claim_token as claim_task gave it');
  end if;
  return cardinality(p_lease_ids);
end
$$;

-- Refuses a lease that the node of this transaction (enter_node) neither holds nor was the last to run,
-- and in the same words one that does not exist.
-- Raises: QHL01.
create or replace function hwqueue.check_lease_of_node(p_lease uuid) returns void
language plpgsql volatile
as $$
begin
  if hwqueue.entered_node() is not null and hwqueue.entered_node() is distinct from coalesce(
      (select c.node_id from hwqueue.claim c where c.lease_id = p_lease),
      (select o.node_id from hwqueue.outcome o where o.lease_id = p_lease),
      (select l.node_id from hwqueue.lease l where l.lease_id = p_lease)) then
    perform hwqueue.refuse('QHL01', format('lease %s is not claimed by this node', p_lease),
      jsonb_build_object('lease_id', p_lease), 'name leases that were granted to this node');
  end if;
end
$$;

-- Raises the error of a verdict.
create or replace function hwqueue.refuse_settlement(p_lease uuid, p_token bigint, p_verdict text,
  p_state text) returns void
language plpgsql volatile
as $$
declare
  v_detail jsonb := jsonb_build_object('lease_id', p_lease, 'claim_token', p_token, 'state', p_state);
  v_login text;
begin
  perform hwqueue.check_lease_of_node(p_lease);
  case p_verdict
    when 'lost' then
      perform hwqueue.refuse('QHL01',
        format('claim %s of lease %s is lost: the lease is %s', p_token, p_lease, p_state), v_detail,
        'it expired and was handed on, or its node was superseded: '
        || 'drop the result, another claim has the lease or had it');
    when 'cancelled' then
      perform hwqueue.refuse('QHL02', format('lease %s is cancelled', p_lease), v_detail,
        'stop working on it; nothing else to do');
    when 'finished' then
      perform hwqueue.refuse('QHL03',
        format('claim %s of lease %s is settled already: the lease is %s', p_token, p_lease, p_state),
        v_detail, 'settle a claim once; an earlier call whose answer was lost may have done it');
    when 'bad_token' then
      perform hwqueue.refuse('QHL05',
        format('claim %s of lease %s was never granted', coalesce(p_token::text, 'null'), p_lease),
        v_detail, 'pass the claim_token that claim_task gave for this lease');
    when 'foreign' then
      v_login := (select c.login from hwqueue.claim c where c.lease_id = p_lease);
      perform hwqueue.refuse('QHL08',
        format('claim %s of lease %s belongs to login %s, this call comes from %s', p_token, p_lease,
          to_json(v_login), to_json(session_user::text)),
        v_detail || jsonb_build_object('login', v_login, 'given_login', session_user),
        hwqueue.login_hint(v_login));
    when 'busy' then
      perform hwqueue.refuse('QHL09',
        format('claim %s of lease %s is busy: another session holds it', p_token, p_lease),
        v_detail || jsonb_build_object('sessions', hwqueue.claim_holders(array[p_lease])),
        'nothing was settled; call again. '
        || 'A transaction that was left open holds it, an unfinished cancel_lease, say');
    else
      perform hwqueue.refuse('QHL04', format('lease %s does not exist', coalesce(p_lease::text, 'null')),
        v_detail, 'check the id; finished leases go once their queue''s retention is over');
  end case;
end
$$;

-- Checks the parts of a settlement before anything is locked: {"outcome", "result", "error", "retry",
-- "retry_at", "delay", "available_at", "signal", "name", "near", "traceparent"}. p_field stands before their
-- names in errors: p_settle[0]. of a batch, or p_ of arguments. Raises QHA01.
create or replace function hwqueue.check_settlement(p_settlement jsonb, p_field text) returns void
language plpgsql stable
as $$
begin
  perform hwqueue.check_object(p_settlement, array['lease_id', 'claim_token', 'outcome', 'result', 'error',
    'retry', 'retry_at', 'delay', 'available_at', 'signal', 'name', 'near', 'traceparent'],
    rtrim(p_field, '.'));
  if coalesce(p_settlement -> 'outcome' not in ('"complete"', '"fail"', '"release"', '"suspend"'), true) then
    perform hwqueue.refuse_field('QHA01', p_field || 'outcome', 'must be complete, fail, release or suspend',
      'for example {"lease_id": "...", "claim_token": 1, "outcome": "complete"}');
  end if;
  if jsonb_typeof(p_settlement -> 'error') not in ('object', 'null') then
    perform hwqueue.refuse_field('QHA01', p_field || 'error', 'must be a JSON object',
      'for example {"message": "..."}');
  end if;
  perform hwqueue.check_payload(p_settlement -> 'error', p_field || 'error', 65536),
          hwqueue.json_boolean(p_settlement -> 'retry', p_field || 'retry'),
          hwqueue.json_moment(p_settlement -> 'retry_at', p_field || 'retry_at', hwqueue.clock()),
          hwqueue.json_interval(p_settlement -> 'delay', p_field || 'delay'),
          hwqueue.json_time(p_settlement -> 'available_at',
            p_field || case p_field when 'p_' then 'until' else 'available_at' end),
          hwqueue.json_text(p_settlement -> 'traceparent', p_field || 'traceparent', 200);
  if p_settlement ->> 'delay' is not null and p_settlement ->> 'available_at' is not null then
    perform hwqueue.refuse('QHA01', format('%s has delay and available_at', rtrim(p_field, '.')),
      jsonb_build_object('field', p_field || 'available_at'), 'give one of them: a span, or a time');
  end if;
  if p_settlement ->> 'outcome' = 'suspend' then
    perform hwqueue.json_text(p_settlement -> 'signal', p_field || 'signal', 200),
            hwqueue.json_text(p_settlement -> 'name', p_field || 'name', 200),
            hwqueue.json_choice(p_settlement -> 'near', p_field || 'near', array['self']);
    if not jsonb_strip_nulls(p_settlement) ?| array['signal', 'delay', 'available_at'] then
      perform hwqueue.refuse_field('QHA01', p_field || 'signal', 'is missing, and no time ends the wait',
        'say for which signal it waits, or until when');
    end if;
  end if;
end
$$;

-- Checks that a result fits the limit that its lease's queue sets, or a state or payload (p_is_result false)
-- the one for params. Raises QHA01.
create or replace function hwqueue.check_kept(p_lease uuid, p_value jsonb, p_field text,
  p_is_result boolean default true) returns void
language plpgsql stable
as $$
begin
  if p_value is not null then
    perform hwqueue.check_payload(p_value, p_field, coalesce((
      select case when p_is_result then q.max_result_bytes else q.max_params_bytes end
      from hwqueue.lease l join hwqueue.queue q on q.queue_id = l.queue_id
      where l.lease_id = p_lease), 10000000));
  end if;
end
$$;

-- Settles one claim: {"outcome": "complete"|"fail"|"release"|"suspend", "result", "error", "retry",
-- "retry_at", "delay", "available_at", "signal", "name", "near"}. It raises nothing for a claim that is gone,
-- but returns a verdict: ok, lost, cancelled, finished, bad_token, foreign (another login's or node's),
-- unknown.
-- A release of a claim that was asked to stop because it ran too long fails its attempt (end_overrun).
-- An expired claim that is not reaped yet settles like any other: a claim is lost when the lease has
-- been put back or granted again, not by the clock.
-- p_holds_node: the caller holds node_state of the claim's node; else this locks it if room is allocated for
-- the claim. If another session holds it, or the claim, that is busy (await_claims) and stays as it is.
-- p_node: that settles, its own claims alone; null: no node does.
-- Locks: node_state, the claim, skip locked; the lease row, if it goes back. Not idempotent: then finished.
create or replace function hwqueue.settle_claim(p_lease uuid, p_token bigint, p_settlement jsonb,
  p_holds_node boolean, p_now timestamptz, p_node uuid default null, out verdict text, out state text)
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_next timestamptz;
begin
  -- by token, so a call with an old one takes no lock
  select c.* into v_claim from hwqueue.claim c
  where c.lease_id = p_lease and c.claim_token = p_token
    and (c.assignment is null or p_holds_node or hwqueue.lock_free_node(c.node_id))
    and (p_node is null or c.node_id = p_node)
    and hwqueue.is_own_claim(c.login, c.node_id) for update skip locked;
  if not found then
    select w.verdict, w.state into verdict, state
    from hwqueue.why_not_settled(p_lease, p_token, p_node) w;
    return;
  end if;
  verdict := 'ok';
  case p_settlement ->> 'outcome'
    when 'complete' then
      perform hwqueue.end_completed_claim(p_lease, p_token, p_node, true, true,
        nullif(p_settlement -> 'result', 'null'));
      state := 'completed';
    when 'fail' then
      if coalesce((p_settlement ->> 'retry')::boolean, true) then
        v_next := hwqueue.next_attempt_at(p_lease, v_claim.attempt, p_now);
        if v_next is not null then
          v_next := coalesce(hwqueue.json_moment(p_settlement -> 'retry_at', 'retry_at', p_now), v_next);
        end if;
      end if;
      state := hwqueue.end_claim(v_claim, 'failed', nullif(p_settlement -> 'error', 'null'), v_next, p_now);
    when 'release' then
      if v_claim.stop_reason = 'run_time_exceeded' then
        state := hwqueue.end_overrun(v_claim, p_now);
        return;
      end if;
      v_next := greatest(p_now, coalesce((p_settlement ->> 'available_at')::timestamptz,
        p_now + coalesce(hwqueue.json_interval(p_settlement -> 'delay', 'delay'), interval '0')));
      state := hwqueue.end_claim(v_claim, 'released', null, v_next, p_now);
    when 'suspend' then
      state := hwqueue.end_claim(v_claim, 'released', null,
        hwqueue.open_wait(v_claim, p_settlement, p_now), p_now,
        coalesce(p_settlement ->> 'near' = 'self', false));
  end case;
end
$$;

-- Why a token settles nothing (busy: it will), for its login or only for a node.
create or replace function hwqueue.why_not_settled(p_lease uuid, p_token bigint, p_node uuid,
  out verdict text, out state text)
language plpgsql volatile
as $$
declare
  v_claim record;
  v_last bigint;  -- token of the last claim that has ended
begin
  select c.claim_token,
    (p_node is null or c.node_id = p_node) and hwqueue.is_own_claim(c.login, c.node_id) as is_own
  into v_claim from hwqueue.claim c where c.lease_id = p_lease;
  -- one statement, one MVCC snapshot: a concurrent requeue moves the last token from the outcome to the
  -- lease. A lease that went when it completed has an outcome until prune
  select coalesce(o.claim_token, l.claim_token), coalesce(o.state, hwqueue.lease_state(p_lease))
  into v_last, state
  from (values (p_lease)) i(lease_id)
  left join hwqueue.lease l on l.lease_id = i.lease_id
  left join hwqueue.outcome o on o.lease_id = i.lease_id;
  verdict := case
    when p_token = v_claim.claim_token then case when v_claim.is_own then 'busy' else 'foreign' end
    when v_last is null then 'unknown'
    when p_token is null or p_token > coalesce(v_claim.claim_token, v_last) or p_token < 1 then 'bad_token'
    when state = 'cancelled' then 'cancelled'
    when state in ('completed', 'failed') and p_token = v_last then 'finished'
    else 'lost' end;
end
$$;
