-- Notices of ends: who is told that leases have ended.
--
-- Those who wait for a lease are notified: api/leases.await_leases calls flag_awaited, and the functions
-- that end a claim (claim/end_claim) call notify_ended. An example: a program waits for frame 7, which
-- runs. await_leases sets is_awaited in its claim and returns a payload. The settlement deletes that row,
-- sees the flag, and sends the payload.
--
-- Deaths without a handler are noted: a lease fails because its last claim expired or was superseded, or
-- its deadline passed. No worker settles those, so none would call its hooks. end_claim and fail_late call
-- note_deaths, take_deaths (api/claims) returns the rows to a worker. An example: a machine dies with the
-- last attempt of a lease. reap ends the claim, and note_deaths writes a row, since a node is registered
-- whose worker has hooks and serves the queue and the task. Ten seconds later that worker takes the row and
-- calls them.
--
-- Invariants: a claim that nobody waits for costs its settlement neither a statement nor a page, since the
-- flag is in the row that the settlement deletes. One worker takes a death, once. Both are best effort: a
-- notification may be lost, so a session that waits asks again now and then; a worker that dies after it
-- has taken a death calls nothing.

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

-- Writes down leases that have just died, if a registered node's worker wants to hear of them.
-- Locks: new rows. The caller holds what the leases had: entries or claims.
create or replace function hwqueue.note_deaths(p_leases uuid[], p_now timestamptz) returns void
language plpgsql volatile
as $$
begin
  if not exists (select 1 from hwqueue.served v where v.hears_deaths) then
    return;
  end if;
  insert into hwqueue.death as d (lease_id, queue_id, task_name, claim_token, died_at)
  select l.lease_id, l.queue_id, l.task_name, o.claim_token, p_now
  from hwqueue.lease l
  join hwqueue.outcome o on o.lease_id = l.lease_id
  join hwqueue.queue q on q.queue_id = l.queue_id
  where l.lease_id = any (p_leases) and exists (
    select 1 from hwqueue.served v
    where v.hears_deaths
      -- as unserved_part, whose call at each node would take most of the time of an expiry
      and (q.name <> all (v.queues) or l.task_name <> all (v.tasks)) is not true)
  order by l.lease_id
  on conflict (lease_id) do update  -- requeued, and dead again
  set claim_token = excluded.claim_token, died_at = excluded.died_at;
end
$$;
