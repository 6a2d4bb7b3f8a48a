-- Parts of a node's registration that are lists: devices, resources, labels.
-- Raises: QHA01.

-- The node with its devices: [{"resource_id", "model", "memory_mib", "parent_resource_id", "partitionable"}], index = place in the list.
-- A part of a device names it as its parent. A parent that is listed is partitionable and whole; one that is not is never given
-- whole, such as a GPU in MIG mode.
create or replace function hwqueue.parse_gpus(p_node hwqueue.node, p_gpus jsonb) returns hwqueue.node
language plpgsql immutable
as $$
declare
  v_node hwqueue.node := p_node;
  v_gpu jsonb;
  v_field text;
  v_id uuid;
  v_parent uuid;
  v_whole uuid[] := '{}';  -- devices that may be split
begin
  v_node.gpu_ids := '{}';
  v_node.gpu_models := '{}';
  v_node.gpu_memory_mib := '{}';
  v_node.gpu_parents := '{}';
  for v_gpu, v_field in
    select e.value, format('spec.gpus[%s]', e.ordinality - 1)
    from jsonb_array_elements(hwqueue.json_list(p_gpus, 'spec.gpus', 1024, 'an array of at most 1024 devices',
      'for example [{"resource_id": "<uuid>", "model": "A100", "memory_mib": 81920}]')) with ordinality e
  loop
    perform hwqueue.check_object(v_gpu, array['resource_id', 'model', 'memory_mib', 'parent_resource_id', 'partitionable'], v_field);
    v_id := hwqueue.json_uuid(v_gpu -> 'resource_id', v_field || '.resource_id');
    if v_id is null or v_id = any (v_node.gpu_ids) then
      perform hwqueue.refuse('QHA01', format('%s.resource_id is missing or used twice', v_field),
        jsonb_build_object('field', v_field || '.resource_id'), 'every device has a uuid of its own, the same at every registration');
    end if;
    v_node.gpu_ids := v_node.gpu_ids || v_id;
    v_node.gpu_models := v_node.gpu_models || coalesce(hwqueue.json_text(v_gpu -> 'model', v_field || '.model', 200), '');
    v_node.gpu_memory_mib := v_node.gpu_memory_mib
      || coalesce(hwqueue.json_integer(v_gpu -> 'memory_mib', v_field || '.memory_mib', 0, 1000000000), 0);
    v_parent := hwqueue.json_uuid(v_gpu -> 'parent_resource_id', v_field || '.parent_resource_id');
    v_node.gpu_parents := v_node.gpu_parents || v_parent;
    if coalesce(hwqueue.json_boolean(v_gpu -> 'partitionable', v_field || '.partitionable'), false) then
      if v_parent is not null then
        perform hwqueue.refuse('QHA01', format('%s is a part of a device and partitionable itself', v_field),
          jsonb_build_object('field', v_field || '.partitionable'), 'only whole devices are split');
      end if;
      v_whole := v_whole || v_id;
    end if;
  end loop;
  select p.parent, format('spec.gpus[%s].parent_resource_id', p.ordinality - 1) into v_parent, v_field
  from unnest(v_node.gpu_parents) with ordinality p(parent, ordinality)
  where p.parent = any (v_node.gpu_ids) and p.parent <> all (v_whole) order by p.ordinality limit 1;
  if found then
    perform hwqueue.refuse('QHA01', format('%s is %s, which is not partitionable', v_field, v_parent),
      jsonb_build_object('field', v_field), 'declare the device with "partitionable": true, or leave it out if nobody may have it whole');
  end if;
  if array_remove(v_node.gpu_parents, null) = '{}' then
    v_node.gpu_parents := '{}';
  end if;
  return v_node;
end
$$;

-- A list of uuids, sorted, each once.
create or replace function hwqueue.json_uuids(p_list jsonb, p_field text) returns uuid[]
language plpgsql immutable
as $$
begin
  if p_list is null or jsonb_typeof(p_list) = 'null' then
    return '{}'::uuid[];
  end if;
  if jsonb_typeof(p_list) <> 'array' or jsonb_array_length(p_list) > 1000 or p_list @> '[null]' then
    perform hwqueue.refuse('QHA01', format('%s must be an array of at most 1000 uuids', p_field), jsonb_build_object('field', p_field),
      'give a list of ids');
  end if;
  return array(select distinct hwqueue.json_uuid(e.value, format('%s[%s]', p_field, e.ordinality - 1))
               from jsonb_array_elements(p_list) with ordinality e order by 1);
end
$$;

-- Node labels: any JSON object; order operators and anchors look at its top level.
create or replace function hwqueue.check_node_labels(p_labels jsonb) returns jsonb
language plpgsql immutable
as $$
declare
  v_key text;
begin
  if p_labels is null or jsonb_typeof(p_labels) = 'null' then
    return '{}'::jsonb;
  end if;
  perform hwqueue.check_depth(hwqueue.check_numbers(p_labels, 'spec.labels'), 'spec.labels');
  if jsonb_typeof(p_labels) <> 'object' or length(p_labels::text) > 65536 or (select count(*) from jsonb_object_keys(p_labels)) > 256 then
    perform hwqueue.refuse('QHA01', 'spec.labels must be an object of at most 256 labels and 65536 characters',
      jsonb_build_object('field', 'spec.labels'), 'for example {"region": "us-east", "gpu": true}');
  end if;
  select k into v_key from jsonb_object_keys(p_labels) k where length(k) not between 1 and 253 limit 1;
  if found then
    perform hwqueue.refuse('QHA01', format('spec.labels has a key of %s characters', length(v_key)),
      jsonb_build_object('field', 'spec.labels'), 'label keys have 1 to 253 characters');
  end if;
  return hwqueue.normal_value(p_labels);
end
$$;
