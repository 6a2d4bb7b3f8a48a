-- Ending a claim: completing it, or putting its lease back, telling who must hear of it, and waiting for a
-- claim that is held.
--
-- Settlements, expiry and whatever stops a claim call this module; the diagram in claim/settle shows which
-- function calls which. An example: frame 7 fails on its second attempt of five. end_claim deletes
-- the claim, releases the GPU, writes the attempt and puts the lease back into `scheduled`.
--
-- Invariant: whatever a claim allocated and counted is released in the transaction that deletes the
-- claim. Settlements lock the table `claim` before they read the clock, so that roll_up misses no end
-- (oldest_open_settlement).
--
-- end_completed_claim is the usual end. The second half is about locks: is_unlocked says whether a row is
-- held, without waiting; await_claims waits for a bounded time. The last part is about who hears of an end
-- (lease_ended).

-- Ends a claim that did not complete. It deletes the claim, releases its room, writes the attempt, and
-- puts the lease back at p_next. With p_next null, or when the lease is cancelled, it writes the outcome
-- instead. A reservation, which no worker knows of, uses up no attempt; a lease that was pending before goes
-- back to where it was in line. A member that its gang goes on without has failed. Returns the new state.
-- p_near: the lease prefers the node of this claim next; else a preference that an earlier claim has left
-- goes.
-- Locks: the caller holds the claim, and node_state if room is allocated for it; then the lease row, if
-- it goes back. Not idempotent.
create or replace function hwqueue.end_claim(p_claim hwqueue.claim, p_outcome text, p_error jsonb,
  p_next timestamptz, p_now timestamptz, p_near boolean default false) returns text
language plpgsql volatile
as $$
declare
  v_cancelled boolean := p_claim.stop_reason is not distinct from 'cancelled';
  v_outcome text := case when p_claim.is_reserved then 'released' else p_outcome end;
  v_attempts int := p_claim.attempt - case
    when p_claim.is_reserved or v_outcome = 'released' and not v_cancelled then 1 else 0 end;
  v_state text := case when v_cancelled then 'cancelled' else 'failed' end;
  v_is_victim boolean := v_outcome = 'released'  -- of a preemption: it keeps its place in line
    and p_claim.stop_reason is not distinct from 'tier_preempted';
  v_lease hwqueue.lease;
  v_message text;
  v_detail jsonb;
begin
  if p_claim.team_id <> p_claim.lease_id and p_next is not null and hwqueue.is_left_behind(p_claim) then
    p_next := null;
    p_error := coalesce(p_error, jsonb_build_object('reason', 'gang_goes_on', 'gang_id', p_claim.team_id));
  end if;
  if v_is_victim then
    p_error := coalesce(p_error,
      jsonb_build_object('reason', 'tier_preempted', 'detail', p_claim.stop_detail));
  end if;
  perform hwqueue.remove_claim(p_claim.lease_id);
  insert into hwqueue.attempt (lease_id, claim_token, attempt, node_id, outcome, claimed_at,
    ended_at, error, assignment)
  values (p_claim.lease_id, p_claim.claim_token, p_claim.attempt, p_claim.node_id, case when
    v_cancelled then 'cancelled' else v_outcome end, p_claim.claimed_at, p_now, p_error, p_claim.assignment);
  if p_claim.lanes is not null then
    perform hwqueue.hand_over(p_claim.lanes, p_now, false);
  end if;
  if (p_next is not null or p_claim.is_reserved) and not v_cancelled then
    update hwqueue.lease l
    set claim_token = p_claim.claim_token, node_id = p_claim.node_id, claimed_at = p_claim.claimed_at,
        lanes_passed = case when p_claim.is_reserved then l.lanes_passed end
    where l.lease_id = p_claim.lease_id
    returning l.* into v_lease;
    if hwqueue.is_assigned(p_claim, v_lease) or v_is_victim and p_claim.team_id is null
      and v_lease.position > 0 and v_lease.lanes is null and p_next <= p_now and not p_near
      and v_lease.near_node is null then
      return hwqueue.put_back_in_line(v_lease, hwqueue.claims_until(p_claim.claim_token), p_now);
    end if;
    if p_near or v_lease.near_node is not null then
      perform hwqueue.prefer_own_node(p_claim.lease_id, case when p_near then p_claim.node_id end);
    end if;
    return hwqueue.put_back(p_claim.lease_id, v_attempts,
      hwqueue.claims_until(p_claim.claim_token), coalesce(p_next, p_now), p_now);
  end if;
  v_detail := jsonb_build_object('attempt', p_claim.attempt, 'outcome', p_outcome,
    'error', left(p_error ->> 'message', 200));
  v_message := case when v_cancelled and p_claim.is_reserved then 'cancelled while it was reserved'
    when v_cancelled then 'cancelled while it ran'
    else format('dead after attempt %s, which ended %s', p_claim.attempt, p_outcome)
      || coalesce(': ' || hwqueue.error_words(p_error), '') end;
  p_claim.attempt := v_attempts;
  perform hwqueue.lease_ended(array[p_claim.lease_id], v_state, coalesce(p_error, case when v_cancelled
      then jsonb_build_object('reason', 'cancelled', 'detail', p_claim.stop_detail) end), v_message, v_detail,
    p_claim, p_now);
  return v_state;
end
$$;

-- Whether a member whose claim ends is not replaced, because its gang goes on without it (on_lost continue).
-- So it is from the moment in which the gang may begin: no more wait than may, none is reserved, and none was
-- cancelled, which ends a gang that has not begun.
create or replace function hwqueue.is_left_behind(p_claim hwqueue.claim) returns boolean
language plpgsql stable
as $$ begin return
  p_claim.is_reserved is not true and exists (
    select from hwqueue.gang g
    where g.gang_id = p_claim.team_id and g.on_lost = 'continue'
      and (g.state = 'running' or g.state = 'reserved' and g.size - coalesce(g.min_size, g.size) >= (
        select count(*) filter (where s.state = 'scheduled')
                 + g.size * count(*) filter (where s.is_reserved or s.state = 'cancelled')
        from (
          select hwqueue.lease_state(m.lease_id) as state, c.is_reserved
          from unnest(g.members) m(lease_id)
          left join hwqueue.claim c on c.lease_id = m.lease_id) s)));
end $$;

-- When the next attempt may start, after attempt number p_attempt; null when no attempt is left.
create or replace function hwqueue.next_attempt_at(p_lease uuid, p_attempt int, p_now timestamptz)
returns timestamptz
language plpgsql volatile
as $$ begin return (
  select case when p_attempt < coalesce(l.max_attempts, q.max_attempts)
              then p_now + hwqueue.retry_delay(coalesce(l.retry, q.retry), p_attempt) end
  from hwqueue.lease l
  join hwqueue.queue q on q.queue_id = l.queue_id
  where l.lease_id = p_lease
); end $$;

-- Completes a claim if the token is right: the usual end of a claim, in two or three statements.
-- p_holds_node: the caller holds node_state of the claim's node; else this locks it if room is allocated for
-- the claim. p_node: only if it is that node's; null: only if it is the caller's. It never waits: it skips a
-- claim or a node that another session holds. p_holds: the caller holds the claim. False: nothing was done,
-- settle_claim returns the reason.
-- A claim with eligible_at is of a queue that keeps no completed leases: the lease is deleted at once,
-- with its result. The outcome stays until prune, for figures and for late settlements.
-- Locks: node_state, skip locked; the claim; the lease row, if it goes. Not idempotent.
create or replace function hwqueue.end_completed_claim(p_lease uuid, p_token bigint, p_node uuid,
  p_holds_node boolean, p_holds boolean, p_result jsonb) returns boolean
language plpgsql volatile
as $$
declare
  -- scalars: a row costs each claim more
  v_queue_id int;
  v_node_id uuid;
  v_attempt smallint;
  v_claimed_at timestamptz;
  v_assignment jsonb;
  v_deltas jsonb;
  v_eligible_at timestamptz;
  v_is_awaited boolean;
  v_is_step boolean;
  v_team_id uuid;
  v_lanes bigint[];
begin
  delete from hwqueue.claim c
  where c.lease_id = p_lease and c.claim_token = p_token
    and (c.node_id = p_node or p_node is null and hwqueue.is_own(c.login))
    and (p_holds or c.xmax = '0' or hwqueue.is_unlocked(c.xmax))
    and (c.assignment is null or p_holds_node or hwqueue.lock_free_node(c.node_id))
  returning c.queue_id, c.node_id, c.attempt, c.claimed_at, c.assignment, c.term_deltas, c.eligible_at,
    c.is_awaited, c.is_step, c.team_id, c.lanes
  into v_queue_id, v_node_id, v_attempt, v_claimed_at, v_assignment, v_deltas, v_eligible_at, v_is_awaited,
    v_is_step, v_team_id, v_lanes;
  if not found then
    return false;
  end if;
  if v_assignment is not null and not hwqueue.book_room(v_node_id, v_assignment, -1) then
    return false;  -- never; to perform it would be a statement
  end if;
  if v_deltas is not null then
    v_deltas := hwqueue.add_counts(v_deltas, -1);
  end if;
  insert into hwqueue.outcome (lease_id, queue_id, finished_at, claimed_at, claim_token, node_id,
    attempt, state, assignment, result, eligible_at, is_step)
  values (p_lease, v_queue_id, hwqueue.clock(), v_claimed_at, p_token, v_node_id,
    v_attempt, 'completed', v_assignment, case when v_eligible_at is null then p_result end,
    v_eligible_at, case when v_is_step is not null then true end);
  if v_eligible_at is not null then
    delete from hwqueue.lease l where l.lease_id = p_lease;
  end if;
  if v_lanes is not null and hwqueue.hand_over(v_lanes, hwqueue.clock(), false) < 0 then
    return false;  -- never, as above
  end if;
  if v_is_awaited then
    perform hwqueue.notify_ended(array[p_lease]);
  end if;
  if v_team_id is not null then
    insert into hwqueue.team_change (team_id, kind)
    values (v_team_id, case when v_team_id = p_lease then 'everywhere' else 'gang' end);
  end if;
  if v_is_step is not null then  -- what follows in its run is left to the public call
    return hwqueue.note_ended(array[p_lease], 'completed', v_is_step) is not null;
  end if;
  return true;
end
$$;

-- Like end_completed_claim for many, in one statement: claims that have no counters of affinity terms. With
-- p_node only that node's, else only the caller's. It skips claims that other sessions hold, and results that
-- their queue does not allow: p_settle has them, at the same ordinals. Returns the ordinals, in the lists, of
-- those that it completed.
-- Locks: the caller holds node_state; a claim may have committed since: then this, skip locked; the claims by
-- lease_id; the rows of leases that go; new rows. Not idempotent.
create or replace function hwqueue.end_completed_claims(p_leases uuid[], p_tokens bigint[], p_node uuid,
  p_settle jsonb)
returns int[]
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  v_done int[];
  v_gone uuid[];
  v_awaited uuid[];
  v_of_runs uuid[];
  v_has_steps boolean;
  v_teams uuid[];
  v_alone uuid[];  -- of everywhere tasks
  v_nodes uuid[];
  v_assignments jsonb[];
  v_lanes bigint[];
begin
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  v_now := hwqueue.clock();
  with ended as (
    delete from hwqueue.claim c using hwqueue.ordered_items(p_leases, p_tokens) i
    where c.lease_id = i.lease_id and c.claim_token = i.claim_token
      and (c.node_id = p_node or p_node is null and hwqueue.is_own(c.login))
      and c.term_deltas is null and (c.xmax = '0' or hwqueue.is_unlocked(c.xmax))
      and (c.assignment is null or p_node is not null or hwqueue.lock_free_node(c.node_id))
      and (p_settle = '[]' or octet_length(format('%s', p_settle -> (i.ordinal - 1) -> 'result')) <= (
        select q.max_result_bytes from hwqueue.queue q where q.queue_id = c.queue_id))
    returning i.ordinal, c.lease_id, c.queue_id, c.attempt, c.claim_token, c.node_id, c.claimed_at,
      c.assignment, c.eligible_at, c.is_awaited, c.is_step, c.team_id, c.lanes
  ), noted as (
    insert into hwqueue.outcome (lease_id, queue_id, finished_at, claimed_at, claim_token, node_id,
      attempt, state, assignment, result, eligible_at, is_step)
    select e.lease_id, e.queue_id, v_now, e.claimed_at, e.claim_token, e.node_id, e.attempt, 'completed',
           e.assignment,
           case when e.eligible_at is null then nullif(p_settle -> (e.ordinal - 1) -> 'result', 'null') end,
           e.eligible_at, case when e.is_step is not null then true end
    from ended e
  )
  select coalesce(array_agg(e.ordinal), '{}'), array_agg(e.lease_id) filter (where e.eligible_at is not null),
         array_agg(e.lease_id) filter (where e.is_awaited),
         array_agg(e.lease_id) filter (where e.is_step is not null), bool_or(e.is_step),
         array_agg(distinct e.team_id) filter (where e.team_id is not null),
         array_agg(e.team_id) filter (where e.team_id = e.lease_id),
         array_agg(e.node_id) filter (where e.assignment is not null),
         array_agg(e.assignment) filter (where e.assignment is not null),
         (select array_agg(s) from ended x cross join lateral unnest(x.lanes) s)
  into v_done, v_gone, v_awaited, v_of_runs, v_has_steps, v_teams, v_alone, v_nodes, v_assignments,
    v_lanes
  from ended e;
  if v_nodes is not null then
    perform hwqueue.write_load(hwqueue.add_uses(hwqueue.read_load(n.node_id), n, u.assignments, -1))
    from (
      select u.node_id, array_agg(u.assignment) as assignments
      from unnest(v_nodes, v_assignments) u(node_id, assignment) group by u.node_id) u
    join hwqueue.node n on n.node_id = u.node_id;
  end if;
  if v_lanes is not null then
    perform hwqueue.hand_over(v_lanes, v_now, false);
  end if;
  if v_awaited is not null then
    perform hwqueue.notify_ended(v_awaited);
  end if;
  if v_gone is not null then
    delete from hwqueue.lease l where l.lease_id = any (v_gone);
  end if;
  if v_of_runs is not null then
    perform hwqueue.note_ended(v_of_runs, 'completed', v_has_steps);
  end if;
  if v_teams is not null then
    insert into hwqueue.team_change (team_id, kind)
    select g, case when g = any (v_alone) then 'everywhere' else 'gang' end from unnest(v_teams) g;
  end if;
  return v_done;
end
$$;

-- The items of a batch in lock order, each once, with its first ordinal in the list.
-- Its declaration fixes the plans of the statements that join it by the key of claims or leases. `rows 1`:
-- the planner joins item for item. From a larger estimate it may read all claims or leases, because the
-- length of a list is in no statistics.
create or replace function hwqueue.ordered_items(p_leases uuid[], p_tokens bigint[])
returns table (lease_id uuid, claim_token bigint, ordinal int)
language plpgsql immutable rows 1
as $$ begin
  return query
    select i.lease_id, i.claim_token, min(i.ordinality)::int
    from unnest(p_leases, p_tokens) with ordinality i(lease_id, claim_token, ordinality)
    group by i.lease_id, i.claim_token order by i.lease_id;
end $$;

-- Claims that other sessions hold. Any login that may cancel can hold one for as long as its transaction
-- stays open. So a settlement waits for a bounded time; after that the claim is busy, to be settled
-- later.

-- True if no transaction holds the row whose system column xmax this is: the last one that locked it has
-- ended. (A heartbeat that has committed leaves its id there.) It reads the transaction's status,
-- because a snapshot names no subtransactions, and a savepoint may hold the row.
-- False also for what may be a multixact, which stands for several transactions, and for a row that this
-- transaction has locked itself.
create or replace function hwqueue.is_unlocked(p_xmax xid) returns boolean
language plpgsql volatile
as $$
declare
  v_now bigint := pg_current_xact_id()::text::bigint;
  -- how far back p_xmax is; below 0: assigned later than ours. Not age(), which counts from the id that
  -- was current when this transaction first asked
  v_back bigint := ((v_now - p_xmax::text::bigint + 2147483648) & 4294967295) - 2147483648;
begin
  return case when mxid_age(p_xmax) > 0 then false
    else pg_xact_status(greatest(3, v_now - v_back)::text::xid8) is distinct from 'in progress' end;
end
$$;

-- Waits until no other session holds these claims, or a node and all its claims: for each at most p_wait, or
-- lock_timeout where the session has set one. It holds none of them afterwards; the caller tries again.
-- False: one is still held.
-- Locks: node_state, the claims by lease_id, released before it returns.
create or replace function hwqueue.await_claims(p_leases uuid[], p_wait text, p_node uuid default null)
returns boolean
language plpgsql volatile
as $$
begin
  if current_setting('lock_timeout') = '0' then
    perform set_config('lock_timeout', p_wait, true);  -- undone below, like the locks
  end if;
  if p_node is not null then
    perform 1 from hwqueue.node_state s where s.node_id = p_node for no key update;
    p_leases := array(select c.lease_id from hwqueue.claim c where c.node_id = p_node);
  end if;
  perform 1 from hwqueue.claim c where c.lease_id = any (p_leases) order by c.lease_id for update;
  perform hwqueue.abort_subtransaction();
exception
  when sqlstate 'HWX01' then
    return true;
  when lock_not_available or deadlock_detected then
    return false;
end
$$;

-- The process ids of the sessions that hold these claims, as far as pg_locks shows them.
create or replace function hwqueue.claim_holders(p_leases uuid[]) returns jsonb
language plpgsql volatile
as $$ begin return (
  select coalesce(jsonb_agg(distinct l.pid), '[]')
  from hwqueue.claim c
  join pg_locks l on l.locktype = 'transactionid' and l.transactionid = c.xmax and l.granted
  where c.lease_id = any (p_leases)
); end $$;

-- Waits for a node and its claims, up to five seconds (or lock_timeout) each, before a registration or
-- an operator's command changes them.
-- Locks: node_state, then its claims by lease_id, released before it returns. Raises QHN06 when another
-- session still holds one.
create or replace function hwqueue.await_node(p_node uuid) returns void
language plpgsql volatile
as $$
begin
  if not hwqueue.await_claims(null, '5s', p_node) then
    perform hwqueue.refuse('QHN06',
      format('node %s is busy: another session holds it or one of its claims', p_node),
      jsonb_build_object('node_id', p_node, 'sessions', hwqueue.claim_holders(array(
        select c.lease_id from hwqueue.claim c where c.node_id = p_node))),
      'a transaction that was left open holds it, an unfinished cancel_lease, say: '
      || 'pg_stat_activity tells whose; then call again');
  end if;
end
$$;

-- Deletes a claim and releases what it allocated and counted. A second call finds no claim and does
-- nothing.
-- Locks: the caller holds node_state when the claim has an assignment; the claim.
create or replace function hwqueue.remove_claim(p_lease uuid) returns void
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
begin
  delete from hwqueue.claim c where c.lease_id = p_lease returning c.* into v_claim;
  perform hwqueue.book_room(v_claim.node_id, v_claim.assignment, -1);
  if v_claim.term_deltas is not null then
    perform hwqueue.add_counts(v_claim.term_deltas, -1);
  end if;
end
$$;

-- Who hears of the end of a lease. A run hears by a list that lasts as long as the call (note_ended), a gang
-- by a row in team_change, which a later reap reads. Those who wait for a lease are notified: await_leases
-- sets is_awaited in its claim and returns a payload; the settlement deletes that row, sees the flag, and
-- sends the payload (notify_ended). So a claim that nobody waits for costs its settlement neither a statement
-- nor a page. A notification may be lost, so a session that waits asks again now and then.
--
-- Deaths without a handler are noted: no worker settles those, so none would call its hooks. An example: a
-- machine dies with the last attempt of a lease. reap ends the claim, and a row in death is written, since a
-- node is registered whose worker has hooks and serves the queue and the task. Ten seconds later that worker
-- takes the row (take_deaths), as one worker does once, and calls them; if it dies then, nobody does.

-- Writes what became of leases that have ended, and tells all who must hear of it. All ends go through here
-- but completions (end_completed_claim), whose one statement does as much. p_claim: the claim that ended,
-- which the caller has deleted; null: they waited, and the caller has deleted their entries. p_error null:
-- they passed their deadline. p_message null: no event. p_now: read after the claims were locked; null: the
-- clock. p_follows: the caller does itself what follows in their run.
-- Locks: new rows. Not idempotent. Notifies: listeners of hwqueue_ended.
create or replace function hwqueue.lease_ended(p_leases uuid[], p_state text, p_error jsonb, p_message text,
  p_detail jsonb default null, p_claim hwqueue.claim default null, p_now timestamptz default null,
  p_follows boolean default false) returns void
language plpgsql volatile
as $$
declare
  v_is_late boolean := p_error is null and p_claim.lease_id is null;
  v_found record;
begin
  if p_now is null then
    lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
    p_now := hwqueue.clock();
  end if;
  with ended as materialized (
    select l.*
    from unnest(p_leases) i
    cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
      select x.lease_id, x.queue_id, x.claimed_at, x.claim_token, x.node_id, x.attempt_count, x.deadline,
             x.run_id, x.item_no, x.team_id, x.lanes_passed
      from hwqueue.lease x where x.lease_id = i offset 0) l
  ), written as (
    insert into hwqueue.outcome (lease_id, queue_id, finished_at, claimed_at, claim_token, node_id,
      attempt, state, assignment, error, is_step)
    select l.lease_id, l.queue_id, p_now, coalesce(p_claim.claimed_at, l.claimed_at),
           coalesce(p_claim.claim_token, l.claim_token), coalesce(p_claim.node_id, l.node_id),
           coalesce(p_claim.attempt, l.attempt_count), p_state, p_claim.assignment,
           case when v_is_late then jsonb_build_object('reason', 'deadline_exceeded', 'deadline', l.deadline)
             else p_error end,
           case when l.run_id is not null then true end
    from ended l
  ), changed as (
    insert into hwqueue.team_change (team_id, kind)
    select distinct l.team_id, case when l.team_id = l.lease_id then 'everywhere' else 'gang' end
    from ended l where l.team_id is not null
  )
  select array_agg(l.lease_id) filter (where l.run_id is not null and not p_follows) as leases,
         bool_or(l.item_no is null) filter (where l.run_id is not null and not p_follows) as has_steps,
         array_agg(l.lease_id) filter (where l.lanes_passed > 0) as admitted
  into v_found from ended l;
  if v_found.admitted is not null and (p_claim.lease_id is null or p_claim.is_reserved) then
    perform hwqueue.leave_lanes(v_found.admitted);
  end if;
  if p_claim.is_awaited then
    perform hwqueue.notify_ended(p_leases);
  end if;
  if p_message is not null then
    perform hwqueue.note_leases(case when v_is_late then 'lease_deadline_exceeded'
        when p_state = 'cancelled' then 'lease_cancelled' else 'lease_failed' end,
      p_leases, p_message, p_detail, p_claim.node_id);
  end if;
  if (v_is_late or p_state = 'failed' and p_detail ->> 'outcome' in ('expired', 'superseded'))
    and exists (select from hwqueue.node n where n.hears_deaths) then
    insert into hwqueue.death as d (lease_id, queue_id, task_name, claim_token, died_at)
    select l.lease_id, l.queue_id, l.task_name, o.claim_token, p_now
    from hwqueue.lease l
    join hwqueue.outcome o on o.lease_id = l.lease_id
    join hwqueue.queue q on q.queue_id = l.queue_id
    where l.lease_id = any (p_leases) and exists (
      select 1 from hwqueue.node n
      where n.hears_deaths
        -- as unserved_part, whose call at each node would take most of the time of an expiry
        and (q.name <> all (n.queues) or l.task_name <> all (n.tasks)) is not true)
    order by l.lease_id
    on conflict (lease_id) do update  -- requeued, and dead again
    set claim_token = excluded.claim_token, died_at = excluded.died_at;
  end if;
  if v_found.leases is not null then
    perform hwqueue.note_ended(v_found.leases, p_state, v_found.has_steps);
  end if;
end
$$;

-- Notes that leases of runs have ended, until the public call asks what follows in their runs
-- (workflows/ending follow_ended). The list is a setting: before each lease a space, the trace that goes on
-- with it, its state, and step or item; several that are noted together are steps if one is. The public call
-- begins with an empty one, so that nobody puts a lease on it from outside; what is undone goes from it, too.
-- Each lease more copies it, so a long one goes behind ended_before, and begins with a + from then on.
-- A SQL function of one expression, so the planner inlines it.
create or replace function hwqueue.note_ended(p_leases uuid[], p_state text, p_has_steps boolean) returns text
language sql volatile
as $$
  select set_config('hwqueue.ended', concat(
    case when octet_length(current_setting('hwqueue.ended', true)) > 8000
      then '+' || left(set_config('hwqueue.ended_before', concat(
        case when current_setting('hwqueue.ended') like '+%' then current_setting('hwqueue.ended_before') end,
        ltrim(current_setting('hwqueue.ended'), '+')), true), 0)
      else current_setting('hwqueue.ended', true) end,
    array_to_string(''::text || p_leases::text[], concat(' ',
      translate(coalesce(current_setting('hwqueue.traceparent', true), ''), ' ', e'\x1f'), ' ', p_state,
      case when p_has_steps then ' step ' else ' item ' end))), true)
$$;

-- Notifies those who wait for these leases, which have ended. Notifies: listeners of hwqueue_ended.
create or replace function hwqueue.notify_ended(p_leases uuid[]) returns void
language plpgsql volatile
as $$ begin
  -- digests: any login of the database may listen
  perform pg_notify('hwqueue_ended', hwqueue.wake_payload(s.wake_key, i.lease_id::text))
  from hwqueue.installation s cross join unnest(p_leases) i(lease_id);
end $$;
