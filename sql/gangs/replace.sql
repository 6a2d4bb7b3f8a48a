-- Replacing: a lease takes the place of another one, on its node and in its room.
--
-- Example: B replaces A, which runs on gpu-1 with two GPUs. In one transaction upkeep tries what B would get
-- on gpu-1 if A were gone, books it as an earmark (reserve), and asks A to stop. Once A has ended B's
-- reservation is backed, and gpu-1 fetches it with its next claim. If gpu-1 may not run B, nothing is
-- stopped.
--
-- A lease that waits is not cancelled before the new one is claimed: it is held back (scheduled, held
-- by its place), and the new one waits in its stead. All locks are taken with skip locked.
--
-- Invariant: of the two at most one is where claims find it until the new one runs; with overlaps, until the
-- old one has stopped.
--
-- Read look_at_replacement, then try_replacement.

-- Takes the next step of a replacement. When the place cannot be taken, the next try is later (back_off); at
-- the next tick, when others held what it needs. Once the place is booked (stopping), the earmark is backed
-- when the old lease has gone, and ended when it is asked to stop itself or has stood for earmark_time.
-- False: another session holds it.
-- Locks: the row, skip locked; as try_replacement and finish_replacement; node_state and the claim, skip
-- locked; as end_claim and admit_class.
create or replace function hwqueue.look_at_replacement(p_lease uuid, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_row hwqueue.replacement;
  v_lease hwqueue.lease;
  v_claim hwqueue.claim;
  v_end hwqueue.outcome := hwqueue.lease_end(p_lease);
  v_has_run boolean;
  v_ends boolean;
  v_reason text;
begin
  select r.* into v_row from hwqueue.replacement r where r.lease_id = p_lease for no key update skip locked;
  if not found then
    return false;
  end if;
  select l.* into v_lease from hwqueue.lease l where l.lease_id = p_lease;
  select c.* into v_claim from hwqueue.claim c where c.lease_id = p_lease;
  v_ends := v_row.state = 'stopping' and v_claim.is_reserved and (
    v_claim.stop_reason is not null or v_claim.is_earmark and exists (
      select from hwqueue.queue q
      where q.queue_id = v_claim.queue_id and v_claim.claimed_at + (q.tuning).earmark_time <= p_now
        and (v_row.old_lease is not null or hwqueue.leaving_claims(array[v_claim.node_id]) = '{}'))
    or v_row.old_lease is null and v_claim.is_earmark and (v_lease.deadline <= p_now or not exists (
      select from hwqueue.node n join hwqueue.node_state s on s.node_id = n.node_id  -- another one will do
      where n.node_id = v_claim.node_id and n.cordoned_at is null and hwqueue.is_live(n, s, p_now))));
  v_has_run := v_claim.lease_id is not null and v_claim.is_reserved is null
    or coalesce(v_end.attempt, v_lease.attempt_count, 0) > 0;
  if v_end.state is not null or v_lease.lease_id is null
    or v_row.state in ('held', 'overlapping') and v_has_run then
    perform hwqueue.finish_replacement(v_row, v_has_run, p_now);
  elsif v_row.state = 'preempting' and hwqueue.lease_state(p_lease) <> 'pending'
    or v_row.state = 'stopping' and v_claim.is_reserved is null
    or v_row.state = 'waiting' and not exists (
      select from hwqueue.scheduled s where s.held_by = 'place'
        and (s.queue_id, s.available_at, s.lease_id) = (v_lease.queue_id, 'infinity', p_lease)) then
    delete from hwqueue.replacement r  -- it was fetched, waits in line, or was changed: nothing is left to do
    where r.lease_id = p_lease;
  elsif v_row.state in ('waiting', 'preempting') then
    v_reason := case v_row.state when 'preempting' then hwqueue.try_preemption(v_row, v_lease, p_now)
      else hwqueue.try_replacement(v_row, v_lease, p_now) end;
    update hwqueue.replacement r
    set reason = v_reason, tries = r.tries + 1,
        next_try_at = p_now + case when v_reason in ('busy', 'old_waits', 'unpublished', 'cache_miss')
          then interval '0' else hwqueue.back_off(r.tries) end
    where r.lease_id = p_lease and v_reason is not null;
  elsif v_ends then
    select c.* into v_claim from hwqueue.claim c
    where c.lease_id = p_lease and c.is_reserved and hwqueue.lock_free_node(c.node_id)
    for update skip locked;
    perform hwqueue.end_claim(v_claim, 'released', null, p_now, hwqueue.clock()) where found;
  elsif v_claim.is_earmark and not exists (  -- else its node has to fetch it, or that one to end
      select from hwqueue.claim c where c.lease_id = v_row.old_lease and c.claim_token = v_row.old_token) then
    v_reason := hwqueue.back_earmarks(array[p_lease], coalesce((
        select make_interval(secs => (q.preempt -> 'hold')::double precision)
        from hwqueue.queue q where q.queue_id = v_claim.queue_id), '30 s'), p_now);
    update hwqueue.replacement r set reason = v_reason
    where r.lease_id = p_lease and r.reason is distinct from v_reason;
  end if;
  return true;
end
$$;

-- Tries to take the place of the old lease, or of one of its service. Of one that runs: beside it where it
-- overlaps and there is room for both, else in the room that it leaves, and asks it to stop. One that waits
-- is held back. Returns null when it has, else why not; then nothing is written:
-- busy: others hold what it needs. old_waits: the old lease is to take a place itself, or is being replaced.
-- does_not_suit, insufficient_capacity and reasons of terms: the node may not run the new one.
-- Locks: the entries of both, node_state and the claim, all skip locked; as reserve. Not idempotent.
create or replace function hwqueue.try_replacement(p_row hwqueue.replacement, p_lease hwqueue.lease,
  p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  -- of a service: of those that are older, and that no other one replaces, one that runs, the longest first,
  -- else one that is pending, or that a planner has reserved on a node; it reads all claims
  v_old uuid := coalesce(p_row.old_lease, (
    select o.lease_id
    from (
      select c.lease_id, (c.is_reserved is not null)::int as turn, c.claimed_at as since
      from hwqueue.placement_class k
      join hwqueue.claim c on c.class_id = k.class_id
      where k.service_id = p_row.service_id and c.stop_requested_at is null
      union all
      select r.lease_id, 1, r.eligible_at
      from hwqueue.placement_class k
      join hwqueue.ready r on r.class_id = k.class_id
      where k.service_id = p_row.service_id) o
    join hwqueue.lease l on l.lease_id = o.lease_id
    join hwqueue.placement_class k on k.class_id = l.class_id
    join hwqueue.placement_class own on own.class_id = p_lease.class_id
    where l.created_at < p_lease.created_at and l.team_id is null
      and l.run_id is null and k.tenant = own.tenant
      and not exists (select from hwqueue.replacement x where x.old_lease = o.lease_id)
      and not exists (select from hwqueue.replacement x where x.lease_id = o.lease_id)
    order by o.turn, o.since, o.lease_id limit 1));
  v_state text := hwqueue.lease_state(v_old);
  v_entry hwqueue.scheduled;
  v_old_entry hwqueue.scheduled;
  v_claim hwqueue.claim;
  v_is_beside boolean := false;
  v_reason text;
begin
  if exists (
    select from hwqueue.replacement r
    where r.lease_id <> p_row.lease_id
      and (r.lease_id = v_old or r.old_lease = v_old and r.state <> 'waiting')) then
    return 'old_waits';
  end if;
  select s.* into v_entry from hwqueue.scheduled s
  where (s.queue_id, s.available_at, s.lease_id) = (p_lease.queue_id, 'infinity', p_row.lease_id)
    and s.held_by = 'place' for update skip locked;
  if not found then
    return 'busy';
  elsif v_state = 'claimed' then
    select c.* into v_claim from hwqueue.claim c
    where c.lease_id = v_old and c.is_reserved is null and hwqueue.lock_free_node(c.node_id)
    for update skip locked;
    if not found then
      return 'busy';
    elsif p_row.is_overlapping then
      v_is_beside := hwqueue.reserve(v_entry, v_claim.node_id, '30 seconds', false, null, p_now) is null;
    end if;
    if not v_is_beside then
      v_reason := hwqueue.reserve(v_entry, v_claim.node_id, null, true, v_old || array(  -- that stop, too
          select c.lease_id from hwqueue.claim c
          join hwqueue.replacement r on r.old_lease = c.lease_id and r.old_token = c.claim_token
          where c.node_id = v_claim.node_id and r.state = 'stopping'), p_now);
      if v_reason is not null then
        return v_reason;
      end if;
      perform hwqueue.stop_replaced(p_row, v_claim, p_now);
    end if;
    update hwqueue.replacement r
    set state = case when v_is_beside then 'overlapping' else 'stopping' end, old_lease = v_old,
        old_token = v_claim.claim_token, reason = null
    where r.lease_id = p_row.lease_id;
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = v_entry.queue_id and v_is_beside;
    return null;
  elsif v_state in ('pending', 'scheduled') then
    v_old_entry := (select e from hwqueue.take_free_entries(array[v_old]) e);
    if v_old_entry.lease_id is null then
      return 'busy';
    end if;
    perform hwqueue.put_back(v_old, v_old_entry.attempt_count, v_old_entry.claim_count, 'infinity', p_now,
      p_held_by => 'place');
    perform hwqueue.note_leases('lease_updated', array[v_old],
      format('held back: lease %s takes its place once it is claimed', p_row.lease_id),
      jsonb_build_object('lease_id', p_row.lease_id));
    update hwqueue.replacement r
    set state = 'held', old_lease = v_old, reason = null, old_at = case v_old_entry.held_by
          when 'limit' then p_now else v_old_entry.available_at end
    where r.lease_id = p_row.lease_id;
  else  -- it has ended, or the service has none
    delete from hwqueue.replacement r where r.lease_id = p_row.lease_id;
  end if;
  delete from hwqueue.scheduled s
  where s.queue_id = v_entry.queue_id and s.available_at = v_entry.available_at
    and s.lease_id = v_entry.lease_id;
  perform hwqueue.put_back(p_row.lease_id, v_entry.attempt_count, v_entry.claim_count, p_now, p_now);
  return null;
end
$$;

-- Asks the claim of the old lease to stop: as a cancellation, or, when it is to run again, as a drain would.
-- Locks: the caller holds node_state and the claim. Notifies: the node's worker.
create or replace function hwqueue.stop_replaced(p_row hwqueue.replacement, p_claim hwqueue.claim,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_why text := format('lease %s takes its place', p_row.lease_id);
begin
  if p_row.old_goes = 'requeue' then
    perform hwqueue.ask_to_stop(p_claim.node_id, array[p_claim.lease_id], null, v_why, p_now);
  elsif p_claim.stop_reason is distinct from 'cancelled' then
    perform hwqueue.cancel_claims(array[p_claim.lease_id], v_why, v_why,
      jsonb_build_object('reason', 'replaced', 'lease_id', p_row.lease_id), p_claim.node_id);
  end if;
end
$$;

-- Ends a replacement whose new lease has run (p_has_run) or has ended. An old lease that was held back is
-- cancelled, or waits again as it did; one that overlaps is asked to stop. What others hold is left to a
-- later tick.
-- Locks: the caller holds the row; the entry, or node_state and the claim, skip locked. Not idempotent.
create or replace function hwqueue.finish_replacement(p_row hwqueue.replacement, p_has_run boolean,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_entry hwqueue.scheduled;
  v_claim hwqueue.claim;
  v_why jsonb;
begin
  if p_row.state = 'held' then
    if exists (
        select from hwqueue.lease l
        join hwqueue.scheduled s
          on (s.queue_id, s.available_at, s.lease_id) = (l.queue_id, 'infinity', l.lease_id)
        where l.lease_id = p_row.old_lease and s.held_by = 'place') then
      if p_has_run and p_row.old_goes = 'cancel' then
        v_why := jsonb_build_object('reason', 'replaced', 'lease_id', p_row.lease_id, 'detail',
          format('lease %s has taken its place', p_row.lease_id));
        if hwqueue.cancel_waiting(array[p_row.old_lease], v_why, 'cancelled: ' || (v_why ->> 'detail'),
            v_why - 'detail') = '{}' then
          return;
        end if;
      else
        v_entry := (select e from hwqueue.take_free_entries(array[p_row.old_lease]) e);
        if v_entry.lease_id is null then
          return;
        end if;
        perform hwqueue.put_back(p_row.old_lease, v_entry.attempt_count, v_entry.claim_count,
          case when exists (  -- what it was suspended for has come meanwhile
            select from hwqueue.lease l
            join hwqueue.checkpoint w using (lease_id, claim_token)
            join hwqueue.lease_signal s on s.lease_id = l.lease_id and s.name = w.signal
            where l.lease_id = p_row.old_lease and w.is_open and s.taken_as is null)
            then p_now else greatest(p_row.old_at, p_now) end, p_now,
          case when v_entry.deadline is null and p_row.old_at <= p_now then p_row.old_at end);
      end if;
    end if;
  elsif p_row.state = 'overlapping' and p_has_run then
    select c.* into v_claim from hwqueue.claim c
    where c.lease_id = p_row.old_lease and c.claim_token = p_row.old_token
      and hwqueue.lock_free_node(c.node_id) for update skip locked;
    if found then
      perform hwqueue.stop_replaced(p_row, v_claim, p_now);
    elsif exists (
        select from hwqueue.claim c
        where c.lease_id = p_row.old_lease and c.claim_token = p_row.old_token) then
      return;
    end if;
  end if;
  delete from hwqueue.replacement r where r.lease_id = p_row.lease_id;
end
$$;
