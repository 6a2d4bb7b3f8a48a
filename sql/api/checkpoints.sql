-- Public: durable steps of handlers, and signals.
--
-- Workers save checkpoints and suspend leases for their handlers, producers and operators send signals. An
-- example: the handler of an order charges the card once (save_checkpoint), then waits for "packed"
-- (take_signal finds none, suspend_lease ends the claim). The warehouse calls signal_lease, the lease is
-- claimed again, and its handler goes on behind the charge (checkpoints).
--
-- Invariant: what a claim saves is saved while it holds the lease. claim/checkpoint says why no signal is
-- lost.

-- Keeps what a claim has done so far under a name of 1 to 200 characters, over what that name had, and
-- returns when the claim ends. p_state has the size that the queue allows for params; a lease has at most
-- 10000 names. p_extend: the claim ends that long from now at the earliest, from one second to 30 days; a
-- cancelled claim is extended to its claim timeout from now at most.
-- In the caller's transaction it commits with what the caller has done there. It waits up to five seconds
-- (or lock_timeout) for another session that holds the claim.
-- Locks: the claim, for key share; the checkpoint. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09,
-- QHA01, QHA02. Idempotent.
create or replace function hwqueue.save_checkpoint(p_lease uuid, p_token bigint, p_name text,
  p_state jsonb default 'null', p_extend interval default null) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_step_name(p_name, 'p_name'),
    hwqueue.check_kept(p_lease, p_state, 'p_state', false);
  if p_extend is not null then
    p_extend := hwqueue.checked_extend(p_extend);
  end if;
  perform hwqueue.hold_claim(p_lease, p_token, p_extend is not null);
  v_now := hwqueue.clock();
  perform hwqueue.write_checkpoint(row(p_lease, p_name, p_token, v_now, false,
    coalesce(p_state, 'null'), null, null, null)::hwqueue.checkpoint);
  if p_extend is not null then
    update hwqueue.claim c set expires_at = greatest(c.expires_at, v_now + case
        when c.stop_reason = 'cancelled' then least(p_extend, c.claim_timeout) else p_extend end)
    where c.lease_id = p_lease;
  end if;
  return (select c.expires_at from hwqueue.claim c where c.lease_id = p_lease);
end
$$;

-- Returns what earlier claims of a lease have saved, and this one. status: done, open (a wait that goes on),
-- or timed_out. state: the result of a step, or the payload of a signal. waits_for: the signal of a wait;
-- waits_until: when it ends at the latest.
-- Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08.
create or replace function hwqueue.checkpoints(p_lease uuid, p_token bigint)
returns table (name text, status text, state jsonb, saved_at timestamptz, waits_for text,
  waits_until timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_claim(p_lease, p_token);
  return query
    select c.name, case when c.signal is not null and c.state is null and not c.is_open then 'timed_out'
             when c.is_open and (c.signal is not null or c.waits_until > v_now) then 'open' else 'done' end,
           c.state, c.saved_at, c.signal, c.waits_until
    from hwqueue.checkpoint c
    where c.lease_id = p_lease order by c.name;
end
$$;

-- Takes the oldest signal of a name that was sent to the lease and that no wait has taken, and keeps its
-- payload as checkpoint p_name (null: the signal's name). verdict: taken; timed_out, if suspend_lease opened
-- the wait and its time is over; or none. Called again with the same p_name it returns the same.
-- Locks and raises as save_checkpoint; also the signal. Idempotent.
create or replace function hwqueue.take_signal(p_lease uuid, p_token bigint, p_signal text,
  p_name text default null)
returns table (verdict text, payload jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  perform hwqueue.require_read_committed(), hwqueue.check_step_name(p_signal, 'p_signal'),
    hwqueue.check_step_name(coalesce(p_name, p_signal), 'p_name'),
    hwqueue.hold_claim(p_lease, p_token, false);
  return query
    select t.verdict, t.payload
    from hwqueue.take_next_signal(p_lease, p_token, p_signal, coalesce(p_name, p_signal)) t;
end
$$;

-- Ends a claim until p_until, or until the lease is sent the signal p_signal: then p_until is the timeout,
-- null: none. No attempt is used up. The lease is scheduled meanwhile, or pending if the signal is there
-- already; its next claim goes on where the handler waits. Returns the new state. The wait is kept as
-- checkpoint p_name (null: the signal's name, or sleep); one that is open under this name already keeps its
-- time. p_near self: the lease prefers the node of this claim for the next one, and waits for it as long as
-- its patience says.
-- Locks and raises as fail_lease. Not idempotent.
create or replace function hwqueue.suspend_lease(p_lease uuid, p_token bigint,
  p_until timestamptz default null, p_signal text default null, p_name text default null,
  p_near text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC'
as $$ begin return
  hwqueue.settle_one(p_lease, p_token, jsonb_build_object('outcome', 'suspend',
    'signal', p_signal, 'name', p_name, 'near', p_near, 'available_at', p_until));
end $$;

-- Sends an open lease a signal. It is kept until a wait of the lease's handler takes it. A lease that is
-- suspended until this signal becomes pending at once. p_payload has the size that the queue allows for
-- params. p_key: the same name and key reach a lease once; created is false for the second. state is the
-- state of the lease. A lease may be sent at most 10000 signals.
-- In an open transaction it holds the lease: nobody can claim or settle that until the transaction ends.
-- Locks: the entry or the claim; the lease row, if it becomes pending. Raises: QHL03 finished, QHL04, QHA01,
-- QHA02. Idempotent: with a p_key. Wakes: waiting workers.
create or replace function hwqueue.signal_lease(p_lease uuid, p_name text, p_payload jsonb default 'null',
  p_key text default null)
returns table (created boolean, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_entry hwqueue.scheduled;
  v_lease hwqueue.lease;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate'),
    hwqueue.check_step_name(p_name, 'p_name'), hwqueue.json_text(to_jsonb(p_key), 'p_key', 255),
    hwqueue.find_lease(p_lease),
    hwqueue.check_kept(p_lease, p_payload, 'p_payload', false);
  state := hwqueue.hold_state(p_lease);
  if state not in ('scheduled', 'pending', 'claimed') then
    if not exists (
      select from hwqueue.lease_signal s
      where s.lease_id = p_lease and s.name = p_name and s.key = p_key) then
      perform hwqueue.refuse('QHL03', format('lease %s is %s already', p_lease, state),
        jsonb_build_object('lease_id', p_lease, 'state', state), 'a finished lease takes no signals');
    end if;
    created := false;
    return next;
    return;
  end if;
  v_now := hwqueue.clock();
  created := hwqueue.store_signal(p_lease, p_name, p_key, coalesce(p_payload, 'null'), v_now);
  v_lease := hwqueue.find_lease(p_lease);
  if created and state = 'scheduled' and (hwqueue.suspension_of(v_lease)).signal = p_name
    and not exists (  -- it goes on already, as its limits let it
      select from hwqueue.scheduled s
      where (s.queue_id, s.available_at, s.lease_id) = (v_lease.queue_id, v_lease.available_at, p_lease)
        and (s.held_by = 'limit' or v_lease.lanes_passed > 0)) then
    v_entry := (select e from hwqueue.take_free_entries(array[p_lease]) e);
    state := hwqueue.put_back(p_lease, v_entry.attempt_count, v_entry.claim_count,
      -- one whose place is taken stays (finish_replacement)
      case v_entry.held_by when 'place' then 'infinity' else v_now end, v_now,
      p_held_by => case v_entry.held_by when 'place' then v_entry.held_by end);
  end if;
  return next;
end
$$;

-- Returns what the handler of a lease has saved, the last first, p_limit rows of it (1 to 10000). bytes: as
-- stored; waits_for and waits_until are of waits. is_open: the wait goes on. is_suspended: the lease is
-- scheduled because of it.
-- Raises: QHL04, QHA01.
create or replace function hwqueue.lease_checkpoints(p_lease uuid, p_limit int default 100)
returns table (lease_id uuid, name text, saved_at timestamptz, bytes int, waits_for text,
  waits_until timestamptz, is_open boolean, is_suspended boolean)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'the last ones come first');
  select c.lease_id, c.name, c.saved_at, coalesce(pg_column_size(c.state), 0), c.signal, c.waits_until,
    c.is_open, coalesce(c.name = w.name, false)
  from hwqueue.find_lease(p_lease) l
  cross join lateral (
    select case when hwqueue.lease_state(l.lease_id) = 'scheduled' then (hwqueue.suspension_of(l)).name end
      as name offset 0) w  -- a fence: once, not for each row
  join hwqueue.checkpoint c on c.lease_id = l.lease_id
  order by c.saved_at desc, c.name limit p_limit
$$;
