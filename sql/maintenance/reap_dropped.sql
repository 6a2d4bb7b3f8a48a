-- Asks what runs in dropped queues to stop: at each call in the first minute, and with p_again for as long as
-- the queue is there, should a claim have been granted in a transaction that was open. Returns their number.
-- Locks: the claims, skip locked.
create or replace function hwqueue.reap_dropped(p_limit int, p_again boolean, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_queue_ids int[] := array(
    select q.queue_id from hwqueue.queue q
    where q.shard_id = p_shard and q.dropped_at is not null and (p_again or q.dropped_at > p_now - interval '1 minute'));
  v_leases uuid[];
begin
  if v_queue_ids = '{}' then
    return 0;
  end if;
  v_leases := array(
    select c.lease_id from hwqueue.claim c
    where c.shard_id = p_shard and c.queue_id = any (v_queue_ids) and c.stop_reason is distinct from 'cancelled'
    limit p_limit for update skip locked);
  update hwqueue.claim c
  set stop_requested_at = least(c.stop_requested_at, p_now), stop_reason = 'cancelled', stop_detail = 'the queue was dropped',
      expires_at = least(c.expires_at, p_now + c.claim_timeout), check_at = least(c.check_at, p_now + c.claim_timeout)
  where c.shard_id = p_shard and c.lease_id = any (v_leases);
  perform hwqueue.note_leases('claim_stop_requested', v_leases, 'asked to stop: the queue was dropped', p_shard,
    '{"reason": "cancelled"}');
  return cardinality(v_leases);
end
$$;
