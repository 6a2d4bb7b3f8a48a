-- Makes scheduled leases claimable whose time has come, oldest first, at most p_limit of them.
-- Locks: their entries, skip locked; then their lease rows. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.promote_due(p_queue_ids int[], p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_due uuid[];
begin
  v_due := array(
    select s.lease_id from hwqueue.scheduled s
    where s.shard_id = p_shard and s.queue_id = any (p_queue_ids) and s.available_at <= p_now
    order by s.available_at limit p_limit
    for update skip locked);
  if v_due = '{}' then
    return 0;
  end if;
  with due as (
    delete from hwqueue.scheduled s
    where s.shard_id = p_shard and s.queue_id = any (p_queue_ids) and s.available_at <= p_now and s.lease_id = any (v_due)
    returning s.*
  ), entry as (
    insert into hwqueue.ready as r (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, eligible_at, deadline)
    select p_shard, d.queue_id, d.tier, d.attempt_count, d.claim_count, d.rank, d.class_id, d.lease_id, d.available_at, d.deadline
    from due d order by d.available_at
    returning r.lease_id, r.position
  )
  update hwqueue.lease l set position = e.position
  from entry e where l.shard_id = p_shard and l.lease_id = e.lease_id;
  return cardinality(v_due);
end
$$;
