-- Requeues the failed leases of a queue, oldest first: {"task", "since", "until", "limit"}; at most 1,000 unless limit says more.
-- Locks: their outcomes, skip locked; the lease rows. Raises: QHQ01, QHA01, QHA02, QHA03. Idempotent: yes. Wakes: waiting workers. Gives the count.
create or replace function hwqueue.requeue_failed(p_queue text, p_filter jsonb default '{}', p_shard int default 0) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue;
  v_task text;
  v_since timestamptz;
  v_until timestamptz;
  v_lease uuid;
  v_count int := 0;
begin
  perform hwqueue.require_all_tenants();
  v_queue := hwqueue.find_queue(p_queue, p_shard);
  perform hwqueue.require_read_committed();
  perform hwqueue.check_object(p_filter, array['task', 'since', 'until', 'limit'], 'filter');
  v_task := hwqueue.json_text(p_filter -> 'task', 'filter.task', 200);
  v_since := coalesce(hwqueue.json_time(p_filter -> 'since', 'filter.since'), '-infinity');
  v_until := coalesce(hwqueue.json_time(p_filter -> 'until', 'filter.until'), 'infinity');
  for v_lease in
    select o.lease_id
    from hwqueue.outcome o
    join hwqueue.lease l on l.shard_id = o.shard_id and l.lease_id = o.lease_id
    where o.shard_id = p_shard and o.queue_id = v_queue.queue_id and o.state = 'failed'
      and o.finished_at between v_since and v_until and (v_task is null or l.task_name = v_task)
    order by o.finished_at
    limit coalesce(hwqueue.json_integer(p_filter -> 'limit', 'filter.limit', 1, 1000000), 1000)
    for update of o skip locked
  loop
    perform hwqueue.requeue_lease(v_lease, p_shard);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
