-- Steps near other steps: in the place where those have run.
--
-- Example: "score" is near "train", by rack. Train ran on a node of rack 7, so the lease of score gets the
-- class of its step with {"rack": [7]} besides. All runs share the class of a task and a place.
--
-- Items of a map may each be near the item of another map that has the same number: "render" is near "load"
-- with match "item". Item 17 asks for the node where item 17 of load has run (near_items).
--
-- Invariant: a release never raises, and waits for nobody. A step whose place contradicts its placement
-- fails, with the reason in its row. The class needs no row in run_class: the lease refers to it from the
-- transaction that finds it.

-- Returns `near` of a step in normal form: {"steps", "what", "mode", "away", "gone", "weight", "match"},
-- without defaults. Null: the step has none.
-- Raises: QHF02, QHC03, naming the field.
create or replace function hwqueue.read_near(p_near jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_near jsonb;
  v_steps jsonb;
begin
  if p_near is null or p_near = 'null' then
    return null;
  end if;
  perform hwqueue.check_object(p_near, hwqueue.keys_of('near'), p_field, 'QHF02');
  v_near := hwqueue.read_keys(p_near, 'near', p_field, 'QHF02');
  v_steps := (
    select jsonb_agg(distinct hwqueue.json_text(s.value, format('%s.step[%s]', p_field, s.ordinality - 1),
      100, 'QHF02'))
    from jsonb_array_elements(hwqueue.json_list(case jsonb_typeof(p_near -> 'step')
      when 'array' then p_near -> 'step' else jsonb_build_array(p_near -> 'step') end, p_field || '.step',
      100, 'a step, or a list of them', 'for example {"step": "train", "what": "rack"}', 'QHF02'))
      with ordinality s);
  if v_steps is null or v_steps @> '[null]' then
    perform hwqueue.refuse('QHF02', format('%s names no step', p_field),
      jsonb_build_object('field', p_field || '.step'), 'for example {"step": "train", "what": "rack"}');
  elsif p_near ? 'weight' and v_near ? 'mode'
    or p_near ? 'gone' and (not v_near ? 'mode' or v_near ? 'away') then
    perform hwqueue.refuse('QHF02', case when p_near ? 'gone'
        then format('%s.gone is for mode "require" without away', p_field)
        else format('%s.weight is for mode "prefer"', p_field) end,
      jsonb_build_object('field', p_field || case when p_near ? 'gone' then '.gone' else '.weight' end),
      'leave it out, or set mode');
  end if;
  return v_near || jsonb_build_object('steps', v_steps,
    'what', coalesce(hwqueue.json_domain(p_near -> 'what', p_field || '.what', 'QHC03'), 'node'));
end
$$;

-- Refuses steps that are near a step which does not come before them, or has no leases and so no place; that
-- match items of what is no map; or that must be away from a map, of whose places only some are read. A
-- finally step comes after all others.
-- p_order: the number of each step in topological order.
-- Raises: QHF02, naming the step.
create or replace function hwqueue.check_near_steps(p_steps jsonb[], p_order int[]) returns void
language plpgsql immutable
as $$
declare
  v_numbers jsonb := (
    select jsonb_object_agg(u.s ->> 'name', u.n) from unnest(p_steps, p_order) u(s, n));
  v_facts jsonb;  -- by name: of thousands of steps each may be near a hundred
  v_none bit varying := repeat('0', cardinality(p_steps))::bit varying;
  -- by number: all that come before
  v_before bit varying[] := array_fill(v_none, array[cardinality(p_steps)]);
  v_mask bit varying;
  v_step record;
  v_name text;
  v_kind text;
  v_near jsonb;
  v_why text;
begin
  if not exists (select from unnest(p_steps) s where s ? 'near') then
    return;
  end if;
  v_facts := (
    select jsonb_object_agg(s ->> 'name', jsonb_strip_nulls(jsonb_build_object('name', s -> 'name',
      'kind', s -> 'kind', 'finally', s -> 'finally')))
    from unnest(p_steps) s);
  for v_step in
    select u.s as spec, u.n as no, u.o - 1 as at, u.s ? 'finally' as is_final
    from unnest(p_steps, p_order) with ordinality u(s, n, o) order by u.n
  loop
    v_mask := v_none;
    for v_name in select k from jsonb_object_keys(coalesce(v_step.spec -> 'after', '{}')) k loop
      v_mask := set_bit(v_mask | v_before[(v_numbers ->> v_name)::int], (v_numbers ->> v_name)::int - 1, 1);
    end loop;
    v_before[v_step.no] := v_mask;
    for v_name in select jsonb_array_elements_text(v_step.spec #> '{near,steps}') loop
      if not v_numbers ? v_name
        or get_bit(v_mask, (v_numbers ->> v_name)::int - 1) = 0 and not v_step.is_final
        or v_step.is_final and v_facts -> v_name ? 'finally' then
        perform hwqueue.refuse('QHF02', format('step %s is near %s, which does not come before it',
            v_step.spec -> 'name', to_json(v_name)),
          jsonb_build_object('field', format('spec.steps[%s].near', v_step.at),
            'step', v_step.spec -> 'name'),
          'add it to after: the place of a step is known when it has run');
      end if;
      v_kind := coalesce(v_facts #>> array[v_name, 'kind'], 'task');
      v_near := v_step.spec -> 'near';
      v_why := case
        when v_kind not in ('task', 'map', 'gang') then 'has no lease of its own'
        when v_near ? 'match' and v_kind <> 'map' then 'is no map'
        when v_near ? 'match' and v_step.spec ->> 'kind' is distinct from 'map' then 'has other items than it'
        when not v_near ? 'match' and v_kind <> 'task' and v_near ? 'away' and v_near ? 'mode'
          then 'may have run anywhere' end;
      if v_why is not null then
        perform hwqueue.refuse('QHF02', format('step %s is near %s, which %s', v_step.spec -> 'name',
            to_json(v_name), v_why),
          jsonb_build_object('field', format('spec.steps[%s].near', v_step.at),
            'step', v_step.spec -> 'name'),
          case when v_kind not in ('task', 'map', 'gang')
              then 'name a step of kind task, map or gang: others run on no node'
            when v_near ? 'match' then 'match "item" is for a map near another map: leave it out'
            else format('prefer to be away: of a %s only the first 100 places are read', v_kind) end);
      end if;
    end loop;
  end loop;
end
$$;

-- Returns the class of a step that is released near others, and writes it into the step. bad: why the step
-- fails instead; else null. Steps that never had a node have no place: then it runs anywhere, unless `gone`
-- is fail. The class of the step before that stays in step.own for another attempt of the run.
-- Locks: the caller holds the step; a new class.
create or replace function hwqueue.near_class(p_run hwqueue.run, p_step int, p_near jsonb, p_now timestamptz,
  out class_id bigint, out bad jsonb)
language plpgsql volatile
as $$
declare
  v_step hwqueue.step;
  v_found record;
begin
  select s.* into v_step from hwqueue.step s where s.run_id = p_run.run_id and s.step_no = p_step;
  v_found := hwqueue.class_near(coalesce((v_step.own ->> 'base_class')::bigint, v_step.class_id), p_near,
    hwqueue.near_places(p_run.run_id, p_near), p_now);
  class_id := v_found.class_id;
  bad := v_found.bad;
  if class_id <> v_step.class_id then
    update hwqueue.step s
    set class_id = near_class.class_id,
      own = jsonb_build_object('base_class', v_step.class_id) || coalesce(s.own, '{}')
    where s.run_id = p_run.run_id and s.step_no = p_step;
  end if;
end
$$;

-- Returns the class of leases that ask what a class asks, and near these places besides. bad: as near_class.
-- Locks: a new class.
create or replace function hwqueue.class_near(p_class bigint, p_near jsonb, p_places jsonb,
  p_now timestamptz, out class_id bigint, out bad jsonb)
language plpgsql volatile
as $$
declare
  v_base hwqueue.placement_class;
  v_near jsonb := p_near;
  v_exprs jsonb;
  v_placement jsonb;
begin
  if p_near ? 'gone' and not exists (  -- no live node that is not cordoned is in one of these places
    select from hwqueue.node n
    join hwqueue.node_state t on t.node_id = n.node_id
    where n.deregistered_at is null and n.cordoned_at is null
      and (p_near ->> 'what' <> 'node' or n.node_id = any (array(
        select e::uuid from jsonb_array_elements_text(
          case when p_near ->> 'what' = 'node' then p_places else '[]' end) e)))
      and hwqueue.is_live(n, t, p_now)
      and p_places @> jsonb_build_array(hwqueue.node_place(n, p_near ->> 'what'))) then
    if p_near ->> 'gone' = 'fail' then
      bad := jsonb_build_object('reason', 'near_gone', 'near', p_near ->> 'what', 'places', p_places);
      return;
    end if;
    v_near := v_near - 'mode';
  end if;
  class_id := p_class;
  if p_places <> '[]' then
    select c.* into v_base from hwqueue.placement_class c where c.class_id = p_class;
    begin
      -- in normal form
      v_exprs := jsonb_build_array(case when v_near ->> 'what' in ('node', 'rack')
        then jsonb_build_object(v_near ->> 'what', hwqueue.normal_set(p_places))
          || hwqueue.present('away', v_near -> 'away')
        else jsonb_build_object('label', substr(v_near ->> 'what', 7), 'values', hwqueue.normal_set(p_places),
          'op', case when v_near ? 'away' then 'not_in' else 'in' end) end);
      v_placement := hwqueue.check_cost(hwqueue.merge_placements(v_base.placement,
        case when v_near ->> 'mode' = 'require' then jsonb_build_object('require', v_exprs)
          else jsonb_build_object('prefer', jsonb_build_array(jsonb_build_object('when', v_exprs,
            'weight', coalesce(v_near -> 'weight', '100')))) end, 'near'), 'near');
    exception when sqlstate 'QHC03' or sqlstate 'QHC04' then
      class_id := null;
      bad := jsonb_build_object('reason', 'near_contradicts', 'near', p_near ->> 'what',
        'places', p_places, 'message', sqlerrm);
      return;
    end;
    class_id := hwqueue.find_class(row(v_base.queue_id, v_base.task_name, v_base.tenant, v_base.service_id,
      v_base.labels, v_placement,
      -- what requires its place waits for no better one
      case when v_near ? 'mode' then coalesce(v_base.patience, '0') else v_base.patience end, null,
      v_base.max_run, v_base.is_choice));
  end if;
end
$$;

-- Returns items of a map with the classes of the places where the items with their numbers of other maps ran.
-- Items that the map has added have no such item, and stay as they are, and so do those of p_bad. bad,
-- reasons: items that fail instead.
-- Reads by key what is about one item; a class is looked for once for each place.
-- Locks: new classes.
create or replace function hwqueue.near_items(p_run hwqueue.run, p_map hwqueue.map,
  p_defined hwqueue.workflow_step, p_requests hwqueue.spawn_request[], p_bad uuid[], p_now timestamptz,
  out requests hwqueue.spawn_request[], out bad uuid[], out reasons text[])
language plpgsql volatile
as $$
declare
  v_request hwqueue.spawn_request;
  v_places jsonb;
  v_known jsonb := '{}';
  v_found jsonb;
begin
  requests := '{}';
  bad := '{}';
  reasons := '{}';
  foreach v_request in array p_requests loop
    if v_request.item_no between 0 and p_map.items - p_map.added - 1
      and v_request.lease_id <> all (p_bad) then
      v_places := hwqueue.near_places(p_run.run_id, p_defined.near, v_request.item_no);
      v_found := v_known -> v_places::text;
      if v_found is null then
        select jsonb_build_object('class_id', f.class_id, 'bad', f.bad) into v_found
        from hwqueue.class_near(v_request.class_id, p_defined.near, v_places, p_now) f;
        v_known := v_known || jsonb_build_object(v_places::text, v_found);
      end if;
      if v_found -> 'bad' <> 'null' then
        bad := bad || v_request.lease_id;
        reasons := reasons || (v_found #>> '{bad,reason}');
      else
        v_request.class_id := (v_found ->> 'class_id')::bigint;
      end if;
    end if;
    requests := requests || v_request;
  end loop;
end
$$;

-- Returns the places where steps of a run have run last, or run: node ids, racks, or values of a label. Of a
-- map those of item p_item, or of its first 1,000 items, and 100 places at most.
create or replace function hwqueue.near_places(p_run uuid, p_near jsonb, p_item int default null)
returns jsonb
language plpgsql stable
as $$ begin
  return (  -- in PL/pgSQL, which plans it once: items of maps ask one by one
    select coalesce(jsonb_agg(p.value order by p.value), '[]')
    from (
      select distinct hwqueue.node_place(n.node, p_near ->> 'what') as value
      from jsonb_array_elements_text(p_near -> 'steps') e(step_no)
      join hwqueue.step s on s.run_id = p_run and s.step_no = e.step_no::int
      cross join lateral (  -- fences (offset 0): by key, whatever the statistics say
        select x.lease_id, x.node_id from hwqueue.lease x
        where x.lease_id = s.lease_id
        union all
        (select x.lease_id, x.node_id from hwqueue.lease x
         where s.lease_id is null and x.run_id = p_run and x.step_no = s.step_no
         and x.item_no between coalesce(p_item, 0) and coalesce(p_item, 999)
         order by x.item_no)
        offset 0) l
      left join lateral (
        select x.node_id from hwqueue.claim x
        where x.lease_id = l.lease_id offset 0) k on true
      left join lateral (
        select x.node_id from hwqueue.outcome x
        where x.lease_id = l.lease_id offset 0) o on true
      cross join lateral (
        select x as node from hwqueue.node x
        where x.node_id = coalesce(k.node_id, o.node_id, l.node_id) offset 0) n(node)
      where hwqueue.node_place(n.node, p_near ->> 'what') is not null
      order by 1 limit 100) p);
end $$;

-- Returns the place of a node in a domain; null: it has none.
create or replace function hwqueue.node_place(p_node hwqueue.node, p_what text) returns jsonb
language plpgsql immutable
as $$ begin return
  case p_what when 'node' then to_jsonb(p_node.node_id) when 'rack' then to_jsonb(p_node.rack)
    else (select v from (select p_node.labels -> substr(p_what, 7)) l(v)
          where jsonb_typeof(l.v) in ('string', 'number', 'boolean')) end;
end $$;

-- Says of a part of a placement which steps it is near, or away from, and where those have run: "near train
-- -> rack 7". Null: the part is not of that kind.
create or replace function hwqueue.near_origin(p_near jsonb, p_part jsonb) returns text
language plpgsql stable
as $$ begin return (
  with part as (
    select e.expr -> case when p_near ->> 'what' in ('node', 'rack') then p_near ->> 'what' else 'values' end
      as places
    from (select coalesce(p_part #> '{when,0}', p_part) as expr) e
    where p_near ->> 'what' in ('node', 'rack') or e.expr ->> 'label' = substr(p_near ->> 'what', 7)
  ), place as (
    select case p_near ->> 'what'
        when 'node' then 'node ' || coalesce((
          select n.name from hwqueue.node n where n.node_id::text = v.value #>> '{}'), v.value #>> '{}')
        when 'rack' then 'rack ' || (v.value #>> '{}')
        else concat(substr(p_near ->> 'what', 7), ' ', left(v.value #>> '{}', 60)) end as word, v.ordinality
    from part p
    cross join lateral jsonb_array_elements(case jsonb_typeof(p.places) when 'array' then p.places
      else jsonb_build_array(p.places) end) with ordinality v
    where p.places is not null
  )
  select concat(case when p_near ? 'away' then 'away from ' else 'near ' end, (
      select concat(string_agg(s.value, ' and ' order by s.ordinality) filter (where s.ordinality <= 3),
        case when count(*) > 3 then format(' and %s more', count(*) - 3) end)
      from jsonb_array_elements_text(p_near -> 'steps') with ordinality s), ' -> ',
    string_agg(p.word, ' or ' order by p.ordinality) filter (where p.ordinality <= 3),
    case when count(*) > 3 then format(' or %s more', count(*) - 3) end)
  from place p having count(*) > 0
); end $$;
