-- The part of a spawn that decides where it may run: {"class_id", "labels", "placement"}, the placement in normal form; the
-- class is written if it is new.
-- Locks: none beyond a new row. Raises: QHA01, QHC03, QHC04, QHC05, naming the field. Idempotent: yes.
create or replace function hwqueue.spawn_class(p_queue hwqueue.queue, p_task text, p_options jsonb, p_shard int) returns jsonb
language plpgsql volatile
as $$
declare
  v_options jsonb := coalesce(p_options, '{}');
  v_labels jsonb;
  v_placement jsonb;
begin
  perform hwqueue.check_name(p_task, 'task', 200);
  perform hwqueue.check_object(v_options, array['lease_id', 'placement', 'affinity_tags', 'affinity_with', 'anti_affinity_with', 'wire',
    'priority', 'tenant', 'service_id', 'labels', 'available_at', 'delay', 'max_attempts', 'retry', 'claim_timeout', 'deadline',
    'patience', 'idempotency_key', 'headers', 'notify'], 'options');
  v_labels := hwqueue.check_labels(v_options -> 'labels', 'options.labels');
  v_placement := hwqueue.spawn_placement(v_options, 'options');
  return jsonb_build_object('labels', v_labels, 'placement', v_placement, 'class_id',
    hwqueue.find_class(p_queue.queue_id, p_task, coalesce(hwqueue.json_text(v_options -> 'tenant', 'options.tenant', 100), ''),
      hwqueue.json_uuid(v_options -> 'service_id', 'options.service_id'), v_labels, v_placement, p_shard));
end
$$;

-- Spawns with equal keys have equal classes: lets a batch find each class once.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.spawn_class_key(p_task text, p_options jsonb) returns text
language sql immutable parallel safe
as $$
  select md5(jsonb_build_array(p_task, coalesce(p_options, '{}') - array['lease_id', 'priority', 'available_at', 'delay', 'max_attempts',
    'retry', 'claim_timeout', 'deadline', 'idempotency_key', 'headers', 'notify'])::text)
$$;
