-- Resources in normal form: integers, zeros left out. Raises: QHC03, QHC04.
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
      select e.key, hwqueue.json_integer(e.value, p_field || '.' || left(e.key, 100), case when e.key = 'gpu_milli' then 1 else 0 end,
               case e.key when 'gpu' then 1024 when 'gpu_milli' then 999 else 1000000000000 end, 'QHC03') as amount
      from jsonb_each(p_resources) e
    ) r;
  end if;
  if v_count is null or v_count > 32 then
    perform hwqueue.refuse('QHC03', format('%s must be an object of at most 32 resources', p_field),
      jsonb_build_object('field', p_field), 'for example {"cpu_milli": 4000, "memory_mib": 8192, "gpu": 1}');
  elsif v_bad_name is not null then
    perform hwqueue.refuse('QHC03', format('%s has a resource named %s', p_field, to_json(left(v_bad_name, 100))),
      jsonb_build_object('field', p_field || '.' || left(v_bad_name, 100)),
      'resource names are 1 to 63 characters of a-z, 0-9, _ . / - and start with a letter');
  elsif v_resources ?& array['gpu', 'gpu_milli'] then
    perform hwqueue.refuse('QHC04', format('%s asks for gpu and gpu_milli', p_field), jsonb_build_object('field', p_field || '.gpu_milli'),
      'ask for whole devices (gpu) or for a share of one (gpu_milli), not both');
  end if;
  return coalesce(v_resources, '{}');
end
$$;
