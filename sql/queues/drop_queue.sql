-- Drops a queue: its name is free at once, nothing is spawned into it or claimed from it any more; prune deletes what it held.
-- Refused while anything waits or runs in it, unless forced; what runs is then asked to stop by the next reap (reap_dropped). A spawn that
-- is still uncommitted goes with the queue: stop its producers first.
-- Locks: the queue's row. Raises: QHQ01, QHQ03 not empty, QHA02, QHA03. Idempotent: no, the second call
-- finds no queue.
create or replace function hwqueue.drop_queue(p_queue text, p_force boolean default false, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue;
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants();
  v_queue := hwqueue.find_queue(p_queue, p_shard);
  perform hwqueue.require_read_committed();
  perform 1 from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_queue.queue_id for no key update;
  v_queue := hwqueue.find_queue(p_queue, p_shard);
  if not coalesce(p_force, false) and (
       exists (select 1 from hwqueue.ready r where r.shard_id = p_shard and r.queue_id = v_queue.queue_id)
    or exists (select 1 from hwqueue.scheduled s where s.shard_id = p_shard and s.queue_id = v_queue.queue_id)
    or exists (select 1 from hwqueue.claim c where c.shard_id = p_shard and c.queue_id = v_queue.queue_id)) then
    perform hwqueue.refuse('QHQ03', format('queue %s is not empty', p_queue), jsonb_build_object('queue', p_queue),
      'wait until it is, or drop it with p_force => true, which loses the leases');
  end if;
  v_now := hwqueue.clock();
  update hwqueue.queue q set dropped_at = v_now where q.shard_id = p_shard and q.queue_id = v_queue.queue_id;
  perform hwqueue.note_event('queue_dropped', format('queue %s is dropped', p_queue), p_shard,
    jsonb_build_object('claims', (select count(*) from hwqueue.claim c where c.shard_id = p_shard and c.queue_id = v_queue.queue_id)),
    p_queue => p_queue);
end
$$;
