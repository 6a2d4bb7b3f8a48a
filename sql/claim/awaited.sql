-- Telling those who wait for leases that these have ended.
--
-- api/leases.await_leases and the functions that end a claim (claim/end_claim) call this module. An
-- example: a program waits for frame 7, which runs. await_leases sets is_awaited in its claim and
-- returns a payload. The settlement deletes that row, sees the flag, and sends the payload.
--
-- Invariant: a claim that nobody waits for costs its settlement neither a statement nor a page: the
-- flag is in the row that the settlement deletes. A notification is a hint and may be lost: a
-- session that waits asks again now and then.

-- Flags the claims of these leases that are not flagged yet. A claim that another session holds stays as
-- it is, to be flagged when the caller asks again.
-- Locks: the claims, skip locked.
create or replace function hwqueue.flag_awaited(p_leases uuid[], p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_leases uuid[] := array(
    select c.lease_id from hwqueue.claim c
    where c.shard_id = p_shard and c.lease_id = any (p_leases) and not c.is_awaited
    for update skip locked);
begin
  if v_leases <> '{}' then
    update hwqueue.claim c set is_awaited = true where c.shard_id = p_shard and c.lease_id = any (v_leases);
  end if;
end
$$;

-- Notifies those who wait for these leases, which have ended. Notifies: listeners of hwqueue_ended.
create or replace function hwqueue.notify_ended(p_leases uuid[], p_shard int) returns void
language plpgsql volatile
as $$
begin
  -- digests: any login of the database may listen
  perform pg_notify('hwqueue_ended', hwqueue.wake_payload(s.wake_key, i.lease_id::text, p_shard))
  from hwqueue.shard s cross join unnest(p_leases) i(lease_id)
  where s.shard_id = p_shard;
end
$$;
