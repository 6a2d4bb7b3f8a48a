-- Ends of leases: who hears of them.
--
-- A run hears by a list that lasts as long as the call (note_ended), a gang by a row in gang_change, which a
-- later reap reads. Those who wait for a lease are notified. An example: a program waits for frame 7, which
-- runs. await_leases sets is_awaited in its claim and returns a payload. The settlement deletes that row,
-- sees the flag, and sends the payload (notify_ended).
--
-- Deaths without a handler are noted: no worker settles those, so none would call its hooks. An example: a
-- machine dies with the last attempt of a lease. reap ends the claim, and a row in death is written, since a
-- node is registered whose worker has hooks and serves the queue and the task. Ten seconds later that worker
-- takes the row (take_deaths) and calls them.
--
-- Invariants: a claim that nobody waits for costs its settlement neither a statement nor a page. One worker
-- takes a death, once. Both are best effort: a notification may be lost, so a session that waits asks again
-- now and then; a worker that dies after it has taken a death calls nothing.

-- Writes what became of leases that have ended, and tells all who must hear of it. All ends go through here
-- but completions (claim/end_claim), whose one statement does as much. p_claim: the claim that ended, which
-- the caller has deleted; null: they waited, and the caller has deleted their entries. p_error null: they
-- passed their deadline. p_message null: no event. p_now: read after the claims were locked; null: the
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
             x.run_id, x.item_no, x.gang_id
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
    insert into hwqueue.gang_change (gang_id)
    select distinct l.gang_id from ended l where l.gang_id is not null
  )
  select array_agg(l.lease_id) as leases, bool_or(l.item_no is null) as has_steps into v_found
  from ended l where l.run_id is not null and not p_follows;
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

-- Flags the claims of these leases that are not flagged yet. A claim that another session holds stays as
-- it is, to be flagged when the caller asks again.
-- Locks: the claims, skip locked.
create or replace function hwqueue.flag_awaited(p_leases uuid[]) returns void
language plpgsql volatile
as $$
declare
  v_leases uuid[] := array(
    select c.lease_id from hwqueue.claim c
    where c.lease_id = any (p_leases) and not c.is_awaited
    for update skip locked);
begin
  if v_leases <> '{}' then
    update hwqueue.claim c set is_awaited = true where c.lease_id = any (v_leases);
  end if;
end
$$;

-- Notifies those who wait for these leases, which have ended. Notifies: listeners of hwqueue_ended.
create or replace function hwqueue.notify_ended(p_leases uuid[]) returns void
language plpgsql volatile
as $$
begin
  -- digests: any login of the database may listen
  perform pg_notify('hwqueue_ended', hwqueue.wake_payload(s.wake_key, i.lease_id::text))
  from hwqueue.installation s cross join unnest(p_leases) i(lease_id);
end
$$;

-- Asks claims that the caller holds to stop, because their leases are cancelled, and wakes their nodes.
-- p_why is kept with the claims; the others are what the event says. Not idempotent.
create or replace function hwqueue.cancel_claims(p_leases uuid[], p_why text, p_message text,
  p_detail jsonb default '{"reason": "cancelled"}', p_node uuid default null) returns void
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  update hwqueue.claim c
  set stop_requested_at = least(c.stop_requested_at, v_now), stop_reason = 'cancelled',
    stop_detail = p_why, expires_at = least(c.expires_at, v_now + c.claim_timeout),
    check_at = least(c.check_at, v_now + c.claim_timeout)
  where c.lease_id = any (p_leases);
  perform hwqueue.note_leases('claim_stop_requested', p_leases, 'asked to stop: ' || p_message, p_detail,
    p_node);
  perform hwqueue.wake_node(c.node_id, c.login) from hwqueue.claim c
  where c.lease_id = any (p_leases) group by c.node_id, c.login;
end
$$;
