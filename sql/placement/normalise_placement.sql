-- The normal form of a placement: equal meanings give equal JSON. Keys that ask nothing are left out.
-- Locks: none. Raises: QHC03 malformed, QHC04 contradictory, QHC05 in the grammar but not served. Idempotent: yes.
create or replace function hwqueue.normalise_placement(p_placement jsonb, p_field text default 'placement') returns jsonb
language plpgsql immutable
as $$
declare
  v_key text;
  v_required jsonb;
  v_resources jsonb;
  v_preferred jsonb;
begin
  if p_placement is null or jsonb_typeof(p_placement) = 'null' or p_placement = '{}' then
    return '{}'::jsonb;
  end if;
  perform hwqueue.check_object(p_placement,
    array['require', 'prefer', 'tolerate', 'spread', 'resources', 'isolation'], p_field, 'QHC03');
  perform hwqueue.check_depth(p_placement, p_field, 'QHC03');
  if length(p_placement::text) > 65536 then
    perform hwqueue.refuse('QHC03', format('%s is %s characters long', p_field, length(p_placement::text)),
      jsonb_build_object('field', p_field), 'the limit is 65536; use labels instead of long lists of nodes');
  end if;
  select k into v_key from unnest(array['tolerate', 'spread', 'isolation']) k
  where jsonb_typeof(p_placement -> k) <> 'null' and p_placement -> k not in ('[]', '{}');
  if found then
    perform hwqueue.refuse('QHC05', format('%s.%s is part of the grammar but not served by this version', p_field, v_key),
      jsonb_build_object('field', p_field || '.' || v_key,
        'class', case when v_key = 'isolation' then coalesce(p_placement #> '{isolation,cpu}', p_placement #> '{isolation,gpu}') end),
      'leave it out; it is refused rather than ignored because ignoring it would weaken what you asked for');
  end if;
  v_required := case when jsonb_typeof(p_placement -> 'require') is distinct from 'null' and p_placement ? 'require'
                     then hwqueue.normalise_exprs(p_placement -> 'require', p_field || '.require', 0, 0) else '[]' end;
  v_preferred := hwqueue.normalise_preferences(p_placement -> 'prefer', p_field || '.prefer');
  v_resources := hwqueue.normalise_resources(p_placement -> 'resources', p_field || '.resources');
  perform hwqueue.check_contradictions(v_required, p_field || '.require');
  return case when v_required = '[]' then '{}' else jsonb_build_object('require', v_required) end
      || case when v_preferred = '[]' then '{}' else jsonb_build_object('prefer', v_preferred) end
      || case when v_resources = '{}' then '{}' else jsonb_build_object('resources', v_resources) end;
end
$$;

-- Two normal placements ANDed: both lists of requirements and of preferences, and the resources of whichever names them.
-- Locks: none. Raises: QHC04. Idempotent: yes.
create or replace function hwqueue.merge_placements(p_left jsonb, p_right jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_required jsonb := hwqueue.normal_set(coalesce(p_left -> 'require', '[]') || coalesce(p_right -> 'require', '[]'));
  v_preferred jsonb := hwqueue.normal_set(coalesce(p_left -> 'prefer', '[]') || coalesce(p_right -> 'prefer', '[]'));
begin
  perform hwqueue.check_contradictions(v_required, p_field);
  return jsonb_strip_nulls(jsonb_build_object('require', nullif(v_required, '[]'), 'prefer', nullif(v_preferred, '[]'),
    'resources', coalesce(p_left -> 'resources', p_right -> 'resources')));
end
$$;
