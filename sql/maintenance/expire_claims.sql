-- Ends claims that have expired (plus the queue's grace), oldest first: one attempt used, put back at once while attempts are left.
-- A node that is at work is left alone, and its claims use up none of the limit: the next reap will see. Stops after p_until, by the real
-- clock, but not before it has ended one.
-- Locks: node_state of the nodes where something was set aside, then the claims, all skip locked: the claim of a node at work is not held; the
-- lease rows. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.expire_claims(p_limit int, p_now timestamptz, p_shard int, p_from timestamptz, p_until timestamptz)
returns int
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_count int := 0;
begin
  for v_claim in
    select c.*
    from hwqueue.claim c
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    where c.shard_id = p_shard and c.check_at between p_from and p_now and c.assignment is null and c.expires_at + q.reap_grace <= p_now
    order by c.check_at limit p_limit
    for update of c skip locked
  loop
    perform hwqueue.expire_claim(v_claim, hwqueue.clock(), p_shard);
    v_count := v_count + 1;
    if clock_timestamp() >= p_until then
      return v_count;
    end if;
  end loop;
  for v_claim in
    select c.*
    from hwqueue.claim c
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    join hwqueue.node_state s on s.shard_id = c.shard_id and s.node_id = c.node_id
    where c.shard_id = p_shard and c.check_at between p_from and p_now and c.assignment is not null and c.expires_at + q.reap_grace <= p_now
    order by c.check_at limit p_limit - v_count
    for no key update of s skip locked for update of c skip locked
  loop
    perform hwqueue.expire_claim(v_claim, hwqueue.clock(), p_shard);
    v_count := v_count + 1;
    exit when clock_timestamp() >= p_until;
  end loop;
  return v_count;
end
$$;

-- Ends one claim that nobody heartbeats. p_now: read after the claim was locked (roll_up rests on it).
-- Locks: the caller holds the claim, and node_state where something was set aside; the lease row. Idempotent: no.
create or replace function hwqueue.expire_claim(p_claim hwqueue.claim, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  perform hwqueue.note_leases('claim_expired', array[p_claim.lease_id], format('attempt %s expired, its node gave no heartbeat', p_claim.attempt), p_shard,
    jsonb_build_object('attempt', p_claim.attempt, 'expires_at', p_claim.expires_at), p_claim.node_id);
  perform hwqueue.end_claim(p_claim, 'expired', jsonb_build_object('reason', 'claim_expired', 'expires_at', p_claim.expires_at),
    case when hwqueue.next_attempt_at(p_claim.lease_id, p_claim.attempt, p_now, p_shard) is not null then p_now end, p_now, p_shard);
end
$$;

-- Lets reap look again, when they expire, at claims that it meets although they live: heartbeats do not touch the index that it
-- reads. Not when their grace is over: whoever asks for expired claims finds them by check_at. Gives their number.
-- Locks: the claims, skip locked.
create or replace function hwqueue.postpone_checks(p_limit int, p_now timestamptz, p_shard int, p_from timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_alive uuid[];
begin
  v_alive := array(
    select c.lease_id
    from hwqueue.claim c
    where c.shard_id = p_shard and c.check_at between p_from and p_now and c.expires_at > p_now
    order by c.check_at limit p_limit
    for update skip locked);
  update hwqueue.claim c set check_at = c.expires_at where c.shard_id = p_shard and c.lease_id = any (v_alive);
  return cardinality(v_alive);
end
$$;
