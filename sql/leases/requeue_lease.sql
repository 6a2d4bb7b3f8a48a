-- Gives a failed or cancelled lease a fresh set of attempts, at once. Its past attempts stay on record, its tokens go on rising.
-- Locks: its outcome, which it deletes; the lease row. Raises: QHL03 completed, QHL04, QHL07 still waiting or running, QHA02. Idempotent: no.
-- Wakes: waiting workers. Gives the state.
create or replace function hwqueue.requeue_lease(p_lease uuid, p_shard int default 0) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_end hwqueue.outcome;
  v_state text;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed();
  if hwqueue.my_tenants() is not null then
    perform hwqueue.find_lease(p_lease, p_shard);  -- another's is not waited for
  end if;
  loop
    delete from hwqueue.outcome o
    where o.shard_id = p_shard and o.lease_id = p_lease and o.state in ('failed', 'cancelled')
    returning o.* into v_end;
    exit when found;
    perform hwqueue.find_lease(p_lease, p_shard);
    v_state := hwqueue.lease_state(p_lease, p_shard);
    continue when v_state in ('failed', 'cancelled');  -- again: somebody requeued it while this call waited
    perform hwqueue.refuse(case when v_state = 'completed' then 'QHL03' else 'QHL07' end, format('lease %s is %s', p_lease, v_state),
      jsonb_build_object('lease_id', p_lease, 'state', v_state), 'only failed and cancelled leases can be requeued');
  end loop;
  v_now := hwqueue.clock();
  -- it finished all the same, and may not have been counted yet
  insert into hwqueue.requeued (shard_id, queue_id, state, finished_at, lease_id)
  values (p_shard, v_end.queue_id, v_end.state, v_end.finished_at, p_lease);
  -- a deadline that has passed would fail it again before anyone could claim it
  update hwqueue.lease l
  set claim_token = v_end.claim_token, node_id = v_end.node_id, claimed_at = v_end.claimed_at,
      deadline = case when l.deadline > v_now then l.deadline end
  where l.shard_id = p_shard and l.lease_id = p_lease;
  perform hwqueue.note_leases('lease_requeued', array[p_lease], format('requeued, it was %s', v_end.state), p_shard,
    jsonb_build_object('from', v_end.state));
  return hwqueue.put_back(p_lease, 0, (v_end.claim_token & ((1::bigint << 40) - 1))::int, v_now, v_now, p_shard);
end
$$;
