-- The queue of that name.
-- Locks: none. Raises: QHQ01. Idempotent: yes.
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
-- Locks: none. Raises: QHQ01. Idempotent: yes.
create or replace function hwqueue.spawn_queue(p_queue text, p_shard int) returns hwqueue.queue
language plpgsql volatile
as $$
begin
  perform pg_current_xact_id();
  return hwqueue.find_queue(p_queue, p_shard);
end
$$;
