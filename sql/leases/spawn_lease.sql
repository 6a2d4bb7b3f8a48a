-- Spawns one lease, normally inside the caller's own transaction. Waits for nobody but another spawn of its own key.
-- Locks: its idempotency key. Raises: QHQ01, QHA01, QHC03, QHC04, QHC05, QHT01, QHL06.
-- Idempotent: with an idempotency_key. Wakes: waiting workers.
create or replace function hwqueue.spawn_lease(p_queue text, p_task text, p_params jsonb default '{}', p_options jsonb default '{}',
                                               p_shard int default 0)
returns table (lease_id uuid, created boolean, state text, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue := hwqueue.spawn_queue(p_queue, p_shard);
  v_now timestamptz := hwqueue.clock();
begin
  return query
    select w.lease_id, w.created, w.state, p_shard
    from hwqueue.write_spawns(
      array[hwqueue.prepare_spawn(v_queue, 1, p_task, p_params, p_options,
                                  hwqueue.spawn_class(v_queue, p_task, p_options, p_shard), v_now)], v_queue, v_now, p_shard) w;
end
$$;
