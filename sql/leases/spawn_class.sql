-- Options that every lease has for itself; the others decide where it may run and make its class.
create or replace function hwqueue.own_options() returns text[]
language sql immutable parallel safe
as $$
  select array['lease_id', 'priority', 'available_at', 'delay', 'max_attempts', 'retry', 'claim_timeout', 'deadline', 'idempotency_key',
               'headers', 'notify']
$$;

-- Options that read_spawn reads: a lease's own, and the params blob, which is kept as it was sent.
create or replace function hwqueue.kept_options() returns text[]
language sql immutable parallel safe
as $$ select hwqueue.own_options() || array['wire'] $$;

-- The options that make the class; what is no object stays as it is, for spawn_class to refuse.
create or replace function hwqueue.class_options(p_options jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when jsonb_typeof(p_options) = 'object' then p_options - hwqueue.own_options() else coalesce(p_options, '{}') end
$$;

-- The class of a spawn, written if it is new. p_options is what class_options left.
-- Locks: none beyond a new row. Raises: QHA01, QHC03, QHC04, QHW01, naming the field.
create or replace function hwqueue.spawn_class(p_queue_id int, p_task text, p_options jsonb, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_class_options text[] := array['placement', 'affinity_tags', 'affinity_with', 'anti_affinity_with', 'wire', 'tenant', 'service_id',
    'labels', 'patience'];
begin
  perform hwqueue.check_name(p_task, 'task', 200);
  if p_options = '{}' then
    return hwqueue.find_class(p_queue_id, p_task, '', null, '{}', '{}', p_shard);
  end if;
  perform hwqueue.check_object(p_options, v_class_options || hwqueue.own_options(), 'options');
  return hwqueue.find_class(p_queue_id, p_task, coalesce(hwqueue.json_text(p_options -> 'tenant', 'options.tenant', 100), ''),
    hwqueue.json_uuid(p_options -> 'service_id', 'options.service_id'), hwqueue.check_labels(p_options -> 'labels', 'options.labels'),
    hwqueue.spawn_placement(p_options, 'options'), p_shard, hwqueue.json_interval(p_options -> 'patience', 'options.patience'));
end
$$;
