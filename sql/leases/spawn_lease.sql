-- Spawns one lease, normally inside the caller's own transaction. Waits for nobody but another spawn of its own key.
-- Locks: its idempotency key. Raises: QHQ01, QHA01, QHC03, QHC04, QHW01, QHT01, QHL06, QHA03.
-- Idempotent: with an idempotency_key. Wakes: waiting workers.
create or replace function hwqueue.spawn_lease(p_queue text, p_task text, p_params jsonb default '{}', p_options jsonb default '{}',
                                               p_shard int default 0)
returns table (lease_id uuid, created boolean, state text, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  -- gives the transaction its id, too: it must have one before a class is looked up and a position drawn, as what prunes
  -- classes, and what skips used up positions, waits for all transactions up to some id
  v_queue hwqueue.queue := hwqueue.spawn_queue(p_queue, p_shard);
  v_now timestamptz := hwqueue.clock();
  v_spawn hwqueue.spawn_request := hwqueue.read_single_spawn(v_queue, p_task, p_params, p_options, v_now, p_shard);
begin
  v_spawn := (hwqueue.write_spawns(array[v_spawn], v_queue, v_now, p_shard))[1];
  if hwqueue.my_tenants() is not null then
    perform hwqueue.check_own_spawns(array[v_spawn], false, p_shard);
  end if;
  lease_id := coalesce(v_spawn.stands_for, v_spawn.lease_id);
  created := v_spawn.stands_for is null;
  state := hwqueue.spawned_state(v_spawn.stands_for, v_spawn.available_at, v_now, p_shard);
  shard_id := p_shard;
  return next;
end
$$;
