-- Resources, CPU isolation and GPU exclusivity: what a placement asks for, and which classes a node
-- rules out.
-- An isolation class says with whom a lease shares its cores or devices. It is a filter, and never changes a
-- score. A lease that names no class gets the node's default. Eligibility and explanations read the same
-- rules (isolation_conflicts), so an explanation never disagrees with a claim.
-- Read cpu_isolation_on and gpu_exclusivity_on first: they say what a class means on one node.

-- Returns the isolation classes that a node honours, sorted. The first class of p_known is always one of
-- them.
-- Raises: QHA01.
create or replace function hwqueue.parse_classes(p_list jsonb, p_field text, p_known text[]) returns text[]
language plpgsql immutable
as $$
begin
  if coalesce(p_list, 'null') not in ('null', '{}')
    and (jsonb_typeof(p_list) <> 'array' or not to_jsonb(p_known) @> p_list or p_list @> '[null]') then
    perform hwqueue.refuse_field('QHA01', p_field, 'must be an array of classes',
      'classes are ' || array_to_string(p_known, ', '));
  end if;
  return array(
    select distinct c
    from jsonb_array_elements_text(
      case when jsonb_typeof(p_list) = 'array' then p_list else '[]' end || to_jsonb(p_known[1])) c
    order by c);
end
$$;

-- Returns the CPU isolation that a class has on a node: the one that it asks for, else the node's default.
-- Null means best_effort.
create or replace function hwqueue.cpu_isolation_on(p_asked text, p_default text) returns text
language sql immutable parallel safe
as $$ select nullif(coalesce(p_asked, p_default), 'best_effort') $$;

-- Returns the GPU exclusivity that a class has on a node. Null means shared.
-- session_exclusive and device_exclusive both give the lease its devices alone, because leases share no
-- sessions. They differ in what a node must honour.
create or replace function hwqueue.gpu_exclusivity_on(p_asked text, p_share_mode text) returns text
language sql immutable parallel safe
as $$
  select nullif(coalesce(p_asked, case when p_share_mode = 'exclusive' then 'device_exclusive' end), 'shared')
$$;

-- Returns the cpu_milli that a class allocates: with an isolation class (cpu_isolation_on) whole cores.
create or replace function hwqueue.cpu_needed(p_cpu_milli bigint, p_isolation text) returns bigint
language sql immutable parallel safe
as $$
  select case when p_isolation is null then p_cpu_milli
    else 1000 * greatest(1, (p_cpu_milli + 999) / 1000) end
$$;

-- Returns why a node, or every node of a profile, does not honour the isolation that a class asks for. All
-- reasons are permanent. p_gpu_parents is node.gpu_parents, in the order of p_gpu_ids. Both are empty for a
-- profile: the classes judged per profile name no devices.
create or replace function hwqueue.isolation_conflicts(p_class hwqueue.placement_class, p_cpu text[],
  p_gpu text[], p_share_mode text, p_gpu_ids uuid[], p_gpu_parents uuid[])
returns table (code text, message text, predicate jsonb)
language sql immutable parallel safe
as $$
  select 'no_node_supports_class',
    format('the node does not honour CPU isolation %s', p_class.cpu_isolation),
    jsonb_build_object('cpu', p_class.cpu_isolation)
  where p_class.cpu_isolation <> all (p_cpu)
  union all
  select 'no_node_supports_class',
    format('the node does not honour GPU exclusivity %s', p_class.gpu_exclusivity),
    jsonb_build_object('gpu', p_class.gpu_exclusivity)
  where p_class.gpu_exclusivity <> all (p_gpu)
  union all
  select 'class_conflicts_with_daemon_mode', 'the node gives every GPU to one lease alone',
    jsonb_strip_nulls(jsonb_build_object('gpu', p_class.gpu_exclusivity,
      'gpu_milli', nullif(p_class.gpu_milli, 0)))
  where p_share_mode = 'exclusive' and (p_class.gpu_exclusivity = 'shared' or p_class.gpu_milli > 0)
  union all
  select 'class_conflicts_with_resource_id',
    format('device %s is %s', d.id,
      case when d.parent is null then 'whole, the lease asks for a part of one'
        else 'a part of another, which only partition_exclusive is given' end),
    jsonb_build_object('gpu', hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_share_mode),
      'resource', d.id)
  from unnest(p_class.gpu_wanted) w(id)
  join unnest(p_gpu_ids, p_gpu_parents) d(id, parent) on d.id = w.id
  where (hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_share_mode)
      is not distinct from 'partition_exclusive') <> (d.parent is not null)
$$;

-- Whether isolation_conflicts returns a row.
create or replace function hwqueue.has_isolation_conflict(p_class hwqueue.placement_class, p_cpu text[],
  p_gpu text[], p_share_mode text, p_gpu_ids uuid[], p_gpu_parents uuid[]) returns boolean
language plpgsql immutable parallel safe
as $$ begin return
  exists (
    select from hwqueue.isolation_conflicts(p_class, p_cpu, p_gpu, p_share_mode, p_gpu_ids, p_gpu_parents));
end $$;

-- Returns the resources that a normal placement names itself, without the single GPU that a GPU class
-- implies.
create or replace function hwqueue.own_resources(p_placement jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_placement -> 'resources' = '{"gpu": 1}' and p_placement -> 'isolation' ? 'gpu' then '{}'
    else coalesce(p_placement -> 'resources', '{}') end
$$;

-- Returns the resources that go with a GPU class: one GPU, unless the placement asks for a number or a
-- share.
-- Raises: QHC04 for an exclusive share of a GPU, naming the class.
create or replace function hwqueue.isolated_resources(p_isolation jsonb, p_resources jsonb, p_field text)
returns jsonb
language plpgsql immutable
as $$
begin
  if not coalesce(p_isolation ? 'gpu', false) or p_resources ? 'gpu' then
    return p_resources;
  elsif not p_resources ? 'gpu_milli' then
    return p_resources || '{"gpu": 1}';
  elsif p_isolation ->> 'gpu' <> 'shared' then
    perform hwqueue.refuse('QHC04',
      format('%s asks for a share of a GPU and for isolation %s', p_field, p_isolation ->> 'gpu'),
      jsonb_build_object('field', p_field || '.isolation.gpu', 'class', p_isolation ->> 'gpu'),
      'gpu_milli goes with "shared" or with no class; ask for whole devices (gpu) to have them alone');
  end if;
  return p_resources;
end
$$;

-- Returns resources in normal form: integers, zeros left out.
-- Raises: QHC03, QHC04.
create or replace function hwqueue.normalise_resources(p_resources jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_count int;
  v_bad_name text;
  v_resources jsonb;
begin
  if p_resources is null or jsonb_typeof(p_resources) = 'null' or p_resources = '{}' then
    return '{}'::jsonb;
  end if;
  if jsonb_typeof(p_resources) = 'object' then
    select count(*), min(r.key) filter (where length(r.key) > 63 or r.key !~ '^[a-z][a-z0-9_./-]*$'),
           jsonb_object_agg(r.key, r.amount) filter (where r.amount > 0)
    into v_count, v_bad_name, v_resources
    from (
      select e.key, hwqueue.json_integer(e.value, p_field || '.' || left(e.key, 100),
        case when e.key = 'gpu_milli' then 1 else 0 end,
        case e.key when 'gpu' then 1024 when 'gpu_milli' then 999 else 1000000000000 end, 'QHC03') as amount
      from jsonb_each(p_resources) e
    ) r;
  end if;
  if v_count is null or v_count > 32 then
    perform hwqueue.refuse_field('QHC03', p_field, 'must be an object of at most 32 resources',
      'for example {"cpu_milli": 4000, "memory_mib": 8192, "gpu": 1}');
  elsif v_bad_name is not null then
    perform hwqueue.refuse('QHC03',
      format('%s has a resource named %s', p_field, to_json(left(v_bad_name, 100))),
      jsonb_build_object('field', p_field || '.' || left(v_bad_name, 100)),
      'resource names are 1 to 63 characters of a-z, 0-9, _ . / - and start with a letter');
  elsif v_resources ?& array['gpu', 'gpu_milli'] then
    perform hwqueue.refuse('QHC04', format('%s asks for gpu and gpu_milli', p_field),
      jsonb_build_object('field', p_field || '.gpu_milli'),
      'ask for whole devices (gpu) or for a share of one (gpu_milli), not both');
  end if;
  return coalesce(v_resources, '{}');
end
$$;
