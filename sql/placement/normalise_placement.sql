-- The normal form of a placement: equal meanings give equal JSON. Keys that ask nothing are left out.
-- Raises: QHC03 malformed, QHC04 contradictory.
create or replace function hwqueue.normalise_placement(p_placement jsonb, p_field text default 'placement') returns jsonb
language plpgsql stable
as $$
declare
  v_placement jsonb;
  v_required jsonb;
  v_preferred jsonb;
  v_resources jsonb;
  v_isolation jsonb;
  v_strength int;
begin
  if p_placement is null or jsonb_typeof(p_placement) = 'null' or p_placement = '{}' then
    return '{}'::jsonb;
  end if;
  v_placement := hwqueue.check_object(hwqueue.check_numbers(p_placement, p_field, 'QHC03'),
    array['require', 'prefer', 'strength', 'tolerate', 'spread', 'resources', 'isolation'], p_field, 'QHC03');
  v_placement := hwqueue.check_depth(v_placement, p_field, 'QHC03');
  if length(v_placement::text) > 65536 then
    perform hwqueue.refuse('QHC03', format('%s is %s characters long', p_field, length(v_placement::text)),
      jsonb_build_object('field', p_field), 'the limit is 65536; use labels instead of long lists of nodes');
  end if;
  perform hwqueue.check_patterns(v_placement, p_field);  -- before any is compiled
  if jsonb_typeof(v_placement -> 'require') <> 'null' then
    v_required := hwqueue.normalise_exprs(v_placement -> 'require', p_field || '.require', 0, 0, false);
    v_required := hwqueue.check_contradictions(v_required, p_field || '.require');
  end if;
  v_preferred := hwqueue.normalise_preferences(v_placement -> 'prefer', p_field || '.prefer');
  v_strength := hwqueue.json_integer(v_placement -> 'strength', p_field || '.strength', 1, 100, 'QHC03');
  v_resources := hwqueue.normalise_resources(v_placement -> 'resources', p_field || '.resources');
  if not v_placement ?| array['tolerate', 'spread', 'isolation'] then  -- what most are
    return hwqueue.check_cost(
      hwqueue.build_placement(v_required, v_preferred, null, null, v_resources, null, v_strength), p_field);
  end if;
  v_isolation := hwqueue.normalise_isolation(v_placement -> 'isolation', p_field || '.isolation');
  return hwqueue.check_cost(hwqueue.build_placement(v_required, v_preferred,
    hwqueue.normalise_tolerations(v_placement -> 'tolerate', p_field || '.tolerate'),
    hwqueue.normalise_spread(v_placement -> 'spread', p_field || '.spread'),
    hwqueue.isolated_resources(v_isolation, v_resources, p_field), v_isolation, v_strength), p_field);
end
$$;

-- A placement of normal parts; those that are null or ask nothing are left out. So is the default of strength:
-- what was written before there was one keeps its digest.
create or replace function hwqueue.build_placement(p_required jsonb, p_preferred jsonb, p_tolerations jsonb,
    p_spread jsonb, p_resources jsonb, p_isolation jsonb, p_strength int) returns jsonb
language sql immutable
as $$
  select case when p_required <> '[]' then jsonb_build_object('require', p_required) else '{}' end
      || case when p_preferred <> '[]' then jsonb_build_object('prefer', p_preferred) else '{}' end
      || case when p_tolerations <> '[]' then jsonb_build_object('tolerate', p_tolerations) else '{}' end
      || case when p_spread <> '[]' then jsonb_build_object('spread', p_spread) else '{}' end
      || case when p_resources <> '{}' then jsonb_build_object('resources', p_resources) else '{}' end
      || case when p_isolation <> '{}' then jsonb_build_object('isolation', p_isolation) else '{}' end
      || case when p_strength <> 100 then jsonb_build_object('strength', p_strength) else '{}' end
$$;
