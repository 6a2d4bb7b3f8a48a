-- Single leases that a planner assigns to nodes: each is reserved on one node for a few seconds.
--
-- Example: lease A asked first and would like gpu-1, or else any node. Lease B would lose more than A on
-- another node. The planner (api/planner) assigns B to gpu-1 and A to cpu-1; each of the two nodes fetches
-- its lease with its next claim (claim/reserved).
--
-- A reservation that its node does not fetch ends as any claim does that expires: the lease goes back to
-- where it was in line (put_back_in_line). Nothing else tells it from that of a lease that takes the place of
-- another one, but that its lease was pending before (is_assigned).
--
-- Invariant: a lease leaves `ready` only in a transaction that reserves it, and waits for no lock.
--
-- Read try_assignment, then assignment_state.

-- Reserves a pending lease on a node. Returns `reserved`; or, with nothing changed:
-- taken: it is not pending any more, past its deadline, or an alternative of a choice.
-- does_not_suit: the node may not run it, is not live, or its worker does not serve its queue and task.
-- no_room: the node has no room for it now.
-- blocked: a requirement about other leases does not hold, or its queue is paused.
-- busy: another session holds what it needs.
-- Locks: node_state, the entry, lock stripes and counters, all skip locked. Wakes: waiting workers.
create or replace function hwqueue.try_assignment(p_lease uuid, p_node uuid, p_hold interval,
  p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_queue hwqueue.queue;
  v_entry hwqueue.scheduled;
  v_reason text;
begin
  select l.* into v_lease from hwqueue.lease l where l.lease_id = p_lease;
  if v_lease.choice_id is not null or hwqueue.lease_state(p_lease) = 'pending' is not true then
    return 'taken';
  end if;
  select q.* into v_queue from hwqueue.queue q
  where q.queue_id = v_lease.queue_id;
  if v_queue.paused_at is not null or v_queue.dropped_at is not null then
    return 'blocked';
  elsif not exists (
      select from hwqueue.node n
      where n.node_id = p_node and n.deregistered_at is null
        and hwqueue.unserved_part(n.queues, n.tasks, v_queue.name, v_lease.task_name) is null) then
    return 'does_not_suit';
  end if;
  if not hwqueue.lock_free_node(p_node) then
    return 'busy';
  end if;
  begin
    v_entry := hwqueue.take_free_entry(p_lease);
    v_reason := case
      when v_entry.lease_id is null or v_entry.class_id <> v_lease.class_id then 'busy'  -- or it was changed
      when v_entry.available_at > p_now or v_entry.deadline <= p_now then 'taken'
      else hwqueue.reserve(v_entry, p_node, p_hold, false, null, p_now) end;
    if v_reason is not null then
      perform hwqueue.abort_subtransaction();
    end if;
  exception when sqlstate 'HWX01' then  -- the entry is there again, and its lock is released
  end;
  if v_reason is null then
    perform hwqueue.wake_workers(v_queue);
  end if;
  return case when v_reason is null then 'reserved'
    when v_reason = 'insufficient_capacity' then 'no_room'
    when v_reason in ('taken', 'busy', 'does_not_suit') then v_reason
    when v_reason in ('unpublished', 'cache_miss') then 'busy'
    else 'blocked' end;
end
$$;

-- Returns what has become of a lease that was reserved on a node:
-- reserved: the node has yet to fetch it.
-- fetched: it runs there, or has run there.
-- expired: it is pending again, because the node did not fetch it in time, or may not run it any more.
-- gone: it was cancelled, changed, or taken elsewhere since.
create or replace function hwqueue.assignment_state(p_lease uuid, p_node uuid) returns text
language sql stable
as $$
  select case
    when c.node_id = p_node then case when c.is_reserved then 'reserved' else 'fetched' end
    when c.lease_id is not null then 'gone'
    when o.lease_id is not null
      then case when o.node_id = p_node and o.state <> 'cancelled' then 'fetched' else 'gone' end
    when l.node_id = p_node and a.outcome <> 'released' then 'fetched'
    when hwqueue.lease_state(p_lease) = 'pending' then 'expired'
    else 'gone' end
  from (select p_lease as lease_id) i
  left join hwqueue.claim c on c.lease_id = i.lease_id
  left join hwqueue.outcome o on o.lease_id = i.lease_id
  left join hwqueue.lease l on l.lease_id = i.lease_id
  -- the claim that it had last
  left join hwqueue.attempt a on a.lease_id = i.lease_id and a.claim_token = l.claim_token
$$;
