-- The class of a lease that a term names: one of its own, so that the others of its class go on as before; else the class as it is.
-- A lease that is named after it was spawned keeps its class, and all of that are checked at the claim.
-- Locks: as find_class. Raises: as find_class. Idempotent: yes.
create or replace function hwqueue.target_class(p_class_id bigint, p_lease uuid, p_shard int) returns bigint
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.term t where t.shard_id = p_shard and t.anchors && array['lease:' || p_lease] limit 1;
  if not found then
    return p_class_id;
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  return hwqueue.find_class(v_class.queue_id, v_class.task_name, v_class.tenant, v_class.service_id, v_class.labels, v_class.placement,
                            p_shard, v_class.patience, p_lease);
end
$$;
