-- One node of an everywhere task: starting its lease there, reserving its room, and what follows its end.
--
-- Example: gpu-7 registers for the first time. The everywhere task "agent" suits it, so its first claim
-- writes a lease and its reservation, before it is granted anything else.
--
-- Invariant: only a session that holds node_state writes the node's rows of everywhere_node. Their key is the
-- task and the node, so a node never has two open leases of one everywhere task. look_at_node compares what
-- should be with what is, whatever has happened before: a call too many changes nothing.
--
-- Read look_at_node, start_on_node, try_on_node, then look_at_claim.

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
  v_retry_at timestamptz;
  v_due_at timestamptz;
  v_state text;
  v_why jsonb;
  v_is_cancelled boolean;
  v_has_next boolean;
  v_end hwqueue.outcome;
begin
  select r.* into v_row from hwqueue.everywhere_node r
  where r.everywhere_id = p_everywhere.everywhere_id and r.node_id = p_node;
  if not found then
    if v_fit = 'now' then
      perform hwqueue.start_on_node(p_everywhere, p_node, 0, p_now);
    end if;
    return;
  end if;
  with gone as (
    delete from hwqueue.team_change c where c.team_id = v_row.lease_id returning c.retry_at
  )
  select max(g.retry_at) into v_retry_at from gone g;
  v_state := hwqueue.lease_state(v_row.lease_id);
  if v_state = 'claimed' then
    v_state := hwqueue.look_at_claim(p_everywhere, v_row, v_fit, p_now);
  end if;
  if v_state in ('scheduled', 'pending') then
    v_due_at := coalesce(v_retry_at, v_row.due_at);
    if v_fit = 'never' then  -- it is cancelled; of one that was stopped the row stays, and tells how it ended
      v_why := jsonb_build_object('reason', case when p_everywhere.stopped_at is null then 'node_unmatched'
        else 'everywhere_stopped' end, 'everywhere_id', v_row.everywhere_id, 'node_id', p_node);
      v_is_cancelled := hwqueue.cancel_waiting(array[v_row.lease_id], v_why,
        'cancelled: it is to run on no node any more', v_why) <> '{}';
      delete from hwqueue.team_change c where c.team_id = v_row.lease_id and v_is_cancelled;
      delete from hwqueue.everywhere_node r
      where r.everywhere_id = v_row.everywhere_id and r.node_id = p_node
        and v_is_cancelled and p_everywhere.stopped_at is null;
      update hwqueue.everywhere_node r  -- others hold its entry: it is due again at once
      set due_at = case when not v_is_cancelled then p_now end,
          reason = case when not v_is_cancelled then r.reason end,
          ended_as = case when v_is_cancelled then 'cancelled' else r.ended_as end
      where r.everywhere_id = v_row.everywhere_id and r.node_id = p_node;
    elsif v_due_at > p_now or v_fit = 'later' then
      update hwqueue.everywhere_node r
      set due_at = case when v_due_at > p_now then v_due_at end, ended_as = null,
          reason = case when v_fit = 'later' then 'node_unavailable'
            when v_retry_at is null then r.reason end
      where r.everywhere_id = v_row.everywhere_id and r.node_id = p_node;
    else
      perform hwqueue.try_on_node(p_everywhere, v_row, p_now);
    end if;
  elsif v_state is distinct from 'claimed' then
    if v_row.ended_as is null then
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
    if p_everywhere.stopped_at is null and v_fit = 'never' and (p_everywhere.mode = 'always' or not exists (
        select from hwqueue.node n where n.node_id = p_node)) then
      delete from hwqueue.everywhere_node r
      where r.everywhere_id = v_row.everywhere_id and r.node_id = p_node;
    elsif v_has_next and coalesce(v_row.due_at, p_now) <= p_now then
      perform hwqueue.start_on_node(p_everywhere, p_node, v_row.failures, p_now);
    else
      update hwqueue.everywhere_node r
      set ended_as = v_row.ended_as, failures = v_row.failures, tries = 0, reason = null,
          due_at = case when v_has_next then v_row.due_at end
      where r.everywhere_id = v_row.everywhere_id and r.node_id = p_node;
    end if;
  end if;
end
$$;

-- Writes the next lease of an everywhere task on a node, after p_failures in a row, and tries to reserve its
-- room.
-- Locks: the caller holds node_state; as try_on_node. Not idempotent.
create or replace function hwqueue.start_on_node(p_everywhere hwqueue.everywhere, p_node uuid,
  p_failures int, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_queue hwqueue.queue;
  v_spawn hwqueue.spawn_request;
  v_row hwqueue.everywhere_node;
begin
  select q.* into v_queue from hwqueue.queue q where q.queue_id = p_everywhere.queue_id;
  -- sizes and limits were checked when it was defined: a policy that changed since stops no claim
  v_spawn := hwqueue.read_spawn(1, hwqueue.new_id(), p_everywhere.class_id, p_everywhere.task_name,
    p_everywhere.params, p_everywhere.options, null, p_now);
  v_spawn.team_id := v_spawn.lease_id;
  v_spawn.available_at := 'infinity';
  perform hwqueue.write_spawns(array[v_spawn], v_queue, p_now);
  insert into hwqueue.everywhere_node as r (everywhere_id, node_id, lease_id, failures)
  values (p_everywhere.everywhere_id, p_node, v_spawn.lease_id, p_failures)
  on conflict (everywhere_id, node_id) do update
  set lease_id = excluded.lease_id, due_at = null, tries = 0, starts = r.starts + 1, reason = null,
      ended_as = null, failures = p_failures
  returning r.* into v_row;
  perform hwqueue.try_on_node(p_everywhere, v_row, p_now);
end
$$;

-- Tries to reserve the room of a waiting lease on its node. Without room, or while leases wait that come
-- before it, it is earmarked, unless other everywhere tasks leave it no room: what becomes free there goes to
-- nobody that comes after it. A node that has just registered asks nobody who comes before. Else the next try
-- is after 1, 2, 4, 8, then 15 seconds; at the next tick when others held what it needs. A reservation lasts
-- for a minute and is extended while the node lives.
-- Locks: the caller holds node_state; the entry, skip locked; as reserve. Wakes: waiting workers.
create or replace function hwqueue.try_on_node(p_everywhere hwqueue.everywhere,
  p_row hwqueue.everywhere_node, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_entry hwqueue.scheduled;
  v_reason text := 'busy';
  v_is_earmarked boolean := false;
  v_is_soon boolean;
begin
  select s.* into v_entry from hwqueue.scheduled s
  where (s.queue_id, s.available_at, s.lease_id) = (p_everywhere.queue_id, 'infinity', p_row.lease_id)
  for update skip locked;
  if found then
    v_reason := case when not exists (
        select from hwqueue.node_state s where s.node_id = p_row.node_id and s.expands_until > p_now)
        and hwqueue.earlier_waits(p_row.lease_id, p_row.node_id, p_now) then 'earlier_waits'
      else hwqueue.reserve(v_entry, p_row.node_id, hwqueue.everywhere_hold(), false, null, p_now) end;
    if v_reason in ('insufficient_capacity', 'earlier_waits') and not exists (
        select from hwqueue.everywhere_node r
        where r.everywhere_id = p_row.everywhere_id and r.node_id = p_row.node_id
          and r.earmark_after > p_now) then
      v_is_earmarked := hwqueue.reserve(v_entry, p_row.node_id, null, true, null, p_now) is null;
    end if;
  end if;
  v_is_soon := v_reason in ('busy', 'unpublished', 'cache_miss');
  update hwqueue.everywhere_node r
  set reason = v_reason, ended_as = null,
      tries = case when v_reason is null then 0 else r.tries + (not v_is_soon)::int end,
      due_at = p_now + case when v_reason is null then hwqueue.everywhere_hold() / 3
        when v_is_soon then interval '0'
        when v_is_earmarked then interval '1 second'
        else hwqueue.back_off(r.tries) end
  where r.everywhere_id = p_row.everywhere_id and r.node_id = p_row.node_id;
  if v_reason is null then
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = p_everywhere.queue_id;
  end if;
end
$$;

-- How long a reservation of an everywhere task lasts unless it is extended.
create or replace function hwqueue.everywhere_hold() returns interval
language sql immutable parallel safe
as $$ select interval '1 minute' $$;

-- What follows for a claimed lease: an earmark is backed once its node has room, a reservation is extended.
-- Both end if the node may not fetch them, and an earmark ends when it stands for too long (the policy
-- earmark_time): for as long there is none again. A lease that runs is asked to stop where it may not go on.
-- Returns the state of the lease.
-- Locks: the caller holds node_state; the claim, skip locked; as back_earmarks and end_claim.
create or replace function hwqueue.look_at_claim(p_everywhere hwqueue.everywhere,
  p_row hwqueue.everywhere_node, p_fit text, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_due_at timestamptz;
  v_reason text;
  v_most interval := (
    select (q.tuning).earmark_time from hwqueue.queue q where q.queue_id = p_everywhere.queue_id);
begin
  select c.* into v_claim from hwqueue.claim c where c.lease_id = p_row.lease_id for update skip locked;
  if not found then  -- another session settles or cancels it now
    v_due_at := p_now;
  elsif v_claim.is_reserved and (p_fit <> 'now' or v_claim.stop_requested_at <= p_now) then
    return hwqueue.end_claim(v_claim, 'released', null, p_now, hwqueue.clock());
  elsif v_claim.is_reserved then
    if v_claim.is_earmark then
      v_reason := hwqueue.back_earmarks(array[p_row.lease_id], hwqueue.everywhere_hold(), p_now);
      if v_reason = 'insufficient_capacity' and v_claim.claimed_at + v_most <= p_now then
        update hwqueue.everywhere_node r set earmark_after = p_now + v_most
        where r.everywhere_id = p_row.everywhere_id and r.node_id = p_row.node_id;
        return hwqueue.end_claim(v_claim, 'released', null, p_now, hwqueue.clock());
      end if;
    else
      update hwqueue.claim c set expires_at = p_now + hwqueue.everywhere_hold()
      where c.lease_id = p_row.lease_id;
    end if;
    v_due_at := p_now + case when v_reason is null then hwqueue.everywhere_hold() / 3
      else interval '1 second' end;
  elsif p_fit = 'never' and (case when p_everywhere.stopped_at is null
      then p_everywhere.on_unmatched = 'stop' else p_everywhere.stops_running end) then
    perform hwqueue.ask_to_stop(p_row.node_id, array[p_row.lease_id], null,
      case when p_everywhere.stopped_at is null then 'its node does not suit any more'
        else 'its everywhere task was stopped' end, p_now);
  end if;
  update hwqueue.everywhere_node r set due_at = v_due_at, reason = v_reason, tries = 0
  where r.everywhere_id = p_row.everywhere_id and r.node_id = p_row.node_id;
  return 'claimed';
end
$$;
