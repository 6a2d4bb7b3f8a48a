-- One class on every node, counted for an explanation (judge_fleet); the 20 nodes that fail the least
-- (explain_waiting), with what is wanted, what the node has, and the holders: running leases, at most five of
-- each, the longest running first: [{"lease_id", "task", "queue", "service_id", "node", "since",
-- "expires_at", "stopping", "holds"}].

-- Judges a class on the whole fleet and returns {"registered", "live", "nodes_serving": of those,
-- "nodes_matching": live, not cordoned, of the right kind and size, "nodes_free": could take it now,
-- "nodes_cordoned", "nodes_silent": would match, but are that, "last_seen", "funnel": [{"stage", "nodes":
-- left after it}], "sole": [{"stage", "code", "permanent", "predicate", "lacks", "nodes", "samples"}]: rules
-- without which alone n nodes would match or, of those that match, be free; "first": the same of the rules
-- that nodes fail first; "nearest": [{"node_id", "failures"}] the 20 that fail the least, and what they fail.
-- With p_prefers also "best": the matching node that suits the class best, and "best_free": the node_id of
-- the best that is free.
create or replace function hwqueue.judge_fleet(p_class hwqueue.placement_class, p_known jsonb,
  p_prefers boolean, p_now timestamptz) returns jsonb
language plpgsql stable
  -- all nodes: by hash, whatever the statistics say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on
as $$ begin return (
  with step as materialized (  -- the order in which rules exclude nodes
    select s.stage, s.rank
    from unnest(array['live', 'cordon', 'served', 'labels', 'taints', 'trust', 'isolation', 'capacity',
      'free', 'away', 'spread']) with ordinality s(stage, rank)
  ), rule as materialized (
    select x.*, s.rank,
           -- rows with one rule_id are counted as one rule
           min(x.failure) over (partition by x.stage, x.predicate, x.lacks) as rule_id
    from hwqueue.fleet_failures(p_class, p_known, p_now) x join step s on s.stage = x.stage
  ), failing as materialized (
    select m.node_id, r.failure, r.rule_id, r.rank, r.permanent
    from rule r cross join lateral unnest(r.node_ids) m(node_id)
  ), verdict as materialized (
    select n.node_id, n.name, row_number() over (order by n.name) as by_name, s.seen_at,
           coalesce(x.first_rank, 99) as first_rank, coalesce(x.failures, 0) as failures,
           coalesce(x.fixed, 0) as fixed, coalesce(x.of_kind, 0) as of_kind,
           coalesce(x.suits, true) as suits,
           coalesce(x.unserved, false) as unserved, coalesce(n.queues, n.tasks) is null as unannounced
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    left join (
      select f.node_id, min(f.rank) as first_rank, count(*) as failures,
             count(*) filter (where f.permanent) as fixed,
             count(*) filter (where f.rank < 9) as of_kind, bool_or(f.rank = 3) as unserved,
             bool_and(f.rank not between 3 and 8) as suits
      from failing f group by f.node_id) x on x.node_id = n.node_id
    where n.deregistered_at is null
  ), best as materialized (
    select v.node_id, v.name, v.failures, a.affinity
    from verdict v
    join (  -- how well every node suits the class, by what it prefers of nodes alone
      select n.node_id, case when p_class.is_pinned
               then hwqueue.fixed_affinity(p_class, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids,
                                           hwqueue.node_taints(n)) else l.affinity end as affinity
      from hwqueue.node n
      left join (  -- the fence (offset 0) scores each profile once
        select p.profile_id,
               hwqueue.fixed_affinity(p_class, p.labels, p.rack, null, '{}', p.taints) as affinity
        from hwqueue.profile p where not p_class.is_pinned offset 0) l
        on l.profile_id = n.profile_id) a on a.node_id = v.node_id
    where p_prefers and v.first_rank >= 9
  ), counted as materialized (
    select f.rule_id, mode() within group (order by r.code) as code, bool_and(f.permanent) as permanent,
           count(*) filter (where f.is_alone) as alone,
           (array_agg(f.name order by f.by_name) filter (where f.is_alone))[1:3] as alone_samples,
           count(*) filter (where f.is_first) as first,
           (array_agg(f.name order by f.by_name) filter (where f.is_first))[1:3] as first_samples
    from (
      select f.*, v.name, v.by_name, v.first_rank = f.rank as is_first,
             case when f.rank < 9 then v.of_kind = 1 else v.failures = 1 end as is_alone
      from failing f join verdict v on v.node_id = f.node_id) f
    join rule r on r.failure = f.failure
    where f.is_alone or f.is_first
    group by f.rule_id
  ), grouped as materialized (
    select r.rank, r.predicate, c.alone, c.alone_samples, c.first, c.first_samples,
           jsonb_strip_nulls(jsonb_build_object('stage', r.stage, 'code', c.code,
             'permanent', c.permanent, 'predicate', r.predicate, 'lacks', r.lacks)) as rule
    from counted c join rule r on r.failure = c.rule_id
  )
  select jsonb_build_object(
    'registered', count(*), 'live', count(*) filter (where v.first_rank > 1),
    'nodes_serving', count(*) filter (where v.first_rank > 1 and not v.unserved), 'last_seen', max(v.seen_at),
    'nodes_matching', count(*) filter (where v.first_rank >= 9),
    'nodes_cordoned', count(*) filter (where v.first_rank = 2 and v.suits),
    'nodes_silent', count(*) filter (where v.first_rank = 1 and v.suits),
    'nodes_free', count(*) filter (where v.failures = 0),
    'funnel', (
      select jsonb_agg(jsonb_build_object('stage', s.stage, 'nodes', c.nodes)
                       || case when s.stage = 'served' and c.unannounced > 0
                         then jsonb_build_object('unannounced', c.unannounced) else '{}' end order by s.rank)
      from step s
      cross join lateral (select count(*) as nodes, count(*) filter (where d.unannounced) as unannounced
          from verdict d where d.first_rank > s.rank) c),
    'sole', (
      select coalesce(jsonb_agg(g.rule || jsonb_build_object('nodes', g.alone, 'samples', g.alone_samples)
             order by g.alone desc, g.rank, g.predicate), '[]')
      from (select * from grouped d where d.alone > 0 order by d.alone desc, d.rank, d.predicate limit 20) g),
    'first', (
      select coalesce(jsonb_agg(g.rule || jsonb_build_object('nodes', g.first, 'samples', g.first_samples)
                                order by g.rank desc, g.first desc, g.predicate), '[]')
      from (select * from grouped d where d.first > 0 order by d.rank desc, d.first desc, d.predicate
          limit 20) g),
    'nearest', (
      select coalesce(jsonb_agg(jsonb_build_object('node_id', d.node_id, 'failures', d.rules)
             order by d.fixed, d.failures, d.name), '[]')
      from (
        select x.node_id, x.fixed, x.failures, x.name, coalesce(jsonb_agg(jsonb_build_object(
                 'stage', r.stage, 'code', r.code, 'permanent', r.permanent, 'message', r.message,
                 'predicate', r.predicate, 'lacks', r.lacks) order by r.rank, r.failure)
                 filter (where r.rank > 1), '[]') as rules
        from (select * from verdict v order by v.fixed, v.failures, v.name limit 20) x
        left join failing f on f.node_id = x.node_id
        left join rule r on r.failure = f.failure
        group by x.node_id, x.fixed, x.failures, x.name) d),
    'best', (select b.name from best b order by b.affinity desc nulls last, b.name limit 1),
    'best_free', (select b.node_id from best b where b.failures = 0
        order by b.affinity desc nulls last, b.name limit 1))
  from verdict v
); end $$;

-- Returns {"wanted", "has", "holders", "place"} of one failed rule, without those that do not apply.
create or replace function hwqueue.failure_detail(p_failure hwqueue.failure, p_facts jsonb, p_kept_out text,
  p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_load hwqueue.node_load,
  p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
  v_index int := (p_failure.predicate ->> 'term')::int;
  v_spec jsonb := p_class.terms #> array[v_index::text, 'spec'];
  v_fact jsonb := p_facts -> v_index;
  v_asked jsonb := p_failure.predicate;
  -- those that require to be away from such leases are in the way, not what it asks
  v_is_kept_out boolean := p_failure.stage = 'away' and v_asked is null;
  v_domain text := case when v_is_kept_out then p_kept_out else coalesce((
    select t.domain from hwqueue.affinity_term t
    where t.digest = (p_class.terms #>> array[v_index::text, 'digest'])::bigint),
    hwqueue.term_domain(v_spec)) end;
  v_value text := case when v_is_kept_out
    then hwqueue.domain_value(v_domain, p_node.node_id, p_node.rack, p_node.labels)
    else v_fact ->> 'value' end;
  v_selected bigint[];
  v_holders jsonb;
begin
  if p_failure.stage in ('free', 'spread')
    or p_failure.stage = 'away' and coalesce(v_asked ? 'away', true) then
    v_selected := case when v_spec is not null then hwqueue.selected_classes(v_spec) end;
    v_holders := hwqueue.holder_list(array(  -- of those that run in the same place
      select c.lease_id from hwqueue.claim c
      where c.node_id = any (case when p_failure.stage = 'free' then array[p_node.node_id] else array(
          select n.node_id from hwqueue.node n
          where hwqueue.domain_value(v_domain, n.node_id, n.rack, n.labels) = v_value) end)
        and case
          when p_failure.stage = 'free' then c.assignment is not null or v_asked ? 'concurrency'
          when v_is_kept_out then exists (
            select from hwqueue.placement_class k cross join lateral jsonb_array_elements(k.terms) t
            where k.class_id = c.class_id and t.value #>> '{spec,use}' = 'away'
              and hwqueue.term_domain(t.value -> 'spec') = v_domain
              and (hwqueue.term_selects(t.value -> 'spec', p_class)
                or (t.value #>> '{spec,all,0,lease}')::uuid = p_lease))
          else c.class_id = any (v_selected)
            and coalesce(c.lease_id = (v_spec #>> '{all,0,lease}')::uuid, true) end
      order by c.claimed_at, c.lease_id limit 5), p_failure.lacks is not null, p_now);
  end if;
  return jsonb_strip_nulls(jsonb_build_object(
    'wanted', hwqueue.failure_words(to_jsonb(p_failure), p_class),
    'place', case when v_value is not null then hwqueue.place_words(v_domain, v_value) end,
    'holders', nullif(v_holders, '[]'), 'has', left(case
      when p_failure.stage = 'capacity' then hwqueue.resource_words(hwqueue.amounts_of(p_class,
        p_failure.lacks, p_node, hwqueue.node_headroom(p_node, hwqueue.idle_load(p_node))))
      when v_asked ? 'concurrency' then format('%s, all in use',
        hwqueue.count_words((v_asked ->> 'concurrency')::int, 'slot', 'slots'))
      when p_failure.stage = 'free' then hwqueue.resource_words(hwqueue.amounts_of(p_class,
        p_failure.lacks, p_node, hwqueue.node_headroom(p_node, p_load))) || ' free'
      when p_failure.stage = 'taints' then hwqueue.taint_text(v_asked)
      when p_failure.stage = 'trust' then coalesce(
        hwqueue.suspended_words(p_node, v_asked ->> 'trust'), 'trusted for '
        || coalesce(nullif(array_to_string(hwqueue.attested_at(p_node, p_now), ', '), ''), 'nothing'))
      when p_failure.stage = 'isolation' then array_to_string(
        case when v_asked ? 'cpu' then p_node.cpu_isolation else p_node.gpu_exclusivity end, ', ')
      when v_fact ->> 'value' is null and v_fact is not null
        then 'no ' || regexp_replace(v_domain, '^(own:)?(label:)?', '')
      when v_fact is not null then format('%s in %s', case when (v_fact ->> 'held')::bigint = 0 then 'none'
        else v_fact ->> 'held' end, hwqueue.place_words(v_domain, v_value))
      when v_asked ? 'domain' and p_failure.stage = 'labels'
        then 'no ' || regexp_replace(v_asked ->> 'domain', '^label:', '')
      when v_asked ? 'label' then (p_node.labels -> (v_asked ->> 'label'))::text
      when v_asked ? 'tags' then (
        select jsonb_object_agg(k, p_node.labels -> k)::text from jsonb_object_keys(v_asked -> 'tags') k
        where p_node.labels ? k)
      when v_asked ? 'rack' then coalesce('rack ' || p_node.rack, 'no rack')
      when v_asked ? 'node' then 'node ' || p_node.name end, 200)));
end
$$;

-- Returns claims as a list of holders; p_amounts: with what they have allocated.
create or replace function hwqueue.holder_list(p_leases uuid[], p_amounts boolean, p_now timestamptz)
returns jsonb
language plpgsql stable
as $$ begin return (
  select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('lease_id', c.lease_id, 'task', k.task_name,
         'queue', q.name, 'service_id', k.service_id,
           'node', n.name, 'since', c.claimed_at, 'expires_at', nullif(c.expires_at, 'infinity'), 'stopping',
             nullif(c.stop_requested_at <= p_now is true, false),
           'holds', case when p_amounts then hwqueue.resource_words(jsonb_strip_nulls(jsonb_build_object(
             'cpu_milli', c.assignment -> 'cpu_milli', 'memory_mib', c.assignment -> 'memory_mib',
             'gpu_milli', (c.assignment ->> 'gpu_milli')::int * jsonb_array_length(c.assignment -> 'gpus')))
             || coalesce(c.assignment -> 'custom', '{}')) end)) order by c.claimed_at, c.lease_id), '[]')
  from hwqueue.claim c
  join hwqueue.placement_class k on k.class_id = c.class_id
  join hwqueue.queue q on q.queue_id = c.queue_id
  join hwqueue.node n on n.node_id = c.node_id
  where c.lease_id = any (p_leases)
); end $$;
