-- Holding a claim that goes on: for calls that write beside it, or extend it, and must not outlive it.
--
-- api/claims.extend_claim, api/checkpoints and api/children call this module. An example: save_checkpoint
-- holds the claim for key share until it commits. reap skips the claim meanwhile, so that what is saved was
-- saved by the claim that had the lease.
--
-- Invariant: a token that has ended holds nothing: the call is refused with the error that a settlement by
-- this token would get.

-- Holds a claim of the caller's until the transaction ends: for key share, which several sessions may, or,
-- if the row is to be written, for no key update. Waits up to five seconds (or lock_timeout) for a session
-- that holds it.
-- Locks: the claim. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09.
create or replace function hwqueue.hold_claim(p_lease uuid, p_token bigint, p_is_written boolean, p_shard int)
returns void
language plpgsql volatile
as $$
begin
  loop
    if p_is_written then
      perform 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease
        and c.claim_token = p_token and hwqueue.is_own(c.login) for no key update skip locked;
    else
      perform 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease
        and c.claim_token = p_token and hwqueue.is_own(c.login) for key share skip locked;
    end if;
    exit when found;
    perform hwqueue.require_claim(p_lease, p_token, p_shard);
    if not hwqueue.await_claims(array[p_lease], '5s', p_shard) then
      perform hwqueue.refuse_settlement(p_lease, p_token, 'busy', 'claimed', p_shard);
    end if;
  end loop;
end
$$;

-- Refuses a token whose claim does not run, or is another login's.
-- Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08.
create or replace function hwqueue.require_claim(p_lease uuid, p_token bigint, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_running bigint;
  v_is_own boolean;
  v_why record;
begin
  select c.claim_token, hwqueue.is_own(c.login) into v_running, v_is_own
  from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease;
  if v_running is distinct from p_token or not v_is_own then
    select w.verdict, w.state into v_why
    from hwqueue.why_not_settled(p_lease, p_token, v_running, p_shard) w;
    perform hwqueue.refuse_settlement(p_lease, p_token, v_why.verdict, v_why.state, p_shard);
  end if;
end
$$;

-- Holds the claim of a lease that is to add to its step, and returns the lease.
-- Locks: the claim, for no key update. Raises: as hold_claim; QHA02, QHF06 for a lease of no run.
create or replace function hwqueue.hold_step(p_lease uuid, p_token bigint, p_shard int) returns hwqueue.lease
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
begin
  perform hwqueue.require_read_committed(), hwqueue.hold_claim(p_lease, p_token, true, p_shard);
  -- after the claim is held: another session may have added to its step
  select l.* into v_lease from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease;
  if v_lease.run_id is null then
    perform hwqueue.refuse('QHF06', format('lease %s is no step of a run', p_lease),
      jsonb_build_object('lease_id', p_lease), 'spawn leases of their own with spawn_leases');
  end if;
  return v_lease;
end
$$;
