-- What would help.

-- The action and its words for what alone keeps nodes out.
create or replace function hwqueue.help_words(p_sole jsonb, p_class hwqueue.placement_class) returns jsonb
language sql stable
as $$
  select jsonb_build_object('action', a.action, 'words', case a.action
    when 'revive' then format('%s but for being silent: start the worker of %s', m.nodes, a.samples)
    when 'uncordon' then format('%s but for being cordoned: hwqueue node uncordon %s', m.nodes, p_sole #>> '{samples,0}')
    when 'tolerate' then format('%s but for the taint %s: tolerate it, or take it off %s', m.nodes, hwqueue.taint_text(p_sole -> 'predicate'), a.samples)
    when 'serve' then format(case when p_sole #> '{predicate,queue}' is not null then '%s but for %s: hwqueue worker run --queue %s'
                                  else '%s but for %s: add it to the app of their workers' end, m.nodes, a.words, p_sole #>> '{predicate,queue}')
    when 'attest' then format('%s but for not being %s: hwqueue node attest, or node confirm if that is suspended', m.nodes, a.words)
    when 'resize' then format('%s but for being smaller than %s: ask for less', m.nodes, a.words)
    when 'isolate' then format('%s but for not offering %s: let them, or ask for less', m.nodes, a.words)
    else format('%s but for %s: relax it', m.nodes, a.words) end)
  from (
    select case p_sole ->> 'stage' when 'live' then 'revive' when 'cordon' then 'uncordon' when 'served' then 'serve' when 'taints' then 'tolerate' when 'trust' then 'attest'
             when 'capacity' then 'resize' when 'isolation' then 'isolate' else 'relax' end as action,
           hwqueue.list_words(p_sole -> 'samples', 'and') as samples,
           hwqueue.failure_words(p_sole, p_class) as words
  ) a, (select hwqueue.count_words((p_sole ->> 'nodes')::bigint, 'node would match', 'nodes would match') as nodes) m
$$;

-- What would let leases of a class run: [{"action", "words", "nodes", "leases", ...}], the most useful first; nodes: how many it opens, leases: how
-- many of the class wait (counted to 10,001). action: resume, register, revive, uncordon, serve, tolerate, attest, resize, isolate, relax, add_node, wait; with
-- "predicate" where one is in the way, "samples" (names of nodes), "lease_id" (wait).
-- p_fleet: see judge_fleet; p_near: see near_nodes.
create or replace function hwqueue.what_helps(p_class hwqueue.placement_class, p_queue hwqueue.queue, p_fleet jsonb, p_near jsonb, p_pending bigint)
returns jsonb
language sql stable
as $$
  select coalesce(jsonb_agg(jsonb_strip_nulls(h.help) || jsonb_build_object('leases', p_pending) order by h.place, h.ordinality), '[]')
  from (
    select 1 as place, 1 as ordinality,
           jsonb_build_object('action', 'resume', 'words', format('resume the queue: hwqueue queue resume %s', p_queue.name)) as help
    where p_queue.paused_at is not null
    union all
    select 2, 1, jsonb_build_object('action', 'register', 'words', 'register a node: hwqueue worker run registers the machine it runs on')
    where p_fleet ->> 'registered' = '0'
    union all
    select 3, s.ordinality, jsonb_build_object('nodes', s.value -> 'nodes', 'samples', s.value -> 'samples',
                                               'predicate', hwqueue.without_terms(s.value -> 'predicate')) || hwqueue.help_words(s.value, p_class)
    from jsonb_array_elements(p_fleet -> 'sole') with ordinality s
    where s.value ->> 'stage' not in ('free', 'away', 'spread')
    union all
    select 4, 1, jsonb_build_object('action', 'add_node', 'words', left('add a node with ' || hwqueue.class_words(p_class), 400))
    where p_fleet ->> 'matching' = '0' and (p_fleet ->> 'serving' <> '0' or p_fleet ->> 'live' = '0')
    union all
    select 5, t.ordinality, t.help
    from (
      select jsonb_build_object('action', 'wait', 'lease_id', h.holder ->> 'lease_id', 'samples', jsonb_agg(h.node order by h.ordinality), 'nodes', count(*),
               'words', format(case when h.is_room then '%s is full: lease %s of %s holds %s' else '%s is taken by lease %s of %s' end, h.place,
                 h.holder ->> 'lease_id', coalesce('service ' || (h.holder ->> 'service_id'), 'task ' || (h.holder ->> 'task')),
                 coalesce(h.holder ->> 'holds', 'a slot'))) as help,
             min(h.ordinality) as ordinality
      from (
        select n.value ->> 'node' as node, coalesce(r.value ->> 'place', 'node ' || (n.value ->> 'node')) as place, r.value #> '{holders,0}' as holder,
               r.value ->> 'stage' = 'free' as is_room, n.ordinality
        from jsonb_array_elements(p_near) with ordinality n
        cross join jsonb_array_elements(n.value -> 'reasons') r
        where r.value ? 'holders' and jsonb_array_length(n.value -> 'reasons') = 1
      ) h
      group by h.place, h.holder, h.is_room
      order by min(h.ordinality) limit 5) t
  ) h
$$;
