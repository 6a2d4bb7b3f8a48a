-- Public: why a lease waits, and where one would run.
--
-- Operators and the dashboard call explain_lease, explain_class and what_if; producers call the match
-- functions; a worker calls claim_hint after an empty claim and lease_outlook for its log. All of them
-- only read, and judge by the functions that claims decide with.

-- Returns, after an empty claim, when to ask again (retry_after), and what keeps the node from the
-- classes that wait: the number of classes by reason code. Considers at most 1,000 classes with ready
-- leases.
--
-- Raises: QHQ01, QHN01, QHN04 if the caller is neither the node's login nor an operator.
create or replace function hwqueue.claim_hint(p_queues text[], p_node uuid)
returns table (retry_after interval, reasons jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_request hwqueue.claim_request;
  v_queue_ids int[];
  v_node hwqueue.node;
  v_load hwqueue.node_load;
  v_now timestamptz;
  v_paused int;
  v_until timestamptz;
begin
  perform hwqueue.check_queue_names(p_queues);
  v_request.queues := p_queues;
  v_queue_ids := (hwqueue.open_queues(v_request, null)).queue_ids;
  v_node := hwqueue.read_node(p_node);
  v_load := hwqueue.read_load(p_node);
  if not (hwqueue.has_login('hwqueue_operator') or hwqueue.has_login('hwqueue_admin')) then
    perform hwqueue.check_login(p_node, (select s.login from hwqueue.node_state s where s.node_id = p_node));
  end if;
  v_now := hwqueue.clock();
  select coalesce(jsonb_object_agg(r.code, r.classes), '{}'), min(r.until) into reasons, v_until
  from (
    select w.code, count(*) as classes, min(w.until) as until
    from (
      select c as class, h.eligible_at
      from hwqueue.placement_class c
      cross join lateral (
        select r.eligible_at from hwqueue.ready r
        where r.class_id = c.class_id order by r.tier, r.rank, r.position limit 1) h
      where c.queue_id = any (v_queue_ids)
      limit 1000
    ) k
    cross join lateral (
      select hwqueue.first_failure(k.class, v_node, v_load, v_now) as code,
             k.eligible_at + (hwqueue.waits_for(k.class, v_node, k.eligible_at,
             v_now)).wait as until offset 0) u
    cross join lateral (
      select coalesce(u.code, case when u.until > v_now then 'waiting_for_preferred' end) as code,
             case when coalesce(u.code, 'unpublished') = 'unpublished' then u.until end as until) w
    where w.code is not null
    group by w.code
  ) r;
  v_paused := (select count(distinct n) from unnest(p_queues) n) - cardinality(v_queue_ids);
  if v_paused > 0 then
    reasons := reasons || jsonb_build_object('queue_paused', v_paused);
  end if;
  retry_after := greatest(interval '0', coalesce(least(v_until - v_now,
    (select min(q.poll_interval) from hwqueue.queue q where q.queue_id = any (v_queue_ids)),
    (select min(s.available_at) - v_now from unnest(v_queue_ids) q(queue_id)
     cross join lateral (select d.available_at from hwqueue.scheduled d
                         where d.queue_id = q.queue_id and d.available_at < 'infinity'
                         order by d.available_at limit 1) s)), interval '1 second'));
  return next;
end
$$;

-- Returns, for a worker's log, the outlook of leases that its node runs or ran last: the state now, the
-- number of attempts allowed, the time until the lease is claimable again (null: it is, never will be, or
-- waits for something else than a time), and its placement. own_max_attempts: null where the queue's value
-- counts. Leases of other nodes have no row.
--
-- Raises: QHA01, QHN04.
create or replace function hwqueue.lease_outlook(p_node uuid, p_lease_ids uuid[])
returns table (lease_id uuid, state text, max_attempts int, own_max_attempts int, again_in interval,
  placement jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  if p_lease_ids is null or cardinality(p_lease_ids) > 1000 then
    perform hwqueue.refuse('QHA01', 'p_lease_ids must be a list of at most 1000 ids',
      jsonb_build_object('field', 'p_lease_ids'), 'ask in several calls');
  end if;
  perform hwqueue.check_login(p_node, (select s.login from hwqueue.node_state s where s.node_id = p_node));
  return query
    select l.lease_id, w.state, coalesce(l.max_attempts, q.max_attempts)::int, l.max_attempts::int,
           case when w.state = 'scheduled' and l.available_at < 'infinity'
             then greatest(l.available_at - v_now, interval '0') end,
             c.placement
    from hwqueue.lease l
    join hwqueue.queue q on q.queue_id = l.queue_id
    join hwqueue.placement_class c on c.class_id = l.class_id
    left join hwqueue.claim k on k.lease_id = l.lease_id
    left join hwqueue.outcome o on o.lease_id = l.lease_id
    cross join lateral (select hwqueue.lease_state(l.lease_id) as state offset 0) w
    where l.lease_id = any (p_lease_ids) and p_node in (k.node_id, coalesce(o.node_id, l.node_id));
end
$$;

-- Returns why leases of a placement class are pending, in words, and what that rests on. One row, with
-- the columns of explain_lease and: words: what the class asks; leases: the first 20 in line,
-- [{"lease_id", "priority", "eligible_at", "attempt", "deadline"}]. Patience is judged for the first in
-- line.
--
-- Raises: QHC01, QHA03.
create or replace function hwqueue.explain_class(p_class bigint)
returns table (class_id bigint, queue text, words text, headline text, code text,
  permanent boolean, waits_until timestamptz, as_of timestamptz, funnel jsonb, sole_blockers jsonb,
  nearest jsonb, help jsonb, pending bigint, nodes_registered bigint, nodes_live bigint,
  nodes_matching bigint, nodes_free bigint, leases jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_class hwqueue.placement_class;
  v_head hwqueue.ready;
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants();
  select c.* into v_class from hwqueue.placement_class c where c.class_id = p_class;
  if not found then
    perform hwqueue.refuse('QHC01', format('placement class %s does not exist',
        coalesce(p_class::text, 'null')),
      jsonb_build_object('class_id', p_class),
        'look it up in a view such as pending_reasons; classes that nothing needs are pruned');
  end if;
  v_now := hwqueue.clock();
  select r.* into v_head from hwqueue.ready r
  where r.class_id = p_class order by r.tier, r.rank, r.position limit 1;
  return query select p_class, hwqueue.queue_name(v_class.queue_id), hwqueue.class_words(v_class),
           case when f.pending = 0 then 'nothing of it is pending; ' else '' end || f.headline,
           coalesce(f.code, 'ready'), f.permanent, f.waits_until, v_now, f.funnel, f.sole_blockers,
           f.nearest, f.help, f.pending, f.nodes_registered, f.nodes_live, f.nodes_matching, f.nodes_free, (
      select coalesce(jsonb_agg(jsonb_build_object(
               'lease_id', r.lease_id, 'priority', l.priority, 'eligible_at', r.eligible_at,
               'attempt', r.attempt_count + 1, 'deadline', r.deadline)
             order by r.tier, r.rank, r.position), '[]')
      from (select * from hwqueue.ready d where d.class_id = p_class
          order by d.tier, d.rank, d.position limit 20) r join hwqueue.lease l on l.lease_id = r.lease_id)
    from hwqueue.explain_waiting(v_class, v_head.lease_id, v_head.eligible_at, null, v_now) f;
end
$$;

-- Returns why a lease is where it is, and why a pending one does not run, by the rules that claims
-- decide with. One row.
--
-- headline: one sentence; code: a reason code, "ready" when a node could take the lease now, or the
-- lease's state; permanent: it lasts until nodes or the lease change; waits_until: when the lease
-- becomes claimable, stops waiting for a better node, or its claim ends; position: the number of ready
-- leases of its queue before it, at most 10,001.
--
-- For pending leases: funnel [{"stage", "nodes"}]: nodes left after each stage; sole_blockers [{"stage",
-- "code", "permanent", "predicate", "words", "nodes", "samples"}]: what alone keeps nodes from matching
-- (of stages free, away and spread: from taking it now); nearest: the 20 nodes that fail the fewest
-- rules, [{"node_id", "node", "rack", "state", "seen_at", "reasons": [as in match_nodes, and "wanted",
-- "has", "place", "holders"]}]; help: what would let it run, [{"action", "words", "nodes", "leases",
-- "predicate", "samples", "lease_id"}].
--
-- released: of the lease of a step, which step released it and what else it came after; null for others.
--
-- Raises: QHL04, QHA03.
create or replace function hwqueue.explain_lease(p_lease uuid)
returns table (lease_id uuid, state text, queue text, class_id bigint, headline text,
  code text, permanent boolean, waits_until timestamptz, "position" bigint, as_of timestamptz,
  funnel jsonb, sole_blockers jsonb, nearest jsonb, help jsonb, words text, pending bigint,
  nodes_registered bigint, nodes_live bigint, nodes_matching bigint, nodes_free bigint, released text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_lease hwqueue.lease := hwqueue.find_lease(p_lease);
  v_class hwqueue.placement_class;
  v_claim hwqueue.claim;
  v_end hwqueue.outcome;
  v_entry hwqueue.ready;
  v_marks hwqueue.low_water;
  v_from bigint;  -- dead tuples before it may still be in the index
  v_found record;
begin
  perform hwqueue.require_all_tenants();
  select c.* into v_class from hwqueue.placement_class c where c.class_id = v_lease.class_id;
  -- one statement, one MVCC snapshot
  select hwqueue.lease_state(p_lease) as state, hwqueue.lease_end(p_lease) as ended into v_found;
  state := v_found.state;
  v_end := v_found.ended;
  select c.* into v_claim from hwqueue.claim c where c.lease_id = p_lease;
  as_of := hwqueue.clock();
  lease_id := p_lease;
  queue := hwqueue.queue_name(v_lease.queue_id);
  class_id := v_lease.class_id;
  words := hwqueue.class_words(v_class);
  permanent := v_end.state is not null;
  released := hwqueue.release_words(v_lease, as_of);
  if state <> 'pending' then
    select s.headline, s.code, s.waits_until into headline, code, waits_until
    from hwqueue.lease_story(v_lease, v_claim, v_end, state, as_of) s;
  else
    select r.* into v_entry from hwqueue.ready r
    where r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank = v_lease.rank
      and r.position = v_lease.position and r.lease_id = p_lease;
    select w.* into v_marks from hwqueue.low_water w
    where w.queue_id = v_lease.queue_id and w.class_id = 0 order by w.version desc limit 1;
    v_from := hwqueue.low_water_at(v_marks, v_lease.tier, v_lease.rank);
    -- column by column: before Postgres 18 a scan does not stop at the upper end of a row comparison
    "position" := (select count(*) from (
      (select 1 from hwqueue.ready r
       where r.queue_id = v_lease.queue_id and r.tier < v_lease.tier limit 10001)
      union all
      (select 1 from hwqueue.ready r
       where r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank < v_lease.rank limit 10001)
      union all
      (select 1 from hwqueue.ready r
       where r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank = v_lease.rank
         and r.position >= v_from and r.position < v_lease.position limit 10001)
      limit 10001) b);
    select f.headline, f.code, f.permanent, f.waits_until, f.funnel, f.sole_blockers, f.nearest, f.help,
           f.pending, f.nodes_registered, f.nodes_live, f.nodes_matching, f.nodes_free
    into headline, code, permanent, waits_until, funnel, sole_blockers, nearest, help, pending,
         nodes_registered, nodes_live, nodes_matching, nodes_free
    from hwqueue.explain_waiting(
      v_class, p_lease, coalesce(v_entry.eligible_at, v_lease.available_at), v_lease.deadline, as_of) f;
    headline := headline || case when code is not null then ''
      when "position" = 0 then '; it is the first in line'
      when "position" > 10000 then '; more than 10000 leases of the queue come before it'
      else '; ' || hwqueue.count_words("position", 'lease of the queue comes',
          'leases of the queue come') || ' before it' end
      || case when v_lease.deadline > as_of then format('; unless it is claimed in %s, it fails',
          hwqueue.span_words(v_lease.deadline - as_of)) else '' end;
    code := coalesce(code, 'ready');
    if v_lease.choice_id is not null then
      select case when h.taken <> p_lease
               then format('of its alternatives %s was taken; upkeep cancels it within about a second',
                 h.taken)
             else headline || case when h.taken is not null then '; its choice has taken it'
               when cardinality(h.members) = 1 then ''
               else format('; the first of %s alternatives runs', cardinality(h.members)) end end,
             case when h.taken <> p_lease then 'choice_taken' else code end
      into headline, code from hwqueue.choice h where h.choice_id = v_lease.choice_id;
    end if;
  end if;
  return next;
end
$$;

-- Returns where a pending lease would get room if leases of later tiers stopped, the place that upkeep would
-- try first, and who would be asked: victims [{"lease_id", "queue", "task", "tenant", "tier", "ran"}], ran in
-- seconds. Changes nothing, and does not ask whether the lease's queue has the policy preempt.
-- reason, without a node: not_pending, fits (a node has room now), or no_victims.
--
-- Raises: QHL04, QHA03.
create or replace function hwqueue.preview_preemption(p_lease uuid)
returns table (node_id uuid, node text, victims jsonb, reason text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_lease hwqueue.lease;
  v_found record;
begin
  perform hwqueue.require_all_tenants();
  v_lease := hwqueue.find_lease(p_lease);
  victims := '[]';
  if hwqueue.lease_state(p_lease) <> 'pending' then
    reason := 'not_pending';
  else
    select f.* into v_found from hwqueue.find_victims(v_lease, 0, v_now) f limit 1;
    node_id := v_found.node_id;
    node := (select n.name from hwqueue.node n where n.node_id = v_found.node_id);
    reason := case when v_found.stops is null then 'no_victims' when v_found.node_id is null then 'fits' end;
    victims := coalesce((
      select jsonb_agg(jsonb_build_object('lease_id', l.lease_id, 'queue', hwqueue.queue_name(l.queue_id),
        'task', l.task_name, 'tenant', k.tenant, 'tier', hwqueue.tier_name(l.tier),
        'ran', extract(epoch from v_now - c.claimed_at)) order by s.ordinality)
      from unnest(v_found.stops) with ordinality s(lease_id, ordinality)
      join hwqueue.lease l on l.lease_id = s.lease_id
      join hwqueue.placement_class k on k.class_id = l.class_id
      join hwqueue.claim c on c.lease_id = s.lease_id), '[]');
  end if;
  return next;
end
$$;

-- Returns which pending classes nodes like these could run if they existed and were idle: up to 1,000,
-- those with the most leases first. Changes nothing.
--
-- p_nodes: a specification as register_node takes it, or a list of up to 100. name and instance_id may
-- be left out, and "count" says how many such nodes there are (default 1).
--
-- pending: ready leases of the class, counted to 10,001; fits_at_once: how many of them all these nodes
-- take at once, null when one of the nodes has no limit on what they need; is_served_already: a live
-- node that is not cordoned matches, whatever is in use there; false where that takes too long to judge.
--
-- What a class asks about other leases counts as met, and an imagined node is attested for nothing. To
-- judge a placement on the nodes that exist, call match_nodes.
--
-- Raises: QHA01, QHA03.
create or replace function hwqueue.what_if(p_nodes jsonb)
returns table (class_id bigint, queue text, words text, pending bigint,
  oldest_at timestamptz, fits_at_once bigint, is_served_already boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  return query
    with imagined as materialized (
      select * from hwqueue.imagined_nodes(p_nodes)
    ), wanted as materialized (
      select c from hwqueue.placement_class c
      join hwqueue.queue q on q.queue_id = c.queue_id and q.dropped_at is null
      where exists (select 1 from hwqueue.ready r where r.class_id = c.class_id)
        and c.anchors && array(
          select a from imagined i
          cross join lateral hwqueue.anchors_of((i.node).labels, (i.node).rack) a
          union
          select unnest(hwqueue.node_anchors((i.node).node_id, (i.node).resources || (i.node).gpu_ids))
          from imagined i)
    ), fit as materialized (
      select (w.c).class_id, sum(i.how_many * f.fits)::bigint as fits, bool_or(f.fits is null) as is_open
      from wanted w
      cross join imagined i
      cross join lateral (
        select case when hwqueue.suits(w.c, i.profile, (i.node).node_id,
               (i.node).resources || (i.node).gpu_ids, '{}', (i.node).gpu_ids, (i.node).gpu_parents)
                    then hwqueue.fits_at_once(w.c, i.node) else 0 end as fits offset 0) f
      where f.fits is distinct from 0
      group by 1
    ), counted as materialized (
      select f.class_id, case when not f.is_open then f.fits end as fits, p.pending, p.oldest_at
      from fit f
      cross join lateral (
        select count(*) as pending, min(r.eligible_at) as oldest_at
        from (select e.eligible_at from hwqueue.ready e where e.class_id = f.class_id limit 10001) r) p
      order by p.pending desc, f.class_id limit 1000
    ), served as materialized (
      select f.class_id from hwqueue.class_fleets(
        array(select k.class_id from counted k), hwqueue.scan_nodes(v_now), v_now) f
      where f.nodes_matching > 0
    )
    select k.class_id, q.name, hwqueue.class_words(c), k.pending, k.oldest_at, k.fits,
           exists (select from served s where s.class_id = k.class_id)
    from counted k
    join hwqueue.placement_class c on c.class_id = k.class_id
    join hwqueue.queue q on q.queue_id = c.queue_id
    where (select count(*) from imagined) > 0  -- before all else: it refuses what is no list of nodes
    order by k.pending desc, k.class_id;
end
$$;

-- Returns what match_nodes does without the words, for callers that count nodes or colour a map: a row
-- for each group of nodes with the same codes, those that could run the lease first, then the largest
-- group. In a fleet of thousands of nodes, nearly all that match_nodes sends is words.
--
-- codes: of the reasons, in their order; permanent: whether one of them holds until the node or the
-- lease changes; node_names: the best node first.
--
-- Raises: as match_nodes.
create or replace function hwqueue.match_groups(p_placement jsonb default null, p_options jsonb default '{}')
returns table (eligible boolean, codes text[], permanent boolean, nodes bigint, node_names jsonb)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select m.codes = '{}', m.codes, p.permanent, count(*), jsonb_agg(m.node_name order by m.place)
  from hwqueue.match_fleet(p_placement, p_options, 0, 0) m
  cross join lateral (select true = any (m.permanents) as permanent) p
  group by m.codes, p.permanent
  order by m.codes = '{}' desc, count(*) desc, m.codes, p.permanent
$$;

-- Returns, for every registered node, whether it could run such a lease now, how well it suits, and why
-- not: a dry run of the filter and the score of claim_task. Changes nothing.
--
-- p_placement: all that is asked of a node; null: what the defaults of the task ask (set_task).
-- p_options: {"labels", "tenant", "service_id", "task", "queue", "nodes"}. With queue, that queue's
-- weights and pause count. Without labels, those of the task's defaults. nodes: names, to judge only
-- these.
--
-- Raises: QHC03, QHC04, QHA01, QHA03, QHQ01.
create or replace function hwqueue.match_nodes(p_placement jsonb default null, p_options jsonb default '{}')
returns table (node_id uuid, node_name text, eligible boolean, score double precision, reasons jsonb)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select m.node_id, m.node_name, m.codes = '{}', m.score, m.reasons
  from hwqueue.match_fleet(p_placement, p_options, null, 0) m order by m.place
$$;

-- Returns one page of match_nodes with counts over all nodes, for callers that show a page. One row.
--
-- nodes: registered nodes; eligible: nodes that could run the lease now; reasons: by code, how many
-- nodes it keeps out (a node with two codes counts for both); items: p_limit rows after the first
-- p_skip, [{"node_id", "node_name", "eligible", "score", "reasons"}], the best first. Every page judges
-- all nodes again.
--
-- Raises: as match_nodes.
create or replace function hwqueue.match_page(p_placement jsonb default null, p_options jsonb default '{}',
  p_limit int default 100, p_skip int default 0)
returns table (nodes int, eligible int, reasons jsonb, items jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set extra_float_digits = 1
as $$
begin
  if (p_limit between 1 and 10000 and p_skip between 0 and 1000000) is not true then
    perform hwqueue.refuse('QHA01', 'p_limit must be from 1 to 10000 and p_skip from 0 to 1000000',
      jsonb_build_object('field', case when (p_limit between 1 and 10000) is true then 'p_skip'
          else 'p_limit' end),
      'page with p_skip');
  end if;
  return query
    with judged as materialized (
      select m.*, m.codes = '{}' as is_eligible
      from hwqueue.match_fleet(p_placement, p_options, p_limit, p_skip) m
    )
    select count(*)::int, (count(*) filter (where j.is_eligible))::int,
           (select coalesce(jsonb_object_agg(c.code, c.kept_out), '{}')
            from (select e.code, sum(i.nodes) as kept_out
                  from (select d.codes, count(*) as nodes from judged d group by d.codes) i
                  cross join lateral (select distinct x as code from unnest(i.codes) x) e
                  group by e.code) c),
           coalesce(jsonb_agg(jsonb_build_object('node_id', j.node_id, 'node_name', j.node_name,
                                                 'eligible', j.is_eligible, 'score', j.score,
                                                 'reasons', j.reasons) order by j.place)
                      filter (where j.reasons is not null), '[]')
    from judged j;
end
$$;

-- Returns what keeps every live node from what was just spawned, a sentence each: p_id is a lease, a gang (20
-- kinds of its members) or an everywhere task. Empty: a live node suits it, whatever is free now, or nothing
-- has this id. It reads all nodes: ask it of what spawn_lease does not know yet (warnings is null).
create or replace function hwqueue.spawn_warnings(p_id uuid) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
  -- each class by its key, however many there are
  set enable_hashjoin = off set enable_mergejoin = off
as $$ begin
  -- plpgsql keeps the plan, which takes longer to make than to run
  return (with fleet as materialized (
    select t.now, s.nodes, hwqueue.fleet_headline((s.nodes).registered, bit_count((s.nodes).live),
             bit_count((s.nodes).open), (s.nodes).seen_at, t.now) as headline, v.*
    from (select hwqueue.clock() as now) t
    cross join lateral (select hwqueue.scan_nodes(t.now) as nodes offset 0) s
    cross join lateral hwqueue.served_names(t.now) v
  )
  select array(
    select distinct m.message
    from fleet v
    cross join lateral hwqueue.class_fleets(array(
      select c.class_id from hwqueue.placement_class c
      where (hwqueue.my_tenants() is null or c.tenant = any (hwqueue.my_tenants()))
        and c.class_id = any (array(
          select l.class_id from hwqueue.lease l
          where l.lease_id = any (p_id || (select g.members from hwqueue.gang g where g.gang_id = p_id))
          union
          select e.class_id from hwqueue.everywhere e where e.everywhere_id = p_id))
      order by 1 limit 20), v.nodes, v.now) f
    join hwqueue.placement_class c on c.class_id = f.class_id
    join hwqueue.queue q on q.queue_id = c.queue_id
    left join hwqueue.node n on n.node_id = (v.nodes).node_ids[position(B'1' in f.near)]
    cross join lateral hwqueue.part_reason(f.part, f.expr, c, n, true, v.now) r
    cross join lateral hwqueue.class_headline(f, null, v.headline,
      case when f.nodes_serving = 0 then hwqueue.unserved_words(q.name, c.task_name, v.queues, v.tasks,
        v.any_queue, hwqueue.my_tenants() is null) end,
      r, null, null, null) h
    cross join lateral (
      select array(select u.words
        from hwqueue.unknown_names(c.required, c.custom, v.now) u
        where f.nodes_matching = 0 and (v.headline).code is null limit 5) as unknown) w
    cross join lateral unnest(w.unknown || array[
      case when f.nodes_matching = 0 and (w.unknown = '{}' or not h.unmatched) then h.message end,
      case when c.task_name = any (v.declared) and not exists (select from hwqueue.task t
          where t.name = c.task_name)
        then format('leases get the defaults that workers declare for task %s once the database has them: '
          'hwqueue task sync', to_json(c.task_name)) end]) m(message)
    where m.message is not null order by 1));
end $$;
