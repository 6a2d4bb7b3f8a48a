-- Changes a lease that is not running: {"placement", "wire", "labels", "priority", "available_at", "deadline"}. It keeps its
-- attempts and gets a fresh place in line. placement and wire together replace what it asked, whichever of them is given.
-- Locks: the entry, then the lease row; as put_back. Raises: QHL03 finished, QHL04, QHL07 claimed, QHA01, QHC03, QHC04, QHW01, QHA02, QHA03.
-- Idempotent: but for the place in line. Wakes: waiting workers, when it is claimable at once. Gives the state.
create or replace function hwqueue.update_lease(p_lease uuid, p_changes jsonb, p_shard int default 0) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_entry hwqueue.scheduled;
  v_lease hwqueue.lease;
  v_ended text;
  v_class hwqueue.placement_class;
  v_priority smallint;
  v_deadline timestamptz;
  v_asks boolean := p_changes ?| array['placement', 'wire'];
  v_placement jsonb;
  v_class_id bigint;
  v_at timestamptz;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_object(p_changes, array['placement', 'wire', 'labels', 'priority', 'available_at', 'deadline'], 'changes');
  v_entry := hwqueue.take_entry(p_lease, p_shard);
  v_lease := hwqueue.find_lease(p_lease, p_shard);
  if v_entry.lease_id is null then
    v_ended := (hwqueue.lease_end(p_lease, p_shard)).state;
    perform hwqueue.refuse(case when v_ended is null then 'QHL07' else 'QHL03' end,
      format('lease %s is %s', p_lease, coalesce(v_ended, 'claimed')),
      jsonb_build_object('lease_id', p_lease, 'state', hwqueue.lease_state(p_lease, p_shard)),
      'only a lease that waits can be changed; cancel it and spawn another');
  end if;
  v_now := hwqueue.clock();
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_lease.class_id;
  v_at := coalesce(hwqueue.json_time(p_changes -> 'available_at', 'changes.available_at'), v_lease.available_at);
  v_priority := coalesce(hwqueue.json_integer(p_changes -> 'priority', 'changes.priority', -32768, 32767), v_lease.priority);
  v_deadline := case when p_changes ? 'deadline' then hwqueue.json_time(p_changes -> 'deadline', 'changes.deadline') else v_lease.deadline end;
  v_placement := case when v_asks then hwqueue.spawn_placement(p_changes, 'changes') else v_class.placement end;
  v_class_id := hwqueue.target_class(hwqueue.find_class(v_lease.queue_id, v_lease.task_name, v_class.tenant, v_class.service_id,
    case when p_changes ? 'labels' then hwqueue.check_labels(p_changes -> 'labels', 'changes.labels') else v_class.labels end,
    v_placement, p_shard, v_class.patience), p_lease, p_shard);
  if hwqueue.my_tenants() is not null then
    perform hwqueue.check_own_class(c, 'changes', null, p_shard)
    from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_class_id;
  end if;
  update hwqueue.lease l
  set priority = v_priority, rank = l.rank + l.priority - v_priority, deadline = v_deadline, class_id = v_class_id,
      wire = case when v_asks then hwqueue.wire_blob(p_changes -> 'wire', 'changes.wire') else l.wire end
  where l.shard_id = p_shard and l.lease_id = p_lease;
  perform hwqueue.note_leases('lease_updated', array[p_lease],
    'changed: ' || coalesce((select string_agg(k, ', ' order by k) from jsonb_object_keys(p_changes) k), 'its place in line'), p_shard,
    jsonb_build_object('class_id', v_class_id));
  return hwqueue.put_back(p_lease, v_entry.attempt_count, v_entry.claim_count, v_at, v_now, p_shard,
    -- its patience goes on; with a deadline it is found by the time of this call
    case when not p_changes ? 'available_at' and v_deadline is null and v_entry.available_at <= v_now then v_entry.available_at end);
end
$$;
