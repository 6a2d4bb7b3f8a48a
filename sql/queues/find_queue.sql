-- The queue of that name. Raises: QHQ01.
create or replace function hwqueue.find_queue(p_queue text, p_shard int) returns hwqueue.queue
language plpgsql stable
as $$
declare
  v_queue hwqueue.queue;
begin
  select q.* into v_queue from hwqueue.queue q where q.shard_id = p_shard and q.name = p_queue and q.dropped_at is null;
  if not found then
    perform hwqueue.refuse('QHQ01', format('queue %s does not exist', coalesce(to_json(left(p_queue, 100))::text, 'null')),
      jsonb_build_object('queue', left(p_queue, 100), 'shard_id', p_shard),
      'create it first: select hwqueue.create_queue(p_queue => ''...''), or hwqueue queue create');
  end if;
  return v_queue;
end
$$;

-- The same for a spawn: with a transaction id of its own before it looks, so that a dropped queue is not deleted under it.
-- Locks: none; above read committed the queue, for key share. Raises: QHQ01; 40001 there.
create or replace function hwqueue.spawn_queue(p_queue text, p_shard int) returns hwqueue.queue
language plpgsql volatile
as $$
declare
  v_queue hwqueue.queue;
begin
  perform pg_current_xact_id();
  v_queue := hwqueue.find_queue(p_queue, p_shard);
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    -- an older snapshot may show a queue that is dropped by now: hold it, or fail with 40001 as such transactions do
    perform 1 from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_queue.queue_id for key share;
  end if;
  return v_queue;
end
$$;
