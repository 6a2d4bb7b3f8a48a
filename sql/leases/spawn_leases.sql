-- Spawns a batch [{"task", "params", "options"}], all or nothing; equal idempotency keys in it are one lease.
-- Locks: its idempotency keys, sorted. Raises: as spawn_lease, with the element's index (from 0) in the detail.
-- Idempotent: per idempotency key. Wakes: waiting workers, once.
create or replace function hwqueue.spawn_leases(p_queue text, p_leases jsonb, p_shard int default 0)
returns table (ordinal int, lease_id uuid, created boolean, state text, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  -- gives the transaction its id, too: as in spawn_lease
  v_queue hwqueue.queue := hwqueue.spawn_queue(p_queue, p_shard);
  v_now timestamptz := hwqueue.clock();
  v_spawns hwqueue.spawn_request[];
begin
  if jsonb_typeof(p_leases) is distinct from 'array' then
    perform hwqueue.refuse('QHA01', format('leases must be a JSON array, got %s', coalesce(jsonb_typeof(p_leases), 'null')),
      jsonb_build_object('field', 'leases'), 'pass [{"task": "...", "params": {}, "options": {}}, ...]');
  end if;
  begin
    v_spawns := hwqueue.read_spawns(v_queue, p_leases, v_now, p_shard);
  exception when others then
    if sqlstate like 'QH%' then
      perform hwqueue.refuse_element(v_queue, p_leases, v_now, p_shard);
    end if;
    raise;  -- nothing that an element could help
  end;
  v_spawns := hwqueue.write_spawns(v_spawns, v_queue, v_now, p_shard);
  if hwqueue.my_tenants() is not null then
    perform hwqueue.check_own_spawns(v_spawns, true, p_shard);
  end if;
  return query
    select s.ordinal, coalesce(s.stands_for, s.lease_id), s.stands_for is null,
           hwqueue.spawned_state(s.stands_for, s.available_at, v_now, p_shard), p_shard
    from unnest(v_spawns) s order by s.ordinal;
end
$$;

-- Refuses the first element of a batch that is at fault, with its index. The batch was read as a whole, which says that there
-- is one and not which: here they are read one by one.
-- Locks: none beyond new classes. Raises: as read_spawns, with the index.
create or replace function hwqueue.refuse_element(p_queue hwqueue.queue, p_leases jsonb, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_code text;
  v_message text;
  v_detail text;
  v_hint text;
begin
  for v_index in 0 .. jsonb_array_length(p_leases) - 1 loop
    begin
      perform hwqueue.read_spawns(p_queue, jsonb_build_array(p_leases -> v_index), p_now, p_shard);
    exception when others then
      get stacked diagnostics v_code = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail, v_hint = pg_exception_hint;
      if v_code not like 'QH%' then
        raise;
      end if;
      perform hwqueue.refuse(v_code, format('leases[%s]: %s', v_index, v_message),
        v_detail::jsonb || jsonb_build_object('index', v_index), v_hint);
    end;
  end loop;
end
$$;
