-- Deaths without a handler: leases that fail because their last claim expired or was superseded, or their
-- deadline passed. No worker settles those, so none would call its hooks.
--
-- end_claim and fail_late call note_deaths; take_deaths (api/claims) returns them to a worker. An example: a
-- machine dies with the last attempt of a lease. reap ends the claim, and note_deaths writes a row, since a
-- node is registered whose worker has hooks and serves the queue and the task. Ten seconds later that worker
-- takes the row and calls them.
--
-- Invariant: one worker takes a death, once. It is best effort: a worker that dies after it has taken a
-- death calls nothing, as one does that dies after it has settled.

-- Writes down leases that have just died, if a registered node's worker wants to hear of them.
-- Locks: new rows. The caller holds what the leases had: entries or claims.
create or replace function hwqueue.note_deaths(p_leases uuid[], p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if not exists (select 1 from hwqueue.served v where v.shard_id = p_shard and v.hears_deaths) then
    return;
  end if;
  insert into hwqueue.death as d (shard_id, lease_id, queue_id, task_name, claim_token, died_at)
  select p_shard, l.lease_id, l.queue_id, l.task_name, o.claim_token, p_now
  from hwqueue.lease l
  join hwqueue.outcome o on o.shard_id = p_shard and o.lease_id = l.lease_id
  join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = l.queue_id
  where l.shard_id = p_shard and l.lease_id = any (p_leases) and exists (
    select 1 from hwqueue.served v
    where v.shard_id = p_shard and v.hears_deaths
      -- as unserved_part, whose call at each node would take most of the time of an expiry
      and (q.name <> all (v.queues) or l.task_name <> all (v.tasks)) is not true)
  order by l.lease_id
  on conflict (shard_id, lease_id) do update  -- requeued, and dead again
  set claim_token = excluded.claim_token, died_at = excluded.died_at;
end
$$;

-- Deletes deaths that nobody has taken for an hour, and returns their number.
-- Locks: the rows, skip locked.
create or replace function hwqueue.prune_deaths(p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_old uuid[] := array(
    select d.lease_id from hwqueue.death d
    where d.shard_id = p_shard and d.died_at < p_now - interval '1 hour'
    order by d.died_at limit p_limit for update skip locked);
begin
  delete from hwqueue.death d where d.shard_id = p_shard and d.lease_id = any (v_old);
  return cardinality(v_old);
end
$$;
