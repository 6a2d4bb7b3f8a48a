-- Spawns a batch [{"task", "params", "options"}], all or nothing; equal idempotency keys in it are one lease.
-- Locks: its idempotency keys, sorted. Raises: as spawn_lease, with the element's index (from 0) in the detail.
-- Idempotent: per idempotency key. Wakes: waiting workers, once.
create or replace function hwqueue.spawn_leases(p_queue text, p_leases jsonb, p_shard int default 0)
returns table (ordinal int, lease_id uuid, created boolean, state text, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue := hwqueue.spawn_queue(p_queue, p_shard);
  v_now timestamptz := hwqueue.clock();
  v_spawns hwqueue.spawn_request[] := '{}'::hwqueue.spawn_request[];
  v_item jsonb;
  v_index int := -1;
  v_task text;
  v_options jsonb;
  v_key text;
  v_classes jsonb := '{}'::jsonb;  -- by key: most of a batch shares a few
  v_code text;
  v_message text;
  v_detail text;
  v_hint text;
begin
  if jsonb_typeof(p_leases) is distinct from 'array' then
    perform hwqueue.refuse('QHA01', format('leases must be a JSON array, got %s', coalesce(jsonb_typeof(p_leases), 'null')),
      jsonb_build_object('field', 'leases'), 'pass [{"task": "...", "params": {}, "options": {}}, ...]');
  end if;
  begin
    for v_item in select e.value from jsonb_array_elements(p_leases) with ordinality e order by e.ordinality loop
      v_index := v_index + 1;
      perform hwqueue.check_object(v_item, array['task', 'params', 'options'], 'lease');
      v_task := hwqueue.json_text(v_item -> 'task', 'task', 200);
      v_options := nullif(v_item -> 'options', 'null');
      v_key := hwqueue.spawn_class_key(v_task, case when jsonb_typeof(v_options) = 'object' then v_options end);
      if not v_classes ? v_key or jsonb_typeof(v_options) <> 'object' then  -- spawn_class refuses the latter
        v_classes := v_classes || jsonb_build_object(v_key, hwqueue.spawn_class(v_queue, v_task, v_options, p_shard));
      end if;
      v_spawns := v_spawns || hwqueue.prepare_spawn(v_queue, v_index + 1, v_task, v_item -> 'params', v_options, v_classes -> v_key, v_now);
    end loop;
  exception when others then
    get stacked diagnostics v_code = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail, v_hint = pg_exception_hint;
    if v_code not like 'QH%' then
      raise;
    end if;
    perform hwqueue.refuse(v_code, format('leases[%s]: %s', v_index, v_message),
      v_detail::jsonb || jsonb_build_object('index', v_index), v_hint);
  end;
  return query
    select w.ordinal, w.lease_id, w.created, w.state, p_shard
    from hwqueue.write_spawns(v_spawns, v_queue, v_now, p_shard) w order by w.ordinal;
end
$$;
