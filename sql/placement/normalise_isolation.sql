-- Isolation in normal form: {"cpu", "gpu"}, each only if given; a class that is not given is the node's default, whatever that is.
-- Raises: QHC03, naming the class.
create or replace function hwqueue.normalise_isolation(p_isolation jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_isolation jsonb;
  v_kind text;
  v_classes text[];
begin
  if p_isolation is null or jsonb_typeof(p_isolation) = 'null' then
    return '{}'::jsonb;
  end if;
  v_isolation := jsonb_strip_nulls(hwqueue.check_object(p_isolation, array['cpu', 'gpu'], p_field, 'QHC03'));
  foreach v_kind in array array['cpu', 'gpu'] loop
    v_classes := case v_kind when 'cpu' then array['best_effort', 'whole_core', 'strict_isolated']
      else array['shared', 'session_exclusive', 'device_exclusive', 'partition_exclusive'] end;
    if v_isolation ? v_kind
       and (jsonb_typeof(v_isolation -> v_kind) <> 'string' or v_isolation ->> v_kind <> all (v_classes)) then
      perform hwqueue.refuse('QHC03', format('%s.%s must be one of %s, got %s', p_field, v_kind, array_to_string(v_classes, ', '),
          left((v_isolation -> v_kind)::text, 60)),
        jsonb_build_object('field', p_field || '.' || v_kind, 'class', left(v_isolation ->> v_kind, 60)),
        'leave it out to take what the node offers by default');
    end if;
  end loop;
  return v_isolation;
end
$$;

-- The resources that go with a GPU class: it is for a device, so without a count it asks for one; and a share of a device is never
-- exclusive. Raises: QHC04, naming the class.
create or replace function hwqueue.isolated_resources(p_isolation jsonb, p_resources jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
begin
  if not coalesce(p_isolation ? 'gpu', false) or p_resources ? 'gpu' then
    return p_resources;
  elsif not p_resources ? 'gpu_milli' then
    return p_resources || '{"gpu": 1}';
  elsif p_isolation ->> 'gpu' <> 'shared' then
    perform hwqueue.refuse('QHC04', format('%s asks for a share of a GPU and for isolation %s', p_field, p_isolation ->> 'gpu'),
      jsonb_build_object('field', p_field || '.isolation.gpu', 'class', p_isolation ->> 'gpu'),
      'gpu_milli goes with "shared" or with no class; ask for whole devices (gpu) to have them alone');
  end if;
  return p_resources;
end
$$;
