-- What a node declares of cores and isolation.
-- Raises: QHA01.

-- The node with its cores: [{"core", "numa", "threads"}], written in full: numa is 0 and threads the core's own id unless given.
create or replace function hwqueue.parse_cores(p_node hwqueue.node, p_cores jsonb) returns hwqueue.node
language plpgsql immutable
as $$
declare
  v_node hwqueue.node := p_node;
  v_cores jsonb := hwqueue.json_list(p_cores, 'spec.cores', 4096, 'an array of at most 4096 {"core", "numa", "threads"}',
    'for example [{"core": 0, "numa": 0, "threads": [0, 64]}]');
  v_core jsonb;
  v_field text;
  v_threads jsonb;
begin
  for v_core, v_field in
    select e.value, format('spec.cores[%s]', e.ordinality - 1) from jsonb_array_elements(v_cores) with ordinality e
  loop
    perform hwqueue.check_object(v_core, array['core', 'numa', 'threads'], v_field);
    if hwqueue.json_integer(v_core -> 'core', v_field || '.core', 0, 2147483647) is null then
      perform hwqueue.refuse('QHA01', format('%s.core is missing', v_field), jsonb_build_object('field', v_field || '.core'),
        'number the cores: every one has an id of its own');
    end if;
    perform hwqueue.json_integer(v_core -> 'numa', v_field || '.numa', 0, 2147483647);
    v_threads := coalesce(nullif(v_core -> 'threads', 'null'), jsonb_build_array(v_core -> 'core'));
    if jsonb_typeof(v_threads) <> 'array' or jsonb_array_length(v_threads) not between 1 and 64 or v_threads @> '[null]' then
      perform hwqueue.refuse('QHA01', format('%s.threads must be an array of 1 to 64 CPU ids', v_field),
        jsonb_build_object('field', v_field || '.threads'), 'give the ids of the logical CPUs that the core has, such as [0, 64]');
    end if;
    perform hwqueue.json_integer(t.value, format('%s.threads[%s]', v_field, t.ordinality - 1), 0, 2147483647)
    from jsonb_array_elements(v_threads) with ordinality t;
  end loop;
  select coalesce(jsonb_agg(jsonb_build_object('core', e.value -> 'core', 'numa', coalesce(nullif(e.value -> 'numa', 'null'), '0'), 'threads',
           coalesce(nullif(e.value -> 'threads', 'null'), jsonb_build_array(e.value -> 'core'))) order by e.ordinality), '[]') into v_node.cores
  from jsonb_array_elements(v_cores) with ordinality e;
  v_node.cores := hwqueue.normal_value(v_node.cores);
  perform hwqueue.check_once(array(select (c ->> 'core')::int from jsonb_array_elements(v_node.cores) c), 'core', 'spec.cores');
  perform hwqueue.check_once(array(select t::int from jsonb_array_elements(v_node.cores) c
                                   cross join lateral jsonb_array_elements_text(c -> 'threads') t), 'thread', 'spec.cores');
  return v_node;
end
$$;

-- Refuses ids of which one is there twice.
create or replace function hwqueue.check_once(p_ids int[], p_what text, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_id int;
begin
  select u into v_id from unnest(p_ids) u group by u having count(*) > 1 order by u limit 1;
  if found then
    perform hwqueue.refuse('QHA01', format('%s has %s %s twice', p_field, p_what, v_id), jsonb_build_object('field', p_field),
      'every core and every thread is declared once');
  end if;
end
$$;

-- The node with the classes that it honours, its default and its share mode. Cores are counted one by one if whole ones can be asked for.
create or replace function hwqueue.parse_isolation(p_node hwqueue.node, p_spec jsonb) returns hwqueue.node
language plpgsql immutable
as $$
declare
  v_node hwqueue.node := p_node;
begin
  v_node.cpu_isolation := hwqueue.parse_classes(p_spec -> 'cpu_isolation', 'spec.cpu_isolation',
    array['best_effort', 'whole_core', 'strict_isolated']);
  v_node.gpu_exclusivity := hwqueue.parse_classes(p_spec -> 'gpu_exclusivity', 'spec.gpu_exclusivity',
    array['shared', 'session_exclusive', 'device_exclusive', 'partition_exclusive']);
  v_node.default_cpu_isolation := coalesce(hwqueue.json_text(p_spec -> 'default_cpu_isolation', 'spec.default_cpu_isolation', 100), 'best_effort');
  v_node.gpu_share_mode := coalesce(hwqueue.json_text(p_spec -> 'gpu_share_mode', 'spec.gpu_share_mode', 100), 'fractional');
  if v_node.default_cpu_isolation <> all (v_node.cpu_isolation) then
    perform hwqueue.refuse('QHA01', format('spec.default_cpu_isolation is %s, which the node does not honour', to_json(v_node.default_cpu_isolation)),
      jsonb_build_object('field', 'spec.default_cpu_isolation'), 'list it in spec.cpu_isolation, too');
  elsif v_node.gpu_share_mode not in ('exclusive', 'fractional') then
    perform hwqueue.refuse('QHA01', format('spec.gpu_share_mode must be exclusive or fractional, got %s', to_json(v_node.gpu_share_mode)),
      jsonb_build_object('field', 'spec.gpu_share_mode'), 'exclusive: every GPU has one lease at a time; fractional: leases may share one');
  end if;
  v_node.core_ids := '{}';
  v_node.core_numa := '{}';
  if v_node.cpu_isolation <> '{best_effort}' then
    select coalesce(array_agg((c.value ->> 'core')::int order by c.ordinality), '{}'),
           coalesce(array_agg((c.value ->> 'numa')::int order by c.ordinality), '{}') into v_node.core_ids, v_node.core_numa
    from jsonb_array_elements(v_node.cores) with ordinality c;
    if v_node.core_ids = '{}' then
      perform hwqueue.refuse('QHA01', 'spec.cores is missing: the node honours classes that take whole cores',
        jsonb_build_object('field', 'spec.cores'), 'declare the cores: [{"core": 0, "numa": 0, "threads": [0, 64]}]');
    end if;
  end if;
  return v_node;
end
$$;

-- Classes that a node honours, sorted; the first of the known ones always is.
create or replace function hwqueue.parse_classes(p_list jsonb, p_field text, p_known text[]) returns text[]
language plpgsql immutable
as $$
begin
  if coalesce(p_list, 'null') not in ('null', '{}') and (jsonb_typeof(p_list) <> 'array' or not to_jsonb(p_known) @> p_list
                                                          or p_list @> '[null]') then
    perform hwqueue.refuse('QHA01', format('%s must be an array of classes', p_field), jsonb_build_object('field', p_field),
      'classes are ' || array_to_string(p_known, ', '));
  end if;
  return array(
    select distinct c from jsonb_array_elements_text(case when jsonb_typeof(p_list) = 'array' then p_list else '[]' end || to_jsonb(p_known[1])) c order by c);
end
$$;
