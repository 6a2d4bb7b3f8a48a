-- Updates of runs: another placement for steps that were not released.
--
-- Example: a run is pinned to version 1.9 of the code, and the last node that ran it is gone. An update with
-- {"app_version": "2.0"} lets the steps that wait ask for that version instead.
--
-- An update is the innermost level of a step's placement (workflows/levels): {"level", "affinity",
-- "app_version"}, kept as `update` in step.own. The next update of the step takes the place of its level, or
-- of its version, or of both, as its keys say. Classes are found as at submission, by step_class; a dry run
-- computes drafts of them.
--
-- Invariant: a step is released with its former class or with its new one. Who changes it holds its row, and
-- of a map that has begun the tally of its items, so that no session spawns any meanwhile. A release that
-- meets them leaves an arrival; an update that meets a release waits for it, and finds the step released.

-- Returns those of some steps (null: of all) that an update may change: those that have a class and were not
-- released, maps that have items left to spawn, and nested runs that are not submitted. Refuses a step of
-- p_named that is not among them.
-- Raises: QHF04, QHA01.
create or replace function hwqueue.updatable_steps(p_run hwqueue.run, p_of int[], p_named int[])
returns int[]
language plpgsql volatile
as $$
declare
  v_found int[] := array(
    select d.step_no
    from hwqueue.workflow_step d
    cross join lateral (  -- a fence (offset 0): by key, also before the tables are analyzed
      select x.state, x.class_id from hwqueue.step x
      where x.run_id = p_run.run_id and x.step_no = d.step_no offset 0) s
    where d.workflow_id = p_run.workflow_id and (p_of is null or d.step_no = any (p_of))
      and case when d.kind = 'workflow'
          then s.state in ('waiting', 'held', 'running')
            and (hwqueue.nested_run(p_run.run_id, d.step_no)).run_id is null
        when d.kind = 'map' and s.state = 'running' then exists (
          select from hwqueue.map m
          join hwqueue.tally t on t.run_id = m.run_id and t.step_no = m.step_no
            and t.part > 0 and t.need < m.items where m.run_id = p_run.run_id and m.step_no = d.step_no)
        else s.state in ('waiting', 'held') and s.class_id is not null end
    order by d.step_no);
  v_step record;
begin
  if p_named <@ v_found is not false then
    return v_found;
  end if;
  select d.name, d.kind, s.state, s.class_id, n.run_id as nested_run_id into v_step
  from hwqueue.workflow_step d
  join hwqueue.step s on s.run_id = p_run.run_id and s.step_no = d.step_no
  left join lateral hwqueue.nested_run(p_run.run_id, d.step_no) n on d.kind = 'workflow'
  where d.workflow_id = p_run.workflow_id
    and d.step_no = (select min(n) from unnest(p_named) n where n <> all (v_found));
  if v_step.class_id is null and v_step.kind <> 'workflow' then
    perform hwqueue.refuse('QHA01', format('step %s: a step of kind %s has no lease', to_json(v_step.name),
        v_step.kind),
      jsonb_build_object('field', 'p_steps', 'step', v_step.name), 'leave it out: it runs on no node');
  end if;
  perform hwqueue.refuse('QHF04', format('step %s is %s', to_json(v_step.name),
      case when v_step.nested_run_id is not null and v_step.state in ('waiting', 'held', 'running')
        then 'run ' || v_step.nested_run_id
        else hwqueue.shown_state(v_step.state, p_run) end),
    jsonb_build_object('run_id', p_run.run_id, 'step', v_step.name, 'state', v_step.state)
      || hwqueue.present('nested_run_id', to_jsonb(v_step.nested_run_id)),
    case when v_step.nested_run_id is not null
      then format('update that run: select hwqueue.update_steps(p_run => ''%s'', ...)', v_step.nested_run_id)
      else 'a step that was released keeps its placement, and so does an item that was spawned: leave it '
        'out' end);
end
$$;

-- Reads the arguments of an update of a run that has not ended. changes: as step.own keeps them, without what
-- they say nothing about; named: the steps that the call names; null: all.
-- Raises: QHF04, QHF06, QHA01, QHF02, QHC03, QHC04, QHW01, naming the field.
create or replace function hwqueue.read_update_call(p_run hwqueue.run, p_changes jsonb, p_steps text[],
  out changes jsonb, out named int[])
language plpgsql stable
as $$
declare
  v_mode text;
begin
  if array_ndims(p_steps) > 1 or array_position(p_steps, null) is not null then
    perform hwqueue.refuse('QHA01', 'p_steps must be a list of names', '{"field": "p_steps"}',
      'for example {train,publish}; null: all that were not released');
  end if;
  perform hwqueue.check_object(p_changes, array['affinity_tags', 'placement', 'wire', 'affinity',
    'app_version'], 'changes');
  changes := '{}';
  if p_changes ?| array['affinity_tags', 'placement', 'wire', 'affinity'] then
    v_mode := coalesce(hwqueue.json_choice(p_changes -> 'affinity', 'changes.affinity',
      array['and', 'override', 'replace']), 'and');
    changes := jsonb_build_object('affinity', v_mode,
      'level', hwqueue.read_level(p_changes, 'changes', v_mode <> 'and'));
  end if;
  if p_changes ? 'app_version' then
    changes := changes || jsonb_build_object('app_version',
      hwqueue.json_text(p_changes -> 'app_version', 'changes.app_version', 100));
  end if;
  if changes = '{}' then
    perform hwqueue.refuse('QHA01', 'changes says nothing', '{"field": "changes"}',
      'for example {"affinity_tags": {"zone": "west"}, "affinity": "override"}, or {"app_version": null}');
  elsif p_run.finished_at is not null then
    perform hwqueue.refuse_run_state(p_run, 'a run that has ended releases no step: submit another one');
  end if;
  named := case when p_steps is not null then hwqueue.named_steps(p_run, to_jsonb(p_steps), 'p_steps') end;
end
$$;

-- Returns steps in groups that have one class before an update and one after it. own: as their rows have it
-- then: a level that asks nothing besides takes a former one away, and the class that a step had before it
-- was near others goes: it is found again. content: that as step_content takes it. class_id, former: before.
-- is_nested: they have none, and are runs later.
create or replace function hwqueue.update_groups(p_run hwqueue.run, p_steps int[], p_update jsonb)
returns table (steps int[], is_nested boolean, class_id bigint, former jsonb, own jsonb, content jsonb)
language sql stable
as $$
  select g.steps, g.is_nested, g.class_id, g.former, g.own, coalesce(g.own -> 'level', '{}')
      || jsonb_build_object('options', coalesce(g.own, '{}') - array['level', 'update'])
      || hwqueue.present('update', g.own -> 'update')
  from (
    select array_agg(s.step_no order by s.step_no) as steps, d.kind = 'workflow' as is_nested, s.class_id,
           s.own as former, nullif((coalesce(s.own, '{}') - 'update') || hwqueue.present('update', nullif(
             case when u.update -> 'level' = '{}' and u.update ->> 'affinity' <> 'replace'
               then u.update - array['level', 'affinity'] else u.update end, '{}')), '{}') as own
    from unnest(p_steps) i(step_no)
    -- fences (offset 0): by key, also before the tables are analyzed
    cross join lateral (
      select x.kind, x.class_no from hwqueue.workflow_step x
      where x.workflow_id = p_run.workflow_id and x.step_no = i.step_no offset 0) d
    cross join lateral (
      select x.step_no, coalesce((x.own ->> 'base_class')::bigint, x.class_id) as class_id,
             nullif(x.own - 'base_class', '{}') as own
      from hwqueue.step x
      where x.run_id = p_run.run_id and x.step_no = i.step_no offset 0) s
    cross join lateral (select coalesce(s.own -> 'update', '{}') || p_update as update) u
    group by d.kind = 'workflow', d.class_no, s.class_id, s.own, u.update) g
  order by g.steps[1]
$$;

-- Locks those of some steps (null: of all) that an update may change, and returns them.
-- Who ends a step waits for its row, and may have released others that are missing here. So this waits for
-- one step at a time, and meanwhile holds none: they would wait for each other. Nor does it hold one
-- afterwards that was released: who runs it must not wait for a caller that stays open.
-- Of a map that has begun a step is missed with its items: who holds these ends it.
-- Locks: the tallies of items, then the steps, all skip locked; hold_steps. Raises: QHL09, and as
-- updatable_steps.
create or replace function hwqueue.hold_updatable(p_run hwqueue.run, p_named int[])
returns int[]
language plpgsql volatile
as $$
declare
  v_due int[] := p_named;
  v_missed int[];
  v_maps int[];
  v_held int[];
begin
  loop
    v_due := hwqueue.updatable_steps(p_run, v_due, p_named);
    begin
      v_maps := array(
        select m.step_no
        from (select distinct t.step_no from hwqueue.tally t
              where t.run_id = p_run.run_id and t.step_no = any (v_due) and t.part > 0 order by 1) m
        where hwqueue.hold_items(p_run.run_id, m.step_no) is not null);
      v_held := array(
        select s.step_no from hwqueue.step s
        where s.run_id = p_run.run_id and s.step_no = any (v_due)
        for no key update skip locked);
      -- statements after the locks: a map may have begun meanwhile; what was released is not among them any
      -- more
      v_missed := array(
        select d.step_no from unnest(v_due) d(step_no)
        where d.step_no <> all (v_held) or d.step_no <> all (v_maps) and exists (
          select from hwqueue.tally t
          where t.run_id = p_run.run_id and t.step_no = d.step_no and t.part > 0)
        order by 1);
      if v_missed = '{}' and hwqueue.updatable_steps(p_run, v_due, null) = v_due then
        return v_due;
      end if;
      perform hwqueue.abort_subtransaction();
    exception when sqlstate 'HWX01' then  -- all locks are gone
    end;
    begin
      perform hwqueue.hold_steps(p_run.run_id, v_missed[1:1], null);
      perform hwqueue.abort_subtransaction();
    exception when sqlstate 'HWX01' then  -- its lock is gone, too
    end;
  end loop;
end
$$;

-- Returns what an update would make of steps. Those of equal content have equal classes; class: null of
-- nested runs; run: as these would have it above themselves. changed: they ask something else than before.
-- Raises: as updatable_steps and step_class.
create or replace function hwqueue.planned_updates(p_run hwqueue.run, p_update jsonb, p_named int[])
returns table (step_no int, changed boolean, class hwqueue.placement_class, came_from jsonb,
  run hwqueue.run)
language plpgsql volatile
as $$
declare
  v_workflow hwqueue.workflow := (select w from hwqueue.workflow w where w.workflow_id = p_run.workflow_id);
  v_steps jsonb[] := array(select jsonb_array_elements(v_workflow.steps));
  v_group record;
  v_found record;
begin
  for v_group in
    select g.* from hwqueue.update_groups(p_run, hwqueue.updatable_steps(p_run, p_named, p_named), p_update) g
  loop
    v_found := hwqueue.step_class(v_workflow.settings, p_run, v_steps[v_group.steps[1]],
      v_group.content, true);
    class := v_found.class;
    run := case when v_group.is_nested then hwqueue.updated_run(p_run, v_group.own -> 'update') end;
    came_from := case when run is null then hwqueue.step_origins(v_workflow.settings, p_run,
      v_steps[v_group.steps[1]], v_group.content, (v_found.target).defaults, class.placement) end;
    changed := (class.class_id, v_group.own) is distinct from (v_group.class_id, v_group.former);
    foreach step_no in array v_group.steps loop
      return next;
    end loop;
  end loop;
end
$$;
