-- Resources in normal form: integers, zeros left out.
-- Locks: none. Raises: QHC03, QHC04. Idempotent: yes.
create or replace function hwqueue.normalise_resources(p_resources jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_key text;
  v_amount bigint;
  v_resources jsonb := '{}'::jsonb;
begin
  if p_resources is null or jsonb_typeof(p_resources) = 'null' then
    return '{}'::jsonb;
  end if;
  if jsonb_typeof(p_resources) <> 'object' or (select count(*) from jsonb_object_keys(p_resources)) > 32 then
    perform hwqueue.refuse('QHC03', format('%s must be an object of at most 32 resources', p_field),
      jsonb_build_object('field', p_field), 'for example {"cpu_milli": 4000, "memory_mib": 8192, "gpu": 1}');
  end if;
  for v_key in select k from jsonb_object_keys(p_resources) k loop
    if v_key !~ '^[a-z][a-z0-9_./-]{0,62}$' then
      perform hwqueue.refuse('QHC03', format('%s has a resource named %s', p_field, to_json(left(v_key, 100))),
        jsonb_build_object('field', p_field || '.' || left(v_key, 100)),
        'resource names are 1 to 63 characters of a-z, 0-9, _ . / - and start with a letter');
    end if;
    v_amount := hwqueue.json_integer(p_resources -> v_key, p_field || '.' || v_key, case when v_key = 'gpu_milli' then 1 else 0 end,
      case v_key when 'gpu' then 1024 when 'gpu_milli' then 999 else 1000000000000 end, 'QHC03');
    if v_amount > 0 then
      v_resources := v_resources || jsonb_build_object(v_key, v_amount);
    end if;
  end loop;
  if v_resources ?& array['gpu', 'gpu_milli'] then
    perform hwqueue.refuse('QHC04', format('%s asks for gpu and gpu_milli', p_field), jsonb_build_object('field', p_field || '.gpu_milli'),
      'ask for whole devices (gpu) or for a share of one (gpu_milli), not both');
  end if;
  return v_resources;
end
$$;
