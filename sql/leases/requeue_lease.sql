-- Gives a failed or cancelled lease a fresh set of attempts, at once. Its past attempts stay on record, its tokens go on rising.
-- Locks: the lease row. Raises: QHL03 completed, QHL04, QHL07 still waiting or running, QHA02. Idempotent: no.
-- Wakes: waiting workers. Gives the state.
create or replace function hwqueue.requeue_lease(p_lease uuid, p_shard int default 0) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_lease hwqueue.lease;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed();
  if hwqueue.my_tenants() is not null then
    perform hwqueue.find_lease(p_lease, p_shard);  -- another's is not waited for
  end if;
  perform 1 from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease for no key update;
  v_lease := hwqueue.find_lease(p_lease, p_shard);
  if v_lease.state not in ('failed', 'cancelled') then
    perform hwqueue.refuse(case when v_lease.state = 'open' then 'QHL07' else 'QHL03' end,
      format('lease %s is %s', p_lease, hwqueue.lease_state(p_lease, p_shard)),
      jsonb_build_object('lease_id', p_lease, 'state', hwqueue.lease_state(p_lease, p_shard)),
      'only failed and cancelled leases can be requeued');
  end if;
  v_now := hwqueue.clock();
  -- it finished all the same, and may not have been counted yet
  with again as (
    delete from hwqueue.finished f
    where f.shard_id = p_shard and f.queue_id = v_lease.queue_id and f.state = v_lease.state and f.finished_at = v_lease.finished_at
      and f.lease_id = p_lease
    returning f.*
  )
  insert into hwqueue.requeued (shard_id, queue_id, state, finished_at, lease_id)
  select a.shard_id, a.queue_id, a.state, a.finished_at, a.lease_id from again a;
  -- a deadline that has passed would fail it again before anyone could claim it
  update hwqueue.lease l
  set state = 'open', finished_at = null, error = null, deadline = case when l.deadline > v_now then l.deadline end
  where l.shard_id = p_shard and l.lease_id = p_lease;
  perform hwqueue.note_leases('lease_requeued', array[p_lease], format('requeued, it was %s', v_lease.state), p_shard,
    jsonb_build_object('from', v_lease.state));
  return hwqueue.put_back(p_lease, 0, (v_lease.claim_token & ((1::bigint << 40) - 1))::int, v_now, v_now, p_shard);
end
$$;
