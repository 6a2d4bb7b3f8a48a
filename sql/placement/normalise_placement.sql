-- The normal form of a placement: equal meanings give equal JSON. Keys that ask nothing are left out.
-- Locks: none. Raises: QHC03 malformed, QHC04 contradictory, QHC05 in the grammar but not served. Idempotent: yes.
create or replace function hwqueue.normalise_placement(p_placement jsonb, p_field text default 'placement') returns jsonb
language plpgsql immutable
as $$
declare
  v_placement jsonb;
  v_required jsonb;
  v_preferred jsonb;
  v_resources jsonb;
begin
  if p_placement is null or jsonb_typeof(p_placement) = 'null' or p_placement = '{}' then
    return '{}'::jsonb;
  end if;
  v_placement := hwqueue.check_object(p_placement,
    array['require', 'prefer', 'tolerate', 'spread', 'resources', 'isolation'], p_field, 'QHC03');
  v_placement := hwqueue.check_depth(v_placement, p_field, 'QHC03');
  if length(v_placement::text) > 65536 then
    perform hwqueue.refuse('QHC03', format('%s is %s characters long', p_field, length(v_placement::text)),
      jsonb_build_object('field', p_field), 'the limit is 65536; use labels instead of long lists of nodes');
  elsif v_placement ?| array['tolerate', 'spread', 'isolation'] then
    perform hwqueue.refuse_unserved(v_placement, p_field);
  end if;
  if jsonb_typeof(v_placement -> 'require') <> 'null' then
    v_required := hwqueue.normalise_exprs(v_placement -> 'require', p_field || '.require', 0, 0);
    v_required := hwqueue.check_contradictions(v_required, p_field || '.require');
  end if;
  v_preferred := hwqueue.normalise_preferences(v_placement -> 'prefer', p_field || '.prefer');
  v_resources := hwqueue.normalise_resources(v_placement -> 'resources', p_field || '.resources');
  return hwqueue.build_placement(v_required, v_preferred, v_resources);
end
$$;

-- A placement of normal parts; those that ask nothing are left out.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.build_placement(p_required jsonb, p_preferred jsonb, p_resources jsonb) returns jsonb
language sql immutable
as $$
  select case when p_required <> '[]' then jsonb_build_object('require', p_required) else '{}' end
      || case when p_preferred <> '[]' then jsonb_build_object('prefer', p_preferred) else '{}' end
      || case when p_resources <> '{}' then jsonb_build_object('resources', p_resources) else '{}' end
$$;

-- Refuses what the grammar has and this version does not serve, unless it asks nothing.
-- Locks: none. Raises: QHC05. Idempotent: yes.
create or replace function hwqueue.refuse_unserved(p_placement jsonb, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_key text;
begin
  select k into v_key from unnest(array['tolerate', 'spread', 'isolation']) k
  where jsonb_typeof(p_placement -> k) <> 'null' and p_placement -> k not in ('[]', '{}');
  if found then
    perform hwqueue.refuse('QHC05', format('%s.%s is part of the grammar but not served by this version', p_field, v_key),
      jsonb_build_object('field', p_field || '.' || v_key,
        'class', case when v_key = 'isolation' then coalesce(p_placement #> '{isolation,cpu}', p_placement #> '{isolation,gpu}') end),
      'leave it out; it is refused rather than ignored because ignoring it would weaken what you asked for');
  end if;
end
$$;

-- Two normal placements ANDed: both lists of requirements and of preferences, and the resources of whichever names them.
-- Locks: none. Raises: QHC04. Idempotent: yes.
create or replace function hwqueue.merge_placements(p_left jsonb, p_right jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
begin
  return hwqueue.build_placement(
    hwqueue.check_contradictions(
      hwqueue.normal_set(coalesce(p_left -> 'require', '[]') || coalesce(p_right -> 'require', '[]')), p_field),
    hwqueue.normal_set(coalesce(p_left -> 'prefer', '[]') || coalesce(p_right -> 'prefer', '[]')),
    coalesce(p_left -> 'resources', p_right -> 'resources'));
end
$$;
