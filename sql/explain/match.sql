-- Dry runs: which nodes a lease could run on, and what nodes that do not exist yet would run. Nothing is
-- written: match_question drafts the class that such a lease would have, and the rules and scores are those
-- of claims.

-- Returns how many leases of a class an idle node takes at once, amount by amount; null: unlimited, because
-- the node has no limit on what they need. The caller knows that the class suits the node.
create or replace function hwqueue.fits_at_once(p_class hwqueue.placement_class,
  p_node hwqueue.node) returns bigint
language plpgsql stable
as $$
declare
  v_room hwqueue.headroom := hwqueue.node_headroom(p_node, hwqueue.idle_load(p_node));
begin
  if hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node)) <> 0 then
    return 0;
  end if;
  return (
    select min(case
      when d.name like 'gpu%' and p_class.gpu_wanted <> '{}'
        then 1000 / coalesce(nullif(p_class.gpu_milli, 0), 1000)
      when d.name = 'gpu_most' then (select sum(f / d.amount) from unnest(v_room.gpu_free) f)
      when d.name = 'core_numa' then (
        select sum(1000 * n.cores / d.amount)
        from (select count(*) as cores from unnest(p_node.core_numa) u(numa) group by u.numa) n)
      else hwqueue.amount_left(v_room, d.name) / d.amount end)
    from hwqueue.needed_amounts(p_class, p_node.default_cpu_isolation, p_node.gpu_share_mode) d
    where d.amount > 0 and hwqueue.amount_left(v_room, d.name) < 9223372036854775807);
end
$$;

-- Returns the nodes that p_nodes describes (see what_if), each with the profile it would have. Raises:
-- QHA01, QHA03.
create or replace function hwqueue.imagined_nodes(p_nodes jsonb)
returns table (node hwqueue.node, profile hwqueue.profile, how_many bigint)
language plpgsql stable
as $$
declare
  v_nodes jsonb := case when jsonb_typeof(p_nodes) = 'object' then jsonb_build_array(p_nodes)
    else p_nodes end;
  v_spec jsonb;
begin
  if jsonb_typeof(v_nodes) is distinct from 'array' or jsonb_array_length(v_nodes) not between 1 and 100 then
    perform hwqueue.refuse('QHA01', 'p_nodes must be a node''s specification or a list of 1 to 100',
        jsonb_build_object('field', 'p_nodes'),
      'for example {"labels": {"gpu": true}, "capacity": {"cpu_milli": 64000}, "count": 3}');
  end if;
  for v_spec in select n.value from jsonb_array_elements(v_nodes) n loop
    how_many := case when jsonb_typeof(v_spec) = 'object'
      then coalesce(hwqueue.json_integer(v_spec -> 'count', 'spec.count', 1, 1000000), 1) end;
    node := hwqueue.parse_node_spec('00000000-0000-0000-0000-000000000000',
      case when jsonb_typeof(v_spec) = 'object' then '{"name": "what-if", "instance_id": "what-if"}'
        || v_spec - 'count' else v_spec end);
    node.operator_taints := '[]';
    profile := jsonb_populate_record(null::hwqueue.profile, to_jsonb(node));
    profile.taints := hwqueue.node_taints(node);
    return next;
  end loop;
end
$$;

-- Judges a placement on every registered node, by the rules and the score of claims: a row for each node in
-- the order of place, the best first, from 1. codes, permanents: each rule that it fails, and whether for
-- good; empty: it could run the lease now. reasons: the same in words, for the p_limit nodes after the first
-- p_skip only (p_limit null: for all). Raises: QHC03, QHC04, QHA01, QHA03, QHQ01.
create or replace function hwqueue.match_fleet(p_placement jsonb, p_options jsonb, p_limit int, p_skip int)
returns table (place bigint, node_id uuid, node_name text, score double precision, codes text[],
    permanents boolean[], reasons jsonb)
language plpgsql volatile set jit = off set plan_cache_mode = force_custom_plan
  -- all nodes: by hash, whatever the statistics say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on
as $$
declare
  v_asked record;
  v_queue hwqueue.queue;
  v_class hwqueue.placement_class;
  v_known jsonb;
  v_now timestamptz;
begin
  select * into v_asked from hwqueue.match_question(p_placement, p_options);
  v_queue := v_asked.for_queue;
  v_class := v_asked.for_class;
  v_now := hwqueue.clock();
  v_known := hwqueue.recount_terms(v_class, null, v_now);
  return query
    with failing as materialized (
      select * from hwqueue.fleet_failures(v_class, v_known, v_now) f where f.stage <> 'live'
    ), failed as materialized (
      select m.node_id, array_agg(f.failure order by f.failure) as failures
      from failing f cross join lateral unnest(f.node_ids) m(node_id) group by m.node_id
    ), verdict as materialized (
      select row_number() over (order by v.is_eligible desc, v.score desc, v.name) as place, v.*
      from (
        select n.node_id, n.name, l.is_live, s.seen_at, f.failures, c.score,
               f.failures is null and l.is_live and v_queue.paused_at is null as is_eligible
        from hwqueue.node n
        join hwqueue.node_state s on s.node_id = n.node_id
        cross join lateral (select hwqueue.is_live(n, s, v_now) as is_live) l
        left join failed f on f.node_id = n.node_id
        left join hwqueue.fleet_scores(v_class, v_queue, v_asked.reach, v_known, v_now) c
          on c.node_id = n.node_id
        where n.deregistered_at is null
          and (v_asked.node_names is null or n.name = any (v_asked.node_names))) v
    ), kind as materialized (  -- nodes that fail the same have the same reasons
      select row_number() over () as kind, v.failures,
             bool_or(v.place > p_skip and coalesce(v.place - p_skip <= p_limit, true)) as is_shown
      from verdict v where v.failures is not null group by v.failures
    ), part as materialized (
      select k.kind, k.is_shown, u.failure from kind k cross join lateral unnest(k.failures) u(failure)
    ), worded as materialized (
      select f.failure,
             hwqueue.failure_reason(row(f.stage, f.code, f.permanent, f.message, f.predicate, f.lacks),
               v_class, n, hwqueue.read_load(n.node_id)) as reason
      from failing f join hwqueue.node n on n.node_id = f.node_ids[1]
      where f.failure in (select p.failure from part p where p.is_shown)
    ), told as materialized (
      select p.kind, array_agg(f.code order by f.failure) as codes,
             array_agg(f.permanent order by f.failure) as permanents,
             case when p.is_shown then jsonb_agg(w.reason order by f.failure) end as reasons
      from part p
      join failing f on f.failure = p.failure
      left join worded w on w.failure = p.failure
      group by p.kind, p.is_shown
    )
    select v.place, v.node_id, v.name, v.score,
           coalesce(t.codes, '{}') || case when v.is_live then '{}' else array['node_not_live'] end
             || case when v_queue.paused_at is null then '{}' else array['queue_paused'] end,
           coalesce(t.permanents, '{}') || case when v.is_live then '{}' else array[false] end
             || case when v_queue.paused_at is null then '{}' else array[false] end,
           case when v.place > p_skip and coalesce(v.place - p_skip <= p_limit, true) then
             coalesce(t.reasons, '[]')
             || case when v.is_live then '[]'
               else jsonb_build_array(jsonb_build_object('code', 'node_not_live',
                  'permanent', false, 'message', format('no sign of life since %s', v.seen_at))) end
             || case when v_queue.paused_at is null then '[]'
               else jsonb_build_array(jsonb_build_object('code', 'queue_paused',
                  'permanent', false, 'message', format('queue %s is paused', v_queue.name))) end
           end
    from verdict v
    left join kind k on k.failures = v.failures
    left join told t on t.kind = k.kind
    order by v.place;
end
$$;

-- Reads the arguments of a dry run. for_class: the class that such a lease would have, which is not
-- stored. Of a task that is named, p_placement null and labels that are not given are the defaults.
-- for_queue: the queue whose weights and pause count, by default one with the default policy. reach: the
-- class's share of the nodes, if a stored class has the same content. node_names: null for all nodes.
-- Raises: QHC03, QHC04, QHA01, QHA03, QHQ01.
create or replace function hwqueue.match_question(p_placement jsonb, p_options jsonb,
    out for_queue hwqueue.queue, out for_class hwqueue.placement_class, out reach double precision,
    out node_names text[])
language plpgsql volatile
as $$
declare
  v_service uuid;
  v_task text;
  v_defaults jsonb;
begin
  perform hwqueue.check_object(p_options, array['labels', 'tenant', 'service_id', 'task', 'queue', 'nodes'],
                               'options');
  v_task := hwqueue.json_text(p_options -> 'task', 'options.task', 200);
  select t.defaults into v_defaults from hwqueue.task t where t.name = v_task;
  node_names := hwqueue.json_names(p_options -> 'nodes', 'options.nodes', 253);
  for_queue := hwqueue.default_policy();
  if hwqueue.json_text(p_options -> 'queue', 'options.queue', 100) is not null then
    for_queue := hwqueue.find_queue(p_options ->> 'queue');
  end if;
  -- a given one is all that is asked, so that a lease that exists can be asked about
  p_placement := case when v_defaults is null or nullif(p_placement, 'null') is not null
    then hwqueue.normalise_placement(p_placement, 'placement')
    else hwqueue.spawn_placement(v_defaults, 'defaults') end;
  v_service := hwqueue.json_uuid(p_options -> 'service_id', 'options.service_id');
  for_class := hwqueue.draft_class(
    row(for_queue.queue_id, v_task,
      coalesce(hwqueue.json_text(p_options -> 'tenant', 'options.tenant', 100),
        hwqueue.with_tenant(null) ->> 'tenant', ''), v_service,
      hwqueue.check_labels(hwqueue.with_defaults(p_options, v_defaults) -> 'labels', 'options.labels'),
      p_placement, null, null, null, false),
    hwqueue.service_away_from(v_service));
  perform hwqueue.check_own_class(for_class, 'options', null);
  select r.reach into reach
  from hwqueue.placement_class c join hwqueue.class_fleet r on r.class_id = c.class_id
  where c.digest = for_class.digest order by c.class_id limit 1;
end
$$;
