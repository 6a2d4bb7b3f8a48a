-- Lets claims from a paused queue go on.
-- Locks: the queue's row; queue_signal, skip locked. Raises: QHQ01, QHA03. Idempotent: yes. Wakes: waiting workers.
create or replace function hwqueue.resume_queue(p_queue text, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue;
begin
  perform hwqueue.require_all_tenants();
  v_queue := hwqueue.find_queue(p_queue, p_shard);
  update hwqueue.queue q set paused_at = null
  where q.shard_id = p_shard and q.queue_id = v_queue.queue_id and q.paused_at is not null;
  if found then
    perform hwqueue.note_event('queue_resumed', format('queue %s goes on', p_queue), p_shard, p_queue => p_queue);
  end if;
  perform hwqueue.wake_workers(v_queue, p_shard);
end
$$;
