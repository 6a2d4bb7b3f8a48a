-- Public: claiming, heartbeats, and settling claims.
--
-- Workers call these through the clients. An example: claim_task grants frame 7 to gpu-1 until 10:00:40,
-- heartbeat_node extends it every 10 seconds, complete_lease ends it; settle_and_claim does the last two
-- steps for many frames and claims the next ones in one round trip.
--
-- Invariant: of all calls with the token of one claim, one settles it; each other one raises an error or
-- returns a verdict. node_state is locked before claims, and claims by lease_id. The functions force
-- generic plans that use indexes, because a table that is small now may be large before the session
-- ends.
--
-- Read claim_task first. The work is done in claim/head, claim/claim, claim/settle and claim/end_claim.

-- Grants a node up to p_qty leases that it may run now, best first. No rows: there are none.
-- p_tasks: only leases of these tasks; null: of all. p_claim_timeout: for leases that set none; null:
-- the queue's. expires_at is when the claim ends unless it is heartbeated.
-- What is reserved for the node comes first, and alone (claim_reserved). Else the claim takes the head
-- of the node's queues if nothing has to be decided there (claim_at_head, lock_at_head). Otherwise it
-- compares classes (claim_general). Nothing gets room that is earmarked, but what comes before the earmark.
-- Locks: node_state, then scheduled and ready entries (skip locked); now and then the low-water marks,
-- skip locked.
-- Raises: QHQ01, QHN01, QHN03, QHN04, QHA01, QHA02. Not idempotent: after a lost connection treat the
-- leases as not granted.
create or replace function hwqueue.claim_task(p_queues text[], p_node uuid, p_epoch bigint,
  p_qty int default 1, p_tasks text[] default null, p_claim_timeout interval default null)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
as $$
declare
  v_ended text := set_config('hwqueue.ended', '', true);  -- empty; note_ended fills the list
  v_moves boolean := hwqueue.check_request(p_queues, p_qty, p_claim_timeout)
    and hwqueue.should_advance_low_water(p_qty);
  v_drawn bigint := case when v_moves then hwqueue.last_drawn_position() end;
  v_state hwqueue.node_state;
  v_head record;
begin
  p_claim_timeout := hwqueue.in_seconds(p_claim_timeout);
  select s.* into v_state from hwqueue.node_state s where s.node_id = p_node for no key update;
  if v_state.has_reserved and v_state.node_epoch = p_epoch and v_state.login = session_user then
    v_state := hwqueue.expand_node(v_state);
  end if;
  v_head := hwqueue.claim_at_head(v_state, p_queues, case when v_state.node_epoch = p_epoch then p_qty end,
    p_tasks, p_claim_timeout, v_moves, v_drawn);
  if v_head.lease_id is not null then
    lease_id := v_head.lease_id;
    claim_token := v_head.claim_token;
    attempt := v_head.attempt;
    queue := v_head.queue;
    task_name := v_head.task_name;
    params := v_head.params;
    headers := v_head.headers;
    score := v_head.score;
    expires_at := v_head.expires_at;
    assignment := v_head.assignment;
    return next;
    return;
  end if;
  return query
    select g.*
    from hwqueue.claim_general(row(p_node, p_epoch, p_queues, p_tasks, p_qty, p_claim_timeout, null,
      null, null), v_state, v_head.queue_head, v_moves, v_drawn) g;
  if current_setting('hwqueue.ended') <> v_ended then
    perform hwqueue.follow_ended(false);
  end if;
end
$$;

-- Settles a batch and claims the next leases, in one round trip and one commit. One settlement that
-- fails undoes neither the others nor the claim: its row has the verdict. A claim that another session
-- holds is busy and stays as it is; settle it again later.
-- p_settle: [{"lease_id", "claim_token", "outcome": "complete"|"fail"|"release", ...}], and with these
-- result; error, retry, retry_at; delay or available_at; of a step, traceparent: the W3C trace context of its
-- span, which the steps after it are linked to. p_completed, p_completed_tokens: leases that are done and
-- have no result, as complete_leases takes them. Only those that could not be completed get a row, with
-- ordinals after p_settle's. With p_qty 0 it settles only.
-- Locks: node_state, once; its claims by lease_id; then as claim_task.
-- Raises: QHQ01, QHN01, QHN03, QHN04, QHA01, QHA02. Not idempotent.
create or replace function hwqueue.settle_and_claim(p_node uuid, p_epoch bigint, p_settle jsonb,
  p_queues text[], p_qty int default 1, p_tasks text[] default null, p_claim_timeout interval default null,
  p_completed uuid[] default '{}', p_completed_tokens bigint[] default '{}')
returns table (kind text, ordinal int, lease_id uuid, verdict text, state text, claim_token bigint,
  attempt smallint, queue text, task_name text, params jsonb, headers jsonb, score double precision,
  expires_at timestamptz, assignment jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
as $$
declare
  v_ended text := set_config('hwqueue.ended', '', true);  -- empty; note_ended fills the list
  v_completed int := hwqueue.check_completions(p_completed, p_completed_tokens, 'p_completed',
    'p_completed_tokens');
  v_plain bigint[];
  v_result jsonb;
  v_moves boolean := p_qty is distinct from 0 and hwqueue.check_request(p_queues, p_qty, p_claim_timeout)
    and hwqueue.should_advance_low_water(p_qty);
  v_drawn bigint := case when v_moves then hwqueue.last_drawn_position() end;
  v_state hwqueue.node_state;
  v_head record;
begin
  p_claim_timeout := hwqueue.in_seconds(p_claim_timeout);
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  v_plain := case when p_settle <> '[]' then hwqueue.check_settlements(p_settle) else '{}' end;
  select s.* into v_state from hwqueue.node_state s where s.node_id = p_node for no key update;
  if (v_state.node_epoch = p_epoch and v_state.login = session_user) is not true then
    perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0));  -- raises why not
  end if;
  if v_completed = 1 and v_plain = '{}' then  -- most calls, so without a statement for it
    v_completed := (not hwqueue.end_completed_claim(p_completed[1], p_completed_tokens[1], p_node, true,
      false, null))::int;
  elsif v_completed = 0 and cardinality(v_plain) = 1 and v_plain[1] is not null then
    lease_id := p_settle -> 0 ->> 'lease_id';
    v_result := nullif(p_settle -> 0 -> 'result', 'null');
    perform hwqueue.check_kept(lease_id, v_result, 'p_settle[0].result');
    if hwqueue.end_completed_claim(lease_id, v_plain[1], p_node, true, false, v_result) then
      v_plain := '{}';
      kind := 'settled';
      ordinal := 1;
      verdict := 'ok';
      state := 'completed';
      return next;
      ordinal := null;
      verdict := null;
    end if;
  end if;
  if v_completed > 0 or v_plain <> '{}' then
    return query
      select 'settled', e.ordinal, e.lease_id, e.verdict, e.state, null::bigint, null::smallint, null::text,
             null::text, null::jsonb, null::jsonb, null::float8, null::timestamptz, null::jsonb
      from hwqueue.settle_lists(p_node, p_settle, v_plain, p_completed, p_completed_tokens) e;
  end if;
  if current_setting('hwqueue.ended') <> v_ended then
    perform hwqueue.follow_ended(true);
  end if;
  if p_qty = 0 then
    return;
  elsif v_state.has_reserved then
    v_state := hwqueue.expand_node(v_state);
  end if;
  v_head := hwqueue.claim_at_head(v_state, p_queues, p_qty, p_tasks, p_claim_timeout, v_moves, v_drawn);
  if v_head.lease_id is not null then
    kind := 'claimed';
    state := 'claimed';
    lease_id := v_head.lease_id;
    claim_token := v_head.claim_token;
    attempt := v_head.attempt;
    queue := v_head.queue;
    task_name := v_head.task_name;
    params := v_head.params;
    headers := v_head.headers;
    score := v_head.score;
    expires_at := v_head.expires_at;
    assignment := v_head.assignment;
    return next;
    return;
  end if;
  return query
    select 'claimed', null::int, c.lease_id, null::text, 'claimed', c.claim_token, c.attempt, c.queue,
           c.task_name, c.params, c.headers, c.score, c.expires_at, c.assignment
    from hwqueue.claim_general(row(p_node, p_epoch, p_queues, p_tasks, p_qty, p_claim_timeout, null,
      null, null), v_state, v_head.queue_head, v_moves, v_drawn) c;
  if current_setting('hwqueue.ended') <> v_ended then
    perform hwqueue.follow_ended(false);
  end if;
end
$$;

-- Settles a claim as done and returns the state completed. p_result is kept with the outcome; its size
-- is limited by the queue's max_result_bytes. A completion that arrives before a cancellation has taken
-- effect wins. It waits up to five seconds (or lock_timeout) for another session that holds the claim.
-- Locks: node_state of the claim's node if room is allocated for it; the claim.
-- Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09, QHA01, QHA02. Not idempotent: the second call
-- raises QHL03.
create or replace function hwqueue.complete_lease(p_lease uuid, p_token bigint, p_result jsonb default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ended text := set_config('hwqueue.ended', '', true);  -- empty; note_ended fills the list
  v_result jsonb := nullif(p_result, 'null');
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if v_result is not null then
    perform hwqueue.check_kept(p_lease, v_result, 'result');
  end if;
  if not hwqueue.end_completed_claim(p_lease, p_token, null, false, false, v_result) then
    -- its node is held, or the claim itself, by this session or another one, or it is gone
    return hwqueue.settle_one(p_lease, p_token,
      jsonb_build_object('outcome', 'complete', 'result', v_result));
  end if;
  if current_setting('hwqueue.ended') <> v_ended then
    perform hwqueue.follow_ended(false);
  end if;
  return 'completed';
end
$$;

-- Completes many leases without results in one call: p_lease_ids[i] was claimed with p_tokens[i]. One
-- that cannot be completed undoes none of the others.
-- Returns a row for each that was not completed, in their order: its ordinal from 1 and its verdict.
-- These are lost, cancelled, finished, bad_token (never granted, or to another login) and busy (another
-- session holds the claim; complete it again later). A lease that does not exist is lost. No rows: all
-- were completed.
-- Locks: node_state of the claims' nodes, by node_id; the claims by lease_id. Raises: QHA01, QHA02. Not
-- idempotent: a second call returns finished.
create or replace function hwqueue.complete_leases(p_lease_ids uuid[], p_tokens bigint[])
returns table (ordinal int, lease_id uuid, verdict text, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ended text := set_config('hwqueue.ended', '', true);  -- empty; note_ended fills the list
begin
  perform hwqueue.require_read_committed(), hwqueue.check_completions(p_lease_ids, p_tokens, 'p_lease_ids',
    'p_tokens');
  -- all of their nodes, because an assignment may change until node_state is locked
  begin
    perform 1 from hwqueue.node_state s
    where s.node_id = any (array(
      select c.node_id from unnest(p_lease_ids, p_tokens) i(lease_id, claim_token)
      cross join lateral (
        select x.node_id from hwqueue.claim x where x.lease_id = i.lease_id
          and x.claim_token = i.claim_token and hwqueue.is_own(x.login) offset 0) c))
    order by s.node_id for no key update;
  exception when deadlock_detected then  -- busy: this transaction holds a claim, for which a holder waits
  end;
  return query
    select c.* from hwqueue.settle_lists(null, '[]', '{}', p_lease_ids, p_tokens) c order by c.ordinal;
  if current_setting('hwqueue.ended') <> v_ended then
    perform hwqueue.follow_ended(false);
  end if;
end
$$;

-- Settles a claim as failed and returns the new state. While attempts are left the lease is tried again,
-- by its retry policy or at p_retry_at. Otherwise, or with p_retry false, its state is failed and it is
-- kept. p_error is a JSON object such as {"message": "..."}.
-- Waiting workers are woken when the lease may run again at once.
-- Locks and raises as complete_lease; also the lease row, if it goes back. Not idempotent.
create or replace function hwqueue.fail_lease(p_lease uuid, p_token bigint, p_error jsonb,
  p_retry boolean default true, p_retry_at timestamptz default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC'
as $$ begin return
  hwqueue.settle_one(p_lease, p_token, jsonb_build_object('outcome', 'fail', 'error', p_error,
    'retry', p_retry, 'retry_at', p_retry_at));
end $$;

-- Ends a claim unfinished, for workers that stop and for work that has to wait: the lease may run again
-- after p_delay (at most 3650 days), and no attempt is used up. A lease with a deadline that nobody has
-- claimed again by then fails. Returns the new state. Waiting workers are woken when it may run again at
-- once.
-- Locks and raises as fail_lease. Not idempotent.
create or replace function hwqueue.release_lease(p_lease uuid, p_token bigint, p_delay interval default '0')
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$ begin return
  hwqueue.settle_one(p_lease, p_token, jsonb_build_object('outcome', 'release', 'delay', case
    when isfinite(p_delay) then to_jsonb(extract(epoch from p_delay)) else to_jsonb(p_delay::text) end));
end $$;

-- Moves the end of a claim to p_extend from now, and returns the new end. p_extend is from one second to
-- 30 days. A cancelled claim is extended to its claim timeout from now at most.
-- It waits up to five seconds (or lock_timeout) for another session that holds the claim.
-- Locks: the claim. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09, QHA01, QHA02. Idempotent.
create or replace function hwqueue.extend_claim(p_lease uuid, p_token bigint, p_extend interval)
returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_until timestamptz;
begin
  perform hwqueue.require_read_committed();
  p_extend := hwqueue.checked_extend(p_extend);
  perform hwqueue.hold_claim(p_lease, p_token, true);
  v_until := hwqueue.clock() + (
    select case when c.stop_reason = 'cancelled' then least(p_extend, c.claim_timeout) else p_extend end
    from hwqueue.claim c where c.lease_id = p_lease);
  -- check_at may only trail expires_at: pull it back when the claim is shortened
  update hwqueue.claim c set expires_at = v_until, check_at = least(c.check_at, v_until)
  where c.lease_id = p_lease;
  return v_until;
end
$$;

-- Records how far claims have come: [{"lease_id", "claim_token", "fraction", "done", "total",
-- "message"}], at most 1000. fraction is from 0 to 1; without it done of total says it; message has at
-- most 200 characters; all of these may be missing. The last report stays with the attempt. Of a claim
-- that has ended, was granted again or is another login's nothing is recorded. Returns how many were.
-- Locks: the rows of the leases, for key share, skip locked. Raises: QHA01, QHA02. Idempotent.
create or replace function hwqueue.report_progress(p_reports jsonb) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_count int;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_progress(p_reports);
  with told as (
    -- of several reports of one claim the last
    select distinct on (r.lease_id, r.claim_token) r.*
    from rows from (jsonb_to_recordset(p_reports) as (
        lease_id uuid, claim_token numeric, fraction numeric, done numeric, total numeric, message text))
      with ordinality r(lease_id, claim_token, fraction, done, total, message, ordinal)
    order by r.lease_id, r.claim_token, r.ordinal desc
  ), held as (
    select t.* from told t
    cross join lateral (
      select 1 from hwqueue.claim c
      where c.lease_id = t.lease_id and c.claim_token = t.claim_token
        and hwqueue.is_own_claim(c.login, c.node_id) offset 0) own
    join hwqueue.lease l on l.lease_id = t.lease_id
    order by l.lease_id for key share of l skip locked
  )
  insert into hwqueue.progress as p (lease_id, claim_token, reported_at, fraction, done, total, message)
  select h.lease_id, h.claim_token::bigint, hwqueue.clock(),
         -- to six places, as check_progress read it: a smaller fraction may be none of a double
         coalesce(round(h.fraction, 6), h.done / nullif(h.total, 0))::double precision, h.done::bigint,
         h.total::bigint, h.message
  from held h
  on conflict (lease_id, claim_token) do update
  set reported_at = excluded.reported_at, fraction = excluded.fraction, done = excluded.done,
      total = excluded.total, message = excluded.message;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Keeps what claims log: [{"lease_id", "claim_token", "lines": [{"line", "at", "level", "message",
-- "fields"}]}], at most 1000 claims and 1000 lines of each. line is its number in the claim, from 1; level
-- is debug, info (the default), warning or error; message has at most 4096 bytes, and so has fields, an
-- object. The last 1000 lines of a claim are kept; gaps in their numbers say what was dropped. Of a claim
-- that has ended, was granted again or is another login's nothing is kept. Returns how many lines were
-- added.
-- Locks: the rows of the leases, for key share, skip locked. Raises: QHA01, QHA02. Idempotent.
create or replace function hwqueue.append_logs(p_logs jsonb) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_count int;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_logs(p_logs);
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
        and hwqueue.is_own_claim(c.login, c.node_id) offset 0) own
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

-- Records that a node is alive, and extends its claims [{"lease_id", "claim_token"}], in one call. Each
-- claim that the node still holds is extended by p_extend, or by its own timeout; a cancelled one by no
-- more than its own. The verdict says what the worker should do: ok (go on), cancelled (stop), preempted
-- (stop and release), lost (stop, do not settle), finished (go on: this claim has completed the lease).
-- A claim that is named twice gets one row. Behind enter_node, whose worker names all that it knows of, the
-- others of the node come first, at most 1000: unnamed (release it: the answer that granted it was lost).
-- It never waits. A claim that another session holds (an open cancel_lease, say) gets its verdict now
-- and is extended by the next heartbeat. While another session holds the node (an open settlement, say),
-- seen_at stays as it is.
-- Locks: node_state, then the claims, all skip locked, so their order does not matter.
-- Raises: QHN01, QHN03, QHN04, QHA01, QHA02. Idempotent.
create or replace function hwqueue.heartbeat_node(p_node uuid, p_epoch bigint, p_claims jsonb default '[]',
  p_extend interval default null)
returns table (lease_id uuid, verdict text, expires_at timestamptz, claim_token bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_leases uuid[];
  v_tokens bigint[];
  v_same boolean := coalesce(p_claims, '[]') = '[]';
  v_now timestamptz;
  v_held uuid[];
begin
  perform hwqueue.require_read_committed();
  if not v_same then
    perform hwqueue.check_numbers(p_claims, 'p_claims');
    begin
      select array_agg(b.lease_id), array_agg(b.claim_token),
             jsonb_agg(b) = p_claims and min(b.claim_token) >= 0
      into v_leases, v_tokens, v_same
      from (select r.lease_id, r.claim_token::bigint
          from jsonb_to_recordset(p_claims) r(lease_id uuid, claim_token numeric)) b;
    exception when data_exception then
      v_same := false;
    end;
  end if;
  if p_extend is not null then
    p_extend := hwqueue.checked_extend(p_extend);
  end if;
  if v_same is not true then  -- else they read back as they were written
    if jsonb_typeof(p_claims) <> 'array' then
      perform hwqueue.refuse('QHA01', 'p_claims must be a JSON array',
        jsonb_build_object('field', 'p_claims'), 'for example [{"lease_id": "...", "claim_token": 1}]');
    end if;
    perform hwqueue.check_object(e.value, array['lease_id', 'claim_token'], f.field),
            hwqueue.check_claim(e.value, f.field)
    from jsonb_array_elements(p_claims) with ordinality e
    cross join lateral (select format('p_claims[%s]', e.ordinality - 1) as field) f order by e.ordinality;
  end if;
  v_now := hwqueue.clock();
  update hwqueue.node_state s
  set seen_at = v_now, classes_unseen = hwqueue.prune_unseen_xids(s.classes_unseen),
      moved_xid = case when s.seen_at + s.heartbeat_timeout > v_now then s.moved_xid
        else pg_current_xact_id() end
  where s.node_id = (
    select o.node_id from hwqueue.node_state o
    -- a fence (offset 0): by its key, not by an index of all that are registered
    cross join lateral (
      select x.deregistered_at from hwqueue.node x where x.node_id = o.node_id offset 0) n
    where o.node_id = p_node and o.node_epoch = p_epoch and n.deregistered_at is null
      and hwqueue.is_own(o.login)
    for no key update of o skip locked);
  if not found then
    perform hwqueue.check_epoch(p_node, p_epoch);
  end if;
  if hwqueue.entered_node() is not null then  -- its worker names all that it knows of
    return query
      select c.lease_id, 'unnamed', null::timestamptz, c.claim_token from hwqueue.claim c
      where c.node_id = p_node and c.is_reserved is not true
        and c.lease_id <> all (coalesce(v_leases, '{}')) limit 1000;
  end if;
  if v_leases is null then
    return;
  end if;
  v_held := array(
    select c.lease_id from unnest(v_leases, v_tokens) b(lease_id, claim_token)
    join hwqueue.claim c on c.lease_id = b.lease_id and c.claim_token = b.claim_token
    where c.node_id = p_node for update of c skip locked);
  return query
    update hwqueue.claim c
    set expires_at = greatest(c.expires_at, v_now + case when c.stop_reason = 'cancelled'
        then least(p_extend, c.claim_timeout)
                                                         else coalesce(p_extend, c.claim_timeout) end)
    where c.lease_id = any (v_held)
    returning c.lease_id,
      case when c.stop_requested_at <= v_now then hwqueue.stop_verdict(c.stop_reason) else 'ok' end,
      c.expires_at, c.claim_token;
  if cardinality(v_held) < cardinality(v_leases) then
    -- those that were not extended: another session holds them, or they are gone
    return query
      select distinct b.lease_id,
             case when c.stop_requested_at <= v_now then hwqueue.stop_verdict(c.stop_reason)
                  when c.lease_id is not null then 'ok'
                  when hwqueue.lease_state(b.lease_id) = 'cancelled' then 'cancelled'
                  when exists (
                    select 1 from hwqueue.outcome o
                    where o.lease_id = b.lease_id and o.claim_token = b.claim_token
                      and o.node_id = p_node and o.state = 'completed') then 'finished'
                  else 'lost' end,
             c.expires_at, b.claim_token
      from unnest(v_leases, v_tokens) b(lease_id, claim_token)
      left join hwqueue.claim c on c.lease_id = b.lease_id and c.claim_token = b.claim_token
        and c.node_id = p_node
      where c.lease_id is null or c.lease_id <> all (v_held);
  end if;
end
$$;

-- Takes leases that died without a handler: their last claim expired or was superseded, or their deadline
-- passed. A node gets those of the queues and tasks that it announced with hears_deaths when it registered,
-- the oldest first, each once and no other node again, within an hour of the death. What requires trust
-- goes to nodes that may run it. Those that were requeued since, or are deleted, are left out. The worker
-- calls its hooks for them; one that ends before it has done so has taken them all the same.
-- Locks: death, skip locked. Raises: QHN01, QHN03, QHN04, QHA01. Not idempotent.
create or replace function hwqueue.take_deaths(p_node uuid, p_epoch bigint, p_limit int default 100)
returns table (lease_id uuid, claim_token bigint, attempt int, queue text, task_name text, params jsonb,
  headers jsonb, died_at timestamptz, error jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_taken uuid[];
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'call again for more'),
    hwqueue.check_epoch(p_node, p_epoch);
  v_taken := array(
    select d.lease_id
    from hwqueue.death d
    join hwqueue.queue q on q.queue_id = d.queue_id
    join hwqueue.node n on n.node_id = p_node and n.hears_deaths
    join hwqueue.lease l on l.lease_id = d.lease_id
    join hwqueue.placement_class k on k.class_id = l.class_id
    where d.died_at > v_now - interval '1 hour'
      and (q.name <> all (n.queues) or d.task_name <> all (n.tasks)) is not true  -- as lease_ended
      and (k.trusts = '{}' or hwqueue.is_still_attested_for(k.class_id, n, hwqueue.attested_at(n, v_now)))
    order by d.died_at, d.lease_id limit p_limit for update of d skip locked);
  return query
    with taken as (delete from hwqueue.death d where d.lease_id = any (v_taken) returning d.*)
    select t.lease_id, t.claim_token, o.attempt::int, q.name, l.task_name, l.params, l.headers, t.died_at,
           o.error
    from taken t
    join hwqueue.outcome o on o.lease_id = t.lease_id and (o.state = 'failed') is true
      and o.claim_token = t.claim_token
    join hwqueue.lease l on l.lease_id = t.lease_id
    join hwqueue.queue q on q.queue_id = l.queue_id
    order by t.died_at, t.lease_id;
end
$$;
