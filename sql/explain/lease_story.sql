-- What is to be said of leases that are not pending.

-- An error in one line.
create or replace function hwqueue.error_words(p_error jsonb) returns text
language sql immutable parallel safe
as $$
  select left(regexp_replace(coalesce(
    case when jsonb_typeof(p_error) = 'object' then nullif(concat_ws(': ', p_error ->> 'type',
      coalesce(p_error ->> 'message', p_error ->> 'detail', p_error ->> 'reason')), '') end,
    p_error #>> '{}'), '[[:cntrl:][:space:]]+', ' ', 'g'), 200)
$$;

-- A lease that runs: where, since when, until when, and who asked it to stop.
create or replace function hwqueue.claimed_story(p_claim hwqueue.claim, p_lease hwqueue.lease, p_now timestamptz, p_shard int, out headline text, out code text)
language plpgsql stable
as $$
declare
  v_node text := coalesce((select n.name from hwqueue.node n where n.shard_id = p_shard and n.node_id = p_claim.node_id), p_claim.node_id::text);
  v_most int := coalesce(p_lease.max_attempts, (select q.max_attempts from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_lease.queue_id));
begin
  code := case when p_claim.expires_at <= p_now then 'expired' when p_claim.stop_requested_at <= p_now then p_claim.stop_reason else 'claimed' end;
  headline := format('runs on %s for %s, attempt %s of %s; ', v_node, hwqueue.span_words(p_now - p_claim.claimed_at), p_claim.attempt, v_most)
    || case when p_claim.expires_at <= p_now
            then format('its claim expired %s ago, and the next reap ends it', hwqueue.span_words(p_now - p_claim.expires_at))
            else format('its claim ends in %s unless its worker goes on', hwqueue.span_words(p_claim.expires_at - p_now)) end
    || case when p_claim.stop_requested_at is null then ''
            when p_claim.stop_requested_at > p_now
            then format('; it will be asked to stop in %s (%s)', hwqueue.span_words(p_claim.stop_requested_at - p_now), p_claim.stop_reason)
            else format('; it was asked to stop %s ago (%s%s)', hwqueue.span_words(p_now - p_claim.stop_requested_at), p_claim.stop_reason,
                        coalesce(': ' || left(p_claim.stop_detail, 200), '')) end;
end
$$;

-- One that is scheduled, or has ended (p_end).
create or replace function hwqueue.resting_story(p_lease hwqueue.lease, p_end hwqueue.outcome, p_state text, p_now timestamptz, p_shard int)
returns text
language plpgsql stable
as $$
declare
  v_node text := coalesce((select n.name from hwqueue.node n where n.shard_id = p_shard and n.node_id = p_end.node_id), p_end.node_id::text);
  v_error jsonb := case when p_state <> 'scheduled' then p_end.error else (
    select a.error from hwqueue.attempt a
    where a.shard_id = p_shard and a.lease_id = p_lease.lease_id order by a.claim_token desc limit 1) end;
begin
  if p_state = 'scheduled' then
    return case when p_lease.available_at > p_now then format('scheduled: claimable in %s', hwqueue.span_words(p_lease.available_at - p_now))
                else 'scheduled, and due: the next claim of the queue or reap makes it pending' end
      || case when p_lease.attempt_count > 0 then format(', for attempt %s%s', p_lease.attempt_count + 1,
                                                         coalesce('; the one before ended with ' || hwqueue.error_words(v_error), '')) else '' end;
  end if;
  return format('%s %s ago%s%s%s', p_state, hwqueue.span_words(p_now - p_end.finished_at), coalesce(' on ' || v_node, ''),
    case when p_end.attempt > 0 then format(', attempt %s', p_end.attempt) else '' end,
    coalesce(': ' || hwqueue.error_words(v_error), ''));
end
$$;
