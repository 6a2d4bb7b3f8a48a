-- Where the steps of a run may run: the placements of the workflow, the submission and the step, merged.
--
-- A level is {"affinity_tags", "placement"}: tags stay apart so that another level can override them key by
-- key. Example: a run asks {"gpu": true, "region": "us-east"}. A step with affinity override and {"gpu":
-- false} asks for a node without a GPU in that region.
--
-- Invariant: a contradiction is refused at submission. Nothing is weakened silently.
--
-- A run may be pinned to a version of the code: then each of its steps asks for nodes with that app_version,
-- whatever its affinity says of the levels.
--
-- An update of a run (workflows/update) is the innermost level of the steps that it is about.

-- Returns a level of a definition or a submission, in normal form, without what asks for nothing. A tag
-- that is null takes the outer level's tag away, where p_overrides.
-- Raises: QHC03, QHC04, QHW01, QHF02, naming the field.
create or replace function hwqueue.read_level(p_object jsonb, p_field text, p_overrides boolean)
returns jsonb
language plpgsql stable
as $$
declare
  v_tags jsonb := coalesce(nullif(p_object -> 'affinity_tags', 'null'), '{}');
  v_placement jsonb;
begin
  if not p_object ?| array['affinity_tags', 'placement', 'wire'] then
    return '{}';
  end if;
  v_placement := hwqueue.spawn_placement(
    jsonb_build_object('placement', p_object -> 'placement', 'wire', p_object -> 'wire'), p_field);
  if not p_overrides and jsonb_path_exists(v_tags, 'strict $.* ? (@ == null)', '{}', true) then
    perform hwqueue.refuse('QHF02', format('%s.affinity_tags has a null', p_field),
      jsonb_build_object('field', p_field || '.affinity_tags'),
      'null takes a tag of the run away: that needs affinity "override"');
  end if;
  perform hwqueue.normalise_tags(case jsonb_typeof(v_tags) when 'object' then hwqueue.without_nulls(v_tags)
    else v_tags end, p_field || '.affinity_tags');
  return hwqueue.present('affinity_tags', nullif(hwqueue.normal_value(v_tags), '{}'))
    || hwqueue.present('placement', nullif(v_placement, '{}'));
end
$$;

-- Returns tags as a placement. One that is null asks nothing.
create or replace function hwqueue.tags_placement(p_tags jsonb, p_field text) returns jsonb
language sql stable
as $$
  select case when hwqueue.without_nulls(coalesce(p_tags, '{}')) = '{}' then '{}'
    else jsonb_build_object('require', hwqueue.normalise_tags(hwqueue.without_nulls(p_tags), p_field)) end
$$;

-- Returns what an outer level still asks beside an inner one, as p_mode of the inner one says:
--   and       all of it.
--   override  not the tags that the inner one has, and not resources and isolation if that has either.
--   replace   nothing.
create or replace function hwqueue.kept_level(p_outer jsonb, p_inner jsonb, p_mode text) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return
  case p_mode when 'replace' then '{}' when 'and' then p_outer
    else hwqueue.present('affinity_tags', nullif((p_outer -> 'affinity_tags')
        - array(select jsonb_object_keys(coalesce(p_inner -> 'affinity_tags', '{}'))), '{}'))
      || hwqueue.present('placement', nullif((p_outer -> 'placement') - array(
        select k from unnest(array['resources', 'isolation']) k
        where p_inner -> 'placement' ?| array['resources', 'isolation']), '{}')) end;
end $$;

-- Returns two levels as one; what the inner one leaves of the outer one (kept_level) must hold, too.
-- Raises: QHC04 where both cannot hold.
create or replace function hwqueue.merge_levels(p_outer jsonb, p_inner jsonb, p_mode text, p_field text)
returns jsonb
language plpgsql stable
as $$
declare
  v_kept jsonb := hwqueue.kept_level(p_outer, p_inner, p_mode);
  v_outer jsonb := coalesce(v_kept -> 'placement', '{}');
  v_outer_tags jsonb := coalesce(v_kept -> 'affinity_tags', '{}');
  v_inner_tags jsonb := coalesce(p_inner -> 'affinity_tags', '{}');
  v_both jsonb;
  v_placement jsonb;
begin
  if v_kept = '{}' then
    return p_inner;
  end if;
  -- tags of one key with two values: one goes into the placement, so that merging compares them
  select jsonb_object_agg(t.key, t.value) into v_both
  from jsonb_each(v_outer_tags) t
  where v_inner_tags -> t.key <> t.value and 'null' not in (t.value, v_inner_tags -> t.key);
  if v_both is not null then
    v_outer := hwqueue.merge_placements(v_outer, hwqueue.tags_placement(v_both, p_field), p_field);
  end if;
  v_placement := hwqueue.merge_placements(v_outer, coalesce(p_inner -> 'placement', '{}'), p_field);
  v_both := v_inner_tags || v_outer_tags || hwqueue.without_nulls(v_inner_tags);  -- a null drops no kept tag
  perform hwqueue.merge_placements(v_placement, hwqueue.tags_placement(v_both, p_field), p_field);
  return hwqueue.present('affinity_tags', nullif(v_both, '{}'))
    || hwqueue.present('placement', nullif(v_placement, '{}'));
end
$$;

-- Returns the placement that a level asks for, as a lease has it.
-- Raises: QHC03, QHC04.
create or replace function hwqueue.level_placement(p_level jsonb, p_field text) returns jsonb
language sql stable
as $$
  select hwqueue.check_cost(hwqueue.merge_placements(coalesce(p_level -> 'placement', '{}'),
    hwqueue.tags_placement(p_level -> 'affinity_tags', p_field), p_field), p_field)
$$;

-- Returns what a step asks of its node beside its levels when its run is pinned to a version of the code, or
-- by an update of it.
create or replace function hwqueue.version_placement(p_run hwqueue.run, p_update jsonb default null)
returns jsonb
language sql stable
as $$
  select hwqueue.tags_placement(hwqueue.present('app_version', nullif(
    case when p_update ? 'app_version' then p_update else p_run.policy end -> 'app_version', 'null')),
    'app_version')
$$;

-- Returns a run as the nested run of a step has it above itself, with the update of that step.
-- Raises: QHC04.
create or replace function hwqueue.updated_run(p_run hwqueue.run, p_update jsonb) returns hwqueue.run
language plpgsql stable
as $$
declare
  v_run hwqueue.run := p_run;
begin
  if p_update ? 'app_version' then
    v_run.policy := v_run.policy - 'app_version'
      || hwqueue.present('app_version', nullif(p_update -> 'app_version', 'null'));
  end if;
  if p_update ? 'level' then
    v_run.level := hwqueue.merge_levels(p_run.level, p_update -> 'level',
      coalesce(p_update ->> 'affinity', 'and'), 'update');
  end if;
  return v_run;
end
$$;
