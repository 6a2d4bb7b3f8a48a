-- The graph of a workflow: its edges, their order, and the cycle where there is none.
--
-- workflows/spec calls order_named_steps. It finds for each step its level, the length of the longest path
-- that leads to it. Steps are numbered by level, then by name, so equal graphs have equal numbers.
--
-- Read order_named_steps, then step_levels.

-- Returns the new number of each step, from 1, in topological order; ties by name, bytewise. Checks that
-- the steps that are named exist.
-- Raises: QHF02; detail.cycle names the steps of a cycle.
create or replace function hwqueue.order_named_steps(p_steps jsonb[]) returns int[]
language plpgsql stable
as $$
declare
  v_names text[] := array(select s ->> 'name' from unnest(p_steps) with ordinality u(s, n) order by n);
  v_numbers jsonb := (select jsonb_object_agg(n, o) from unnest(v_names) with ordinality u(n, o));
  -- of a fixed length, unlike p_steps: Postgres reads an element without those before it
  v_finally boolean[] := array(select s ? 'finally' from unnest(p_steps) with ordinality u(s, n) order by n);
  v_from int[] := '{}';
  v_to int[] := '{}';
  v_levels int[];
  v_edge record;
begin
  for v_edge in
    select u.n as step_no, e.key as parent, u.s ? 'finally' as is_finally,
           u.s ->> 'name' as name, v_finally[(v_numbers ->> e.key)::int] as after_finally
    from unnest(p_steps) with ordinality u(s, n)
    cross join lateral (
      select k.key from jsonb_each(coalesce(u.s -> 'after', '{}')) k
      union
      select r.value #>> '{}' from jsonb_array_elements(coalesce(u.s -> 'reads', '[]')) r) e
  loop
    if not v_numbers ? v_edge.parent or v_edge.after_finally then
      perform hwqueue.refuse('QHF02', case when v_edge.after_finally
          then format('step %s comes after %s, a finally step', to_json(v_edge.name),
            to_json(v_edge.parent))
          else format('step %s names step %s, which does not exist', to_json(v_edge.name),
            to_json(v_edge.parent)) end,
        jsonb_build_object('field', format('spec.steps[%s].after', v_edge.step_no - 1),
          'step', v_edge.name), 'finally steps have no children; steps are: '
          || left(array_to_string(v_names, ', '), 200));
    end if;
    continue when v_edge.is_finally;
    v_from := v_from || (v_numbers ->> v_edge.parent)::int;
    v_to := v_to || v_edge.step_no::int;
  end loop;
  v_levels := hwqueue.step_levels(v_names, v_from, v_to);
  return array(
    select r.new_no::int
    from (select u.o, row_number() over (order by v_finally[u.o], u.l, u.n collate "C") as new_no
          from unnest(v_names, v_levels) with ordinality u(n, l, o)) r
    order by r.o);
end
$$;

-- Returns the level of each step: 0 for one without parents, else one more than that of its last parent.
-- Kahn's algorithm: steps and edges are looked at once each.
-- Raises: QHF02 for a cycle.
create or replace function hwqueue.step_levels(p_names text[], p_from int[], p_to int[]) returns int[]
language plpgsql immutable
as $$
declare
  v_count int := cardinality(p_names);
  v_targets int[] := array(
    select e.target from unnest(p_from, p_to) e(source, target) order by e.source);
  v_open int[] := array(
    select count(e.target)::int from generate_series(1, v_count) n
    left join unnest(p_to) e(target) on e.target = n group by n order by n);
  v_start int[] := array(
    select (1 + coalesce(sum(count(e.source)) over (order by n rows between unbounded preceding
      and 1 preceding), 0))::int
    from generate_series(1, v_count + 1) n left join unnest(p_from) e(source) on e.source = n
    group by n order by n);
  v_levels int[] := array_fill(0, array[v_count]);
  v_queue int[] := array(select n from generate_series(1, v_count) n where v_open[n] = 0);
  v_at int := 1;
  v_step int;
  v_target int;
begin
  while v_at <= cardinality(v_queue) loop
    v_step := v_queue[v_at];
    v_at := v_at + 1;
    for v_edge in v_start[v_step] .. v_start[v_step + 1] - 1 loop
      v_target := v_targets[v_edge];
      v_levels[v_target] := greatest(v_levels[v_target], v_levels[v_step] + 1);
      v_open[v_target] := v_open[v_target] - 1;
      if v_open[v_target] = 0 then
        v_queue := v_queue || v_target;
      end if;
    end loop;
  end loop;
  if cardinality(v_queue) < v_count then
    perform hwqueue.refuse_cycle(p_names, p_from, p_to, v_open);
  end if;
  return v_levels;
end
$$;

-- Names a cycle. p_open: how many parents of each step are not in order; of the steps of a cycle and of
-- those that come after one it is above 0.
-- Raises: QHF02, always.
create or replace function hwqueue.refuse_cycle(p_names text[], p_from int[], p_to int[], p_open int[])
returns void
language plpgsql immutable
as $$
declare
  v_parent int[] := array_fill(0, array[cardinality(p_names)]);
  v_seen int[] := array_fill(0, array[cardinality(p_names)]);
  v_step int;
  v_path int[] := '{}';
begin
  for v_edge in 1 .. coalesce(cardinality(p_from), 0) loop
    if p_open[p_from[v_edge]] > 0 and p_open[p_to[v_edge]] > 0 then
      v_parent[p_to[v_edge]] := p_from[v_edge];
      v_step := p_to[v_edge];
    end if;
  end loop;
  while v_seen[v_step] = 0 loop  -- up the parents until a step is met again
    v_path := v_step || v_path;
    v_seen[v_step] := cardinality(v_path);
    v_step := v_parent[v_step];
  end loop;
  v_path := v_path[1 : 1 + cardinality(v_path) - v_seen[v_step]];
  perform hwqueue.refuse('QHF02', 'steps wait for each other: ' || (
      select string_agg(p_names[s], ' -> ' order by n)
      from unnest(v_path || v_path[1]) with ordinality u(s, n)),
    jsonb_build_object('field', 'spec.steps', 'step', p_names[v_path[1]],
      'cycle', (select jsonb_agg(p_names[s] order by n) from unnest(v_path) with ordinality u(s, n))),
    'take one of them out of after; a binding to a result comes after its step, too');
end
$$;
