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
  perform 1 from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease for no key update;
  v_lease := hwqueue.find_lease(p_lease, p_shard);
  if v_lease.state not in ('failed', 'cancelled') then
    perform hwqueue.refuse(case when v_lease.state = 'open' then 'QHL07' else 'QHL03' end,
      format('lease %s is %s', p_lease, hwqueue.lease_state(p_lease, p_shard)),
      jsonb_build_object('lease_id', p_lease, 'state', hwqueue.lease_state(p_lease, p_shard)),
      'only failed and cancelled leases can be requeued');
  end if;
  v_now := hwqueue.clock();
  -- a deadline that has passed would fail it again before anyone could claim it
  update hwqueue.lease l
  set state = 'open', finished_at = null, error = null, deadline = case when l.deadline > v_now then l.deadline end
  where l.shard_id = p_shard and l.lease_id = p_lease;
  return hwqueue.put_back(p_lease, 0, (v_lease.claim_token & ((1::bigint << 40) - 1))::int, v_now, v_now, p_shard);
end
$$;

-- Requeues the failed leases of a queue, oldest first: {"task", "since", "until", "limit"}; at most 1,000 unless limit says more.
-- Locks: the lease rows, skip locked. Raises: QHQ01, QHA01, QHA02. Idempotent: yes. Wakes: waiting workers. Gives the count.
create or replace function hwqueue.requeue_failed(p_queue text, p_filter jsonb default '{}', p_shard int default 0) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue := hwqueue.find_queue(p_queue, p_shard);
  v_task text;
  v_since timestamptz;
  v_until timestamptz;
  v_lease uuid;
  v_count int := 0;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_object(p_filter, array['task', 'since', 'until', 'limit'], 'filter');
  v_task := hwqueue.json_text(p_filter -> 'task', 'filter.task', 200);
  v_since := coalesce(hwqueue.json_time(p_filter -> 'since', 'filter.since'), '-infinity');
  v_until := coalesce(hwqueue.json_time(p_filter -> 'until', 'filter.until'), 'infinity');
  for v_lease in
    select l.lease_id from hwqueue.lease l
    where l.shard_id = p_shard and l.queue_id = v_queue.queue_id and l.finished_at is not null and l.state = 'failed'
      and l.finished_at between v_since and v_until and (v_task is null or l.task_name = v_task)
    order by l.finished_at
    limit coalesce(hwqueue.json_integer(p_filter -> 'limit', 'filter.limit', 1, 1000000), 1000)
    for no key update skip locked
  loop
    perform hwqueue.requeue_lease(v_lease, p_shard);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
