-- Claims that go on: heartbeats, and holding a claim while a call writes beside it.
--
-- heartbeat_node itself is in api/claims. Calls that write beside a claim, or extend it, must not outlive
-- it: api/claims.extend_claim, api/checkpoints and api/children hold it. An example: save_checkpoint holds
-- the claim for key share until it commits. reap skips the claim meanwhile, so that what is saved was saved
-- by the claim that had the lease.
--
-- Invariants: a heartbeat waits for no lock. A token that has ended holds nothing: the call is refused with
-- the error that a settlement by this token would get.

-- Refuses a node that is not registered, not the caller's or not at this epoch. A node that is all that,
-- but that another session holds, passes.
-- Raises QHN01, QHN03, QHN04.
create or replace function hwqueue.check_epoch(p_node uuid, p_epoch bigint) returns void
language plpgsql volatile
as $$
declare
  v_epoch bigint;
  v_login text;
begin
  select s.node_epoch, s.login into v_epoch, v_login from hwqueue.node_state s where s.node_id = p_node;
  perform hwqueue.check_login(p_node, v_login);
  if (v_epoch = p_epoch) is not true then
    perform hwqueue.refuse_epoch(p_node, v_epoch, coalesce(p_epoch, 0));
  end if;
  perform hwqueue.read_node(p_node);
end
$$;

-- Returns what a worker is told of a claim that is to stop: cancelled, or preempted for every other reason.
-- So workers of all languages know what to do, whatever reasons there will be.
create or replace function hwqueue.stop_verdict(p_reason text) returns text
language sql immutable parallel safe
as $$ select case when p_reason = 'cancelled' then 'cancelled' else 'preempted' end $$;

-- Holds a claim of the caller's until the transaction ends: for key share, which several sessions may, or,
-- if the row is to be written, for no key update. Waits up to five seconds (or lock_timeout) for a session
-- that holds it.
-- Locks: the claim. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09.
create or replace function hwqueue.hold_claim(p_lease uuid, p_token bigint, p_is_written boolean) returns void
language plpgsql volatile
as $$
begin
  loop
    if p_is_written then
      perform 1 from hwqueue.claim c where c.lease_id = p_lease
        and c.claim_token = p_token and hwqueue.is_own_claim(c.login, c.node_id)
          for no key update skip locked;
    else
      perform 1 from hwqueue.claim c where c.lease_id = p_lease
        and c.claim_token = p_token and hwqueue.is_own_claim(c.login, c.node_id)
          for key share skip locked;
    end if;
    exit when found;
    perform hwqueue.require_claim(p_lease, p_token);
    if not hwqueue.await_claims(array[p_lease], '5s') then
      perform hwqueue.refuse_settlement(p_lease, p_token, 'busy', 'claimed');
    end if;
  end loop;
end
$$;

-- Refuses a token whose claim does not run, or is another login's.
-- Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08.
create or replace function hwqueue.require_claim(p_lease uuid, p_token bigint) returns void
language plpgsql volatile
as $$
declare
  v_why record := hwqueue.why_not_settled(p_lease, p_token, null);
begin
  if v_why.verdict <> 'busy' then
    perform hwqueue.refuse_settlement(p_lease, p_token, v_why.verdict, v_why.state);
  end if;
end
$$;

-- Holds the claim of a lease that is to add to its step, and returns the lease.
-- Locks: the claim, for no key update. Raises: as hold_claim; QHA02, QHF06 for a lease of no run, QHF02 for a
-- member of a gang.
create or replace function hwqueue.hold_step(p_lease uuid, p_token bigint) returns hwqueue.lease
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
begin
  perform hwqueue.require_read_committed(), hwqueue.hold_claim(p_lease, p_token, true);
  -- after the claim is held: another session may have added to its step
  select l.* into v_lease from hwqueue.lease l where l.lease_id = p_lease;
  if v_lease.run_id is null then
    perform hwqueue.refuse('QHF06', format('lease %s is no step of a run', p_lease),
      jsonb_build_object('lease_id', p_lease), 'spawn leases of their own with spawn_leases');
  elsif v_lease.team_id is not null then
    perform hwqueue.refuse('QHF02', format('lease %s is a member of a gang step, to which nothing is added',
        p_lease), jsonb_build_object('lease_id', p_lease, 'gang_id', v_lease.team_id),
      'return what is to be done, and let a map behind the gang step do it');
  end if;
  return v_lease;
end
$$;
