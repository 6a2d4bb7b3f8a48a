-- Two normal placements ANDed: lists are joined; isolation, resources and strength may be given by both only if they agree.
-- Raises: QHC04.
create or replace function hwqueue.merge_placements(p_left jsonb, p_right jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_isolation jsonb := coalesce(p_left -> 'isolation', p_right -> 'isolation');
  v_resources jsonb := coalesce(p_left -> 'resources', p_right -> 'resources');
  v_other jsonb;
begin
  if p_left -> 'strength' <> p_right -> 'strength' then
    perform hwqueue.refuse('QHC04', format('%s asks for strength %s and %s', p_field, p_left -> 'strength', p_right -> 'strength'),
      jsonb_build_object('field', p_field), 'give the strength once');
  end if;
  if v_isolation is not null or p_left ? 'resources' and p_right ? 'resources' then
    v_isolation := hwqueue.merge_isolation(p_left -> 'isolation', p_right -> 'isolation', p_field);
    v_resources := hwqueue.own_resources(p_left);
    v_other := hwqueue.own_resources(p_right);
    if v_resources <> '{}' and v_other <> '{}' and v_resources <> v_other then
      perform hwqueue.refuse('QHC04', format('%s asks for resources %s and %s', p_field, v_resources, v_other),
        jsonb_build_object('field', p_field), 'give the resources once');
    end if;
    v_resources := hwqueue.isolated_resources(
      v_isolation, case when v_resources <> '{}' then v_resources else v_other end, p_field);
  end if;
  return hwqueue.build_placement(
    hwqueue.check_contradictions(hwqueue.merge_lists(p_left -> 'require', p_right -> 'require'), p_field),
    hwqueue.merge_lists(p_left -> 'prefer', p_right -> 'prefer'),
    hwqueue.merge_lists(p_left -> 'tolerate', p_right -> 'tolerate'),
    hwqueue.merge_lists(p_left -> 'spread', p_right -> 'spread'),
    v_resources, v_isolation, coalesce(p_left ->> 'strength', p_right ->> 'strength')::int);
end
$$;

-- Two lists of normal elements in one; null when there is none.
create or replace function hwqueue.merge_lists(p_left jsonb, p_right jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_left is not null or p_right is not null
    then hwqueue.normal_set(coalesce(p_left, '[]') || coalesce(p_right, '[]')) end
$$;

-- The classes that either side asks for; null when neither does. Raises: QHC04, naming the class.
create or replace function hwqueue.merge_isolation(p_left jsonb, p_right jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_kind text;
begin
  if p_left is null or p_right is null then
    return coalesce(p_left, p_right);
  end if;
  foreach v_kind in array array['cpu', 'gpu'] loop
    if p_left -> v_kind <> p_right -> v_kind then
      perform hwqueue.refuse('QHC04', format('%s asks for %s isolation %s and %s', p_field, v_kind, p_left ->> v_kind, p_right ->> v_kind),
        jsonb_build_object('field', p_field, 'class', p_right ->> v_kind), 'ask for one class, in one place');
    end if;
  end loop;
  return p_left || p_right;
end
$$;

-- The resources that a normal placement gives itself: not the one GPU that its GPU class alone stands for.
create or replace function hwqueue.own_resources(p_placement jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_placement -> 'resources' = '{"gpu": 1}' and p_placement -> 'isolation' ? 'gpu' then '{}'
    else coalesce(p_placement -> 'resources', '{}') end
$$;
