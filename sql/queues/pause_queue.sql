-- Stops claims from a queue; spawning and running leases go on. resume_queue undoes it.
-- Locks: the queue's row. Raises: QHQ01, QHA03. Idempotent: yes.
create or replace function hwqueue.pause_queue(p_queue text, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue;
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  v_queue := hwqueue.find_queue(p_queue, p_shard);
  update hwqueue.queue q set paused_at = v_now
  where q.shard_id = p_shard and q.queue_id = v_queue.queue_id and q.paused_at is null;
  if found then
    perform hwqueue.note_event('queue_paused', format('queue %s is paused', p_queue), p_shard, p_queue => p_queue);
  end if;
end
$$;
