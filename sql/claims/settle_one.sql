-- The heart of complete_lease, fail_lease and release_lease: settles by lease and token, and turns every verdict but ok
-- into its error.
-- It waits up to five seconds (or lock_timeout) for another session that holds the claim.
-- Locks: node_state of the claim's node if something was set aside; the claim; the lease row, if it goes back.
-- Raises: QHL01 lost, QHL02 cancelled, QHL03 finished, QHL04 not found, QHL05 bad token, QHL08 another login's, QHL09 busy, QHA01, QHA02.
-- Idempotent: no.
create or replace function hwqueue.settle_one(p_lease uuid, p_token bigint, p_settlement jsonb, p_shard int) returns text
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_result record;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_settlement(p_settlement, 'settlement');
  perform hwqueue.check_result(p_lease, p_settlement -> 'result', 'result', p_shard);
  perform pg_current_xact_id();  -- before the clock is read: the marks of reap rest on it
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_ender)
  loop
    -- a peek: what is set aside for a running claim may change until its node is held, then it is looked at again
    select c.* into v_claim from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token;
    if v_claim.assignment is not null and hwqueue.is_own(v_claim.login) then
      perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = v_claim.node_id for no key update;
    end if;
    select s.verdict, s.state into v_result
    from hwqueue.settle_claim(p_lease, p_token, p_settlement, v_claim.assignment is not null, hwqueue.clock(), p_shard) s;
    exit when v_result.verdict not in ('counted', 'busy')
      or v_result.verdict = 'busy' and not hwqueue.await_claims(array[p_lease], '5s', p_shard);
  end loop;
  if v_result.verdict <> 'ok' then
    perform hwqueue.refuse_settlement(p_lease, p_token, v_result.verdict, v_result.state, p_shard);
  end if;
  return v_result.state;
end
$$;

-- Locks: none. Raises: the error of the verdict, always. Idempotent: yes.
create or replace function hwqueue.refuse_settlement(p_lease uuid, p_token bigint, p_verdict text, p_state text, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_detail jsonb := jsonb_build_object('lease_id', p_lease, 'claim_token', p_token, 'state', p_state);
  v_login text;
begin
  case p_verdict
    when 'lost' then
      perform hwqueue.refuse('QHL01', format('claim %s of lease %s is lost: the lease is %s', p_token, p_lease, p_state), v_detail,
        'it expired and was handed on, or its node was superseded: drop the result, another claim has the lease or had it');
    when 'cancelled' then
      perform hwqueue.refuse('QHL02', format('lease %s is cancelled', p_lease), v_detail, 'stop working on it; nothing else to do');
    when 'finished' then
      perform hwqueue.refuse('QHL03', format('claim %s of lease %s is settled already: the lease is %s', p_token, p_lease, p_state), v_detail,
        'settle a claim once; an earlier call whose answer was lost may have done it');
    when 'bad_token' then
      perform hwqueue.refuse('QHL05', format('claim %s of lease %s was never granted', coalesce(p_token::text, 'null'), p_lease), v_detail,
        'pass the claim_token that claim_task gave for this lease');
    when 'foreign' then
      v_login := (select c.login from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease);
      perform hwqueue.refuse('QHL08', format('claim %s of lease %s belongs to login %s, this call comes from %s', p_token, p_lease,
        to_json(v_login), to_json(session_user::text)), v_detail || jsonb_build_object('login', v_login, 'given_login', session_user),
        hwqueue.login_hint(v_login));
    when 'busy' then
      perform hwqueue.refuse('QHL09', format('claim %s of lease %s is busy: another session holds it', p_token, p_lease),
        v_detail || jsonb_build_object('sessions', hwqueue.claim_holders(array[p_lease], p_shard)),
        'nothing was settled; call again. A transaction that was left open holds it, an unfinished cancel_lease, say');
    else
      perform hwqueue.refuse('QHL04', format('lease %s does not exist', coalesce(p_lease::text, 'null')), v_detail,
        'check the id; finished leases go once their queue''s retention is over');
  end case;
end
$$;
