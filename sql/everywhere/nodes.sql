-- One node of an everywhere task: starting its lease there, reserving its room, and what follows its end.
--
-- Example: gpu-7 registers for the first time. The everywhere task "agent" suits it, so its first claim
-- writes a lease and its reservation, before it is granted anything else.
--
-- Invariant: only a session that holds node_state writes the node's rows of everywhere_node. Their key is the
-- task and the node, so a node never has two open leases of one everywhere task. look_at_node compares what
-- should be with what is, whatever has happened before: a call too many changes nothing.
--
-- Read look_at_node, try_on_node, then look_at_claim.

-- Brings the lease of an everywhere task on a node to where it should be: starts it, reserves its room, ends
-- it, or starts the next one. One that waits is cancelled, stays until its node is there again, or until its
-- retry is due, or its room is reserved. With mode always another one follows one that has ended: a second
-- after a completion, else after the delay of its retry policy for as many failures in a row; one that ran
-- for ten minutes counts as the first. Deletes the changes of the lease first, and reads its state after.
-- Locks: the caller holds node_state, if the node has one; its claim, its entry, skip locked; as
-- reserve. Idempotent.
create or replace function hwqueue.look_at_node(p_everywhere hwqueue.everywhere, p_node uuid,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_fit text := hwqueue.everywhere_fit(p_everywhere, p_node, p_now);
  v_row hwqueue.everywhere_node;
  v_taken record;
  v_spawn hwqueue.spawn_request;
  v_retry_at timestamptz;
  v_state text;
  v_is_open boolean := false;
  v_why jsonb;
  v_has_next boolean := v_fit = 'now';  -- the first one
  v_is_gone boolean := false;
  v_end hwqueue.outcome;
begin
  select r.* into v_row from hwqueue.everywhere_node r
  where r.everywhere_id = p_everywhere.everywhere_id and r.node_id = p_node;
  if found then
    with gone as (
      delete from hwqueue.team_change c where c.team_id = v_row.lease_id returning c.retry_at
    )
    select max(g.retry_at) into v_retry_at from gone g;
    v_state := hwqueue.lease_state(v_row.lease_id);
    if v_state = 'claimed' then
      v_taken := hwqueue.look_at_claim(p_everywhere, v_row, v_fit, p_now);
      v_row := v_taken.p_row;
      v_state := v_taken.state;
    end if;
    v_is_open := coalesce(v_state in ('scheduled', 'pending', 'claimed'), false);
    if not v_is_open and v_row.ended_as is null then
      v_end := hwqueue.lease_end(v_row.lease_id);
      v_row.ended_as := coalesce(v_state, v_end.state, 'gone');
      v_row.failures := case when v_row.ended_as in ('completed', 'gone') then 0
        when v_end.finished_at >= v_end.claimed_at + interval '10 minutes' then 1
        else v_row.failures + 1 end;
      v_row.due_at := p_now + (
        select case when v_row.failures = 0 then interval '1 second' else greatest(interval '1 second',
          coalesce(hwqueue.retry_delay(coalesce(hwqueue.normalise_retry(p_everywhere.options -> 'retry',
            'options.retry'), q.retry), v_row.failures),
          least(interval '10 seconds' * 2 ^ least(v_row.failures - 1, 5), interval '5 minutes'))) end
        from hwqueue.queue q where q.queue_id = p_everywhere.queue_id);
    end if;
    v_has_next := p_everywhere.mode = 'always' and v_fit = 'now';
  end if;
  if not v_is_open and v_has_next and coalesce(v_row.due_at, p_now) <= p_now then
    -- sizes and limits were checked when it was defined: a policy that changed since stops no claim
    v_spawn := hwqueue.read_spawn(1, hwqueue.new_id(), p_everywhere.class_id, p_everywhere.task_name,
      p_everywhere.params, p_everywhere.options,
      row(null, (hwqueue.find_tenant(p_everywhere.tenant)).tier, null)::hwqueue.spawn_own, p_now);
    v_spawn.team_id := v_spawn.lease_id;
    v_spawn.available_at := 'infinity';
    perform hwqueue.write_spawns(array[v_spawn], q, p_now) from hwqueue.queue q
    where q.queue_id = p_everywhere.queue_id;
    insert into hwqueue.everywhere_node as r (everywhere_id, node_id, lease_id, failures)
    values (p_everywhere.everywhere_id, p_node, v_spawn.lease_id, coalesce(v_row.failures, 0))
    on conflict (everywhere_id, node_id) do update
    set lease_id = excluded.lease_id, due_at = null, starts = r.starts + 1, tries = 0,
        failures = excluded.failures
    returning r.* into v_row;
    v_state := 'scheduled';
    v_retry_at := null;
  elsif not v_is_open then
    v_is_gone := p_everywhere.stopped_at is null and v_fit = 'never'
      and (p_everywhere.mode = 'always' or not exists (
        select from hwqueue.node n where n.node_id = p_node));
    v_row.tries := 0;
    v_row.reason := null;
    v_row.due_at := case when v_has_next then v_row.due_at end;
  end if;
  if v_state in ('scheduled', 'pending') then
    v_row.ended_as := null;
    v_row.due_at := coalesce(v_retry_at, v_row.due_at);
    if v_fit = 'never' then  -- it is cancelled; of one that was stopped the row stays, and tells how it ended
      v_why := jsonb_build_object('reason', case when p_everywhere.stopped_at is null then 'node_unmatched'
        else 'everywhere_stopped' end, 'everywhere_id', v_row.everywhere_id, 'node_id', p_node);
      if hwqueue.cancel_waiting(array[v_row.lease_id], v_why,
          'cancelled: it is to run on no node any more', v_why) <> '{}' then
        delete from hwqueue.team_change c where c.team_id = v_row.lease_id;
        v_is_gone := p_everywhere.stopped_at is null;
        v_row.ended_as := 'cancelled';
        v_row.due_at := null;
        v_row.reason := null;
      else
        v_row.due_at := p_now;  -- others hold its entry
      end if;
    elsif v_row.due_at > p_now or v_fit = 'later' then
      v_row.due_at := case when v_row.due_at > p_now then v_row.due_at end;
      v_row.reason := case when v_fit = 'later' then 'node_unavailable'
        when v_retry_at is null then v_row.reason end;
    else
      v_row := hwqueue.try_on_node(p_everywhere, v_row, p_now);
    end if;
  end if;
  if v_is_gone then
    delete from hwqueue.everywhere_node r
    where r.everywhere_id = v_row.everywhere_id and r.node_id = p_node;
  else
    update hwqueue.everywhere_node r
    set due_at = v_row.due_at, reason = v_row.reason, tries = v_row.tries, failures = v_row.failures,
        ended_as = v_row.ended_as, earmark_after = v_row.earmark_after
    where r.everywhere_id = v_row.everywhere_id and r.node_id = p_node;
  end if;
end
$$;

-- Tries to reserve the room of a waiting lease on its node. Without room, or while leases wait that come
-- before it, it is earmarked, unless other everywhere tasks leave it no room: what becomes free there goes to
-- nobody that comes after it. A node that has just registered asks nobody who comes before. Else the next try
-- is after 1, 2, 4, 8, then 15 seconds; at the next tick when others held what it needed. A reservation lasts
-- for a minute and is extended while the node lives. Returns the row as it is to be written.
-- Locks: the caller holds node_state; the entry, skip locked; as reserve. Wakes: waiting workers.
create or replace function hwqueue.try_on_node(p_everywhere hwqueue.everywhere,
  p_row hwqueue.everywhere_node, p_now timestamptz) returns hwqueue.everywhere_node
language plpgsql volatile
as $$
declare
  v_entry hwqueue.scheduled;
  v_reason text := 'busy';
  v_wait interval;
begin
  select s.* into v_entry from hwqueue.scheduled s
  where (s.queue_id, s.available_at, s.lease_id) = (p_everywhere.queue_id, 'infinity', p_row.lease_id)
  for update skip locked;
  if found then
    v_reason := case when not exists (
        select from hwqueue.node_state s where s.node_id = p_row.node_id and s.expands_until > p_now)
        and hwqueue.earlier_waits(p_row.lease_id, p_row.node_id, p_now) then 'earlier_waits'
      else hwqueue.reserve(v_entry, p_row.node_id, hwqueue.everywhere_hold(), false, null, p_now) end;
  end if;
  if v_reason is null then
    v_wait := hwqueue.everywhere_hold() / 3;
    p_row.tries := 0;
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = p_everywhere.queue_id;
  elsif v_reason in ('busy', 'unpublished', 'cache_miss') then
    v_wait := '0';
  else
    v_wait := case when v_reason in ('insufficient_capacity', 'earlier_waits')
        and (p_row.earmark_after > p_now) is not true
        and hwqueue.reserve(v_entry, p_row.node_id, null, true, null, p_now) is null then interval '1 second'
      else hwqueue.back_off(p_row.tries) end;
    p_row.tries := p_row.tries + 1;
  end if;
  p_row.reason := v_reason;
  p_row.due_at := p_now + v_wait;
  return p_row;
end
$$;

-- How long a reservation of an everywhere task lasts unless it is extended.
create or replace function hwqueue.everywhere_hold() returns interval
language sql immutable parallel safe
as $$ select interval '1 minute' $$;

-- What follows for a claimed lease: an earmark is backed once its node has room, a reservation is extended.
-- Both end if the node may not fetch them, and an earmark ends when it stands for too long (the policy
-- earmark_time): for as long there is none again. A lease that runs is asked to stop where it may not go on.
-- Returns the row as it is to be written, and the state of the lease.
-- Locks: the caller holds node_state; the claim, skip locked; as back_earmarks and end_claim.
create or replace function hwqueue.look_at_claim(p_everywhere hwqueue.everywhere,
  inout p_row hwqueue.everywhere_node, p_fit text, p_now timestamptz, out state text)
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_reason text;
  v_most interval := (
    select (q.tuning).earmark_time from hwqueue.queue q where q.queue_id = p_everywhere.queue_id);
begin
  select c.* into v_claim from hwqueue.claim c where c.lease_id = p_row.lease_id for update skip locked;
  if v_claim.is_reserved and (p_fit <> 'now' or v_claim.stop_requested_at <= p_now) then
    state := hwqueue.end_claim(v_claim, 'released', null, p_now, hwqueue.clock());
    return;
  elsif v_claim.is_earmark then
    v_reason := hwqueue.back_earmarks(array[p_row.lease_id], hwqueue.everywhere_hold(), p_now);
    if v_reason = 'insufficient_capacity' and v_claim.claimed_at + v_most <= p_now then
      p_row.earmark_after := p_now + v_most;
      state := hwqueue.end_claim(v_claim, 'released', null, p_now, hwqueue.clock());
      return;
    end if;
  elsif v_claim.is_reserved then
    update hwqueue.claim c set expires_at = p_now + hwqueue.everywhere_hold()
    where c.lease_id = p_row.lease_id;
  elsif p_fit = 'never' and (case when p_everywhere.stopped_at is null
      then p_everywhere.on_unmatched = 'stop' else p_everywhere.stops_running end) then
    perform hwqueue.ask_to_stop(p_row.node_id, array[p_row.lease_id], null,
      case when p_everywhere.stopped_at is null then 'its node does not suit any more'
        else 'its everywhere task was stopped' end, p_now);
  end if;
  state := 'claimed';
  p_row.tries := 0;
  p_row.reason := v_reason;
  p_row.due_at := case when v_claim.lease_id is null then p_now  -- another session settles or cancels it now
    when v_claim.is_reserved then p_now + case when v_reason is null then hwqueue.everywhere_hold() / 3
      else interval '1 second' end end;
end
$$;
