-- Reads and checks a node's registration; gives the row it asks for, without profile and times.
-- Raises: QHA01.
create or replace function hwqueue.parse_node_spec(p_node uuid, p_spec jsonb, p_shard int) returns hwqueue.node
language plpgsql immutable
as $$
declare
  v_node hwqueue.node;
  v_capacity jsonb := coalesce(nullif(p_spec -> 'capacity', 'null'), '{}');
  v_key text;
begin
  perform hwqueue.check_object(p_spec, array['name', 'instance_id', 'heartbeat_timeout', 'labels', 'rack', 'capacity', 'cores', 'gpus',
    'resources', 'cpu_isolation', 'gpu_exclusivity', 'default_cpu_isolation', 'gpu_share_mode', 'taints', 'slots', 'queues', 'tasks', 'keep_claims'],
    'spec');
  v_node.shard_id := p_shard;
  v_node.node_id := p_node;
  v_node.name := hwqueue.json_text(p_spec -> 'name', 'spec.name', 253);
  perform hwqueue.check_name(v_node.name, 'spec.name', 253);
  v_node.instance_id := hwqueue.json_text(p_spec -> 'instance_id', 'spec.instance_id', 128);
  if v_node.instance_id is null then
    perform hwqueue.refuse('QHA01', 'spec.instance_id is missing', jsonb_build_object('field', 'spec.instance_id'),
      'give a fresh id for every start of the worker process: it fences the one before');
  end if;
  v_node.labels := hwqueue.check_node_labels(p_spec -> 'labels');
  v_node.rack := hwqueue.json_integer(p_spec -> 'rack', 'spec.rack', 0, 4294967295);
  v_node.heartbeat_timeout := coalesce(hwqueue.json_short_interval(p_spec -> 'heartbeat_timeout', 'spec.heartbeat_timeout', '1 second', '1 day'), '45 seconds');
  v_node.slots := hwqueue.json_integer(p_spec -> 'slots', 'spec.slots', 0, 1000000);
  v_node.taints := hwqueue.parse_taints(p_spec -> 'taints', 'spec.taints');
  v_node.resources := hwqueue.json_uuids(p_spec -> 'resources', 'spec.resources');
  if jsonb_typeof(v_capacity) <> 'object' or (select count(*) from jsonb_object_keys(v_capacity)) > 64 then
    perform hwqueue.refuse('QHA01', 'spec.capacity must be an object of at most 64 amounts', jsonb_build_object('field', 'spec.capacity'),
      'for example {"cpu_milli": 64000, "memory_mib": 262144}');
  end if;
  v_node.custom := '{}';
  for v_key in select k from jsonb_object_keys(v_capacity) k loop
    if v_key !~ '^[a-z][a-z0-9_./-]{0,62}$' or v_key in ('gpu', 'gpu_milli') then
      perform hwqueue.refuse('QHA01', format('spec.capacity has an amount named %s', to_json(left(v_key, 60))),
        jsonb_build_object('field', 'spec.capacity.' || left(v_key, 60)),
        'names are 1 to 63 characters of a-z, 0-9, _ . / -; GPUs are declared one by one in spec.gpus');
    end if;
    if v_key not in ('cpu_milli', 'memory_mib') then
      v_node.custom := v_node.custom || coalesce(jsonb_build_object(v_key,
        hwqueue.json_integer(v_capacity -> v_key, 'spec.capacity.' || v_key, 0, 1000000000000)), '{}');
    end if;
  end loop;
  v_node.cpu_milli := hwqueue.json_integer(v_capacity -> 'cpu_milli', 'spec.capacity.cpu_milli', 0, 1000000000000);
  v_node.memory_mib := hwqueue.json_integer(v_capacity -> 'memory_mib', 'spec.capacity.memory_mib', 0, 1000000000000);
  v_node.custom := jsonb_strip_nulls(v_node.custom);
  v_node := hwqueue.parse_gpus(v_node, p_spec -> 'gpus');
  return hwqueue.parse_isolation(hwqueue.parse_cores(v_node, p_spec -> 'cores'), p_spec);
end
$$;
