-- Why a lease is where it is, in words. Many classes at once are explained by explain/pending.
--
-- The invariant: every fact comes from a function that claims decide with, through judge_fleet and
-- class_fits. Only the choice of what to say first is made here.

-- Returns what keeps a class from nodes, and how many could run it, now and ever. fleet: see judge_fleet.
-- headline, code, permanent: what has to change first (class_headline), in a sentence, with names that are
-- nearly those that it asks for; a caller of one tenant is told none of queues and tasks: they may be
-- another's. unmatched: no node has what it asks. The caller adds patience, deadlines and the place in line.
create or replace function hwqueue.class_verdict(
  p_class hwqueue.placement_class, p_queue hwqueue.queue, p_known jsonb, p_prefers boolean, p_now timestamptz,
  out headline text, out code text, out permanent boolean, out nodes_matching bigint, out nodes_free bigint,
  out sole_blockers jsonb, out unmatched boolean, out fleet jsonb)
language plpgsql stable
as $$
declare
  v_fit hwqueue.class_match;
  v_rule jsonb;
  v_part hwqueue.headline;
  v_free int;  -- null: the conflict says all
  v_conflict hwqueue.headline;
begin
  fleet := hwqueue.judge_fleet(p_class, p_known, p_prefers, p_now);
  v_fit := jsonb_populate_record(v_fit, fleet);
  nodes_matching := v_fit.nodes_matching;
  nodes_free := (fleet ->> 'nodes_free')::bigint;
  sole_blockers := (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
      'stage', s.value -> 'stage', 'code', s.value -> 'code', 'permanent', s.value -> 'permanent',
      'predicate', case when s.value ? 'lacks'
        then jsonb_build_object('resources', hwqueue.amounts_of(p_class, (s.value ->> 'lacks')::int, null))
        else hwqueue.without_terms(s.value -> 'predicate') end,
      'words', hwqueue.failure_words(s.value, p_class), 'nodes', s.value -> 'nodes',
      'samples', s.value -> 'samples')) order by s.ordinality), '[]')
    from jsonb_array_elements(fleet -> 'sole') with ordinality s);
  if nodes_matching = 0 then
    -- the part that alone keeps out most nodes, else the one that most nodes fail first
    select r.rule, case when r.is_sole then (r.rule ->> 'nodes')::int else 0 end into v_rule, v_fit.nodes_near
    from (
      select true as is_sole, s.value as rule, s.ordinality as turn
      from jsonb_array_elements(fleet -> 'sole') with ordinality s
      where s.value ->> 'stage' not in ('live', 'cordon', 'free', 'away', 'spread')
      union all
      select false, f.value, -(f.value ->> 'nodes')::bigint from jsonb_array_elements(fleet -> 'first') f
      where f.value ->> 'stage' <> 'live') r
    order by r.is_sole desc, r.turn limit 1;
    v_part := row(v_rule ->> 'code', hwqueue.failure_words(v_rule, p_class));
  elsif p_class.class_id is not null and (
    hwqueue.has_stale_policy(p_class) or not hwqueue.has_published_terms(p_class.terms) or exists (
      select from hwqueue.class_term m  -- what selects it (terms_reason asks the same)
      join hwqueue.affinity_term t on t.term_id = m.term_id
      where m.class_id = p_class.class_id and not m.is_own
        and t.published_at is null and t.was_published)) then
    v_conflict.code := 'unpublished';
    v_conflict.message := 'what it asks about other leases is not published yet'
      || coalesce((  -- for the oldest transaction that writes and may not see them, if the server shows it
        select format(': it waits for the transaction of session %s%s%s', a.pid,
          coalesce(' (' || nullif(a.application_name, '') || ')', ''),
          -- null without the rights of pg_read_all_stats
          ', open for ' || hwqueue.span_words(p_now - a.xact_start))
        from pg_catalog.pg_stat_activity a
        -- whose session that is, a caller of one tenant is not told
        where a.pid <> pg_backend_pid() and a.backend_xid is not null and hwqueue.my_tenants() is null
          and exists (select 1 from pg_snapshot_xip(pg_current_snapshot()) x
              where x::text::bigint % 4294967296 = a.backend_xid::text::bigint)
        order by a.xact_start limit 1), '');
  elsif nodes_free = 0 then
    select f.value ->> 'code', case when f.value ->> 'stage' = 'away' then (
             -- the first lease that it must be with, which neither runs nor has ended
             select format('waits for lease %s, which is %s itself', l.lease_id,
               hwqueue.lease_state(l.lease_id))
             from jsonb_array_elements(p_class.required) with ordinality e
             join hwqueue.lease l on l.lease_id = (e.value ->> 'lease')::uuid
             where e.value ? 'lease' and not e.value ? 'away'
               and not exists (select 1 from hwqueue.outcome o where o.lease_id = l.lease_id)
               and not exists (select 1 from hwqueue.claim c where c.lease_id = l.lease_id)
             order by e.ordinality limit 1) end
    into v_conflict
    from jsonb_array_elements(fleet -> 'first') f
    where f.value ->> 'stage' in ('free', 'away', 'spread')
    order by (f.value ->> 'nodes')::bigint desc limit 1;
    v_conflict.code := replace(v_conflict.code, 'insufficient_capacity', 'nodes_support_but_contended');
    if v_conflict.message is null then
      v_free := 0;
      v_conflict.message := (
        select string_agg(case when f.value ->> 'stage' = 'free'
                 then hwqueue.count_words((f.value ->> 'nodes')::bigint, 'lacks', 'lack') || ' ' || f.words
                 else hwqueue.count_words((f.value ->> 'nodes')::bigint, 'is', 'are')
                   || format(' kept out by "%s"', f.words) end, ', ' order by f.ordinality)
        from (select x.value, hwqueue.failure_words(x.value, p_class) as words,
                     row_number() over (order by (x.value ->> 'nodes')::bigint desc) as ordinality
              from jsonb_array_elements(fleet -> 'first') x
              where x.value ->> 'stage' in ('free', 'away', 'spread')) f
        where f.ordinality <= 3) || (
        select case when count(*) = 0 then ''
          else format('; room is kept for a gang on %s of them', count(*)) end
        from hwqueue.node n
        where n.deregistered_at is null and n.node_id = any (array(
            select c.node_id from hwqueue.gang g
            join hwqueue.claim c on c.lease_id = any (g.members) and c.is_earmark
            where g.state = 'earmarked')) and hwqueue.node_suits(p_class.class_id, n, hwqueue.clock()));
    end if;
  else
    v_free := nodes_free;
  end if;
  select h.message, h.code, h.permanent, h.unmatched into headline, code, permanent, unmatched
  from hwqueue.class_headline(v_fit, p_queue, hwqueue.fleet_headline(
      (fleet ->> 'registered')::bigint, (fleet ->> 'live')::bigint, (fleet #>> '{funnel,1,nodes}')::bigint,
      (fleet ->> 'last_seen')::timestamptz, p_now), (
    select hwqueue.unserved_words(p_queue.name, p_class.task_name, s.queues, s.tasks, s.any_queue,
      hwqueue.my_tenants() is null)
    from hwqueue.served_names(p_now) s where v_fit.nodes_matching + v_fit.nodes_serving = 0),
    v_part, v_free, v_conflict, null) h;
  if unmatched then
    headline := headline || hwqueue.similar_words(p_class.required, p_class.custom, p_now);
  end if;
end
$$;

-- Returns the same of several classes, each once, as their leases would be judged now if they had any. code:
-- "ready" where a node could take one now.
create or replace function hwqueue.class_verdicts(p_classes hwqueue.placement_class[], p_now timestamptz)
returns table (digest bytea, headline text, code text, permanent boolean, nodes_matching bigint,
  nodes_free bigint, sole_blockers jsonb)
language sql stable
as $$
  select c.digest, v.headline, coalesce(v.code, 'ready'), v.permanent, v.nodes_matching, v.nodes_free,
         v.sole_blockers
  from (select distinct on (u.digest) u as class, u.digest, u.queue_id from unnest(p_classes) u) c
  left join hwqueue.queue q on q.queue_id = c.queue_id
  cross join lateral hwqueue.class_verdict(c.class, q, hwqueue.recount_terms(c.class, null, p_now), false,
    p_now) v
$$;

-- Returns why leases of a class are pending, as explain_lease has it. p_lease, p_eligible_at, p_deadline: of
-- the lease that is explained, or of the first in line; p_lease null: there is none.
create or replace function hwqueue.explain_waiting(
  p_class hwqueue.placement_class, p_lease uuid, p_eligible_at timestamptz, p_deadline timestamptz,
  p_now timestamptz,
  out headline text, out code text, out permanent boolean, out waits_until timestamptz, out funnel jsonb,
  out sole_blockers jsonb, out nearest jsonb, out help jsonb, out pending bigint,
  out nodes_registered bigint, out nodes_live bigint, out nodes_matching bigint, out nodes_free bigint)
language plpgsql stable
as $$
declare
  v_queue hwqueue.queue;
  v_known jsonb := hwqueue.recount_terms(p_class, p_lease, p_now);
  v_prefers boolean;
  v_fleet jsonb;
  v_unmatched boolean;
  v_free hwqueue.node;
begin
  select q.* into v_queue from hwqueue.queue q where q.queue_id = p_class.queue_id;
  v_prefers := p_eligible_at + coalesce(p_class.patience, v_queue.patience) > p_now
    and (p_class.preferred <> '[]' or exists (
           select 1 from hwqueue.profile p where p.taints @> '[{"effect": "prefer_no_schedule"}]'));
  pending := (
    select count(*) from (select 1 from hwqueue.ready r where r.class_id = p_class.class_id limit 10001) r);
  select v.headline, v.code, v.permanent, v.nodes_matching, v.nodes_free, v.sole_blockers, v.unmatched,
         v.fleet, v.fleet -> 'registered', v.fleet -> 'live', v.fleet -> 'funnel'
  into headline, code, permanent, nodes_matching, nodes_free, sole_blockers, v_unmatched,
       v_fleet, nodes_registered, nodes_live, funnel
  from hwqueue.class_verdict(p_class, v_queue, v_known, coalesce(v_prefers, false), p_now) v;
  nearest := (
    select coalesce(jsonb_agg(jsonb_build_object('node_id', n.node_id, 'node', n.name, 'rack', n.rack,
             'seen_at', s.seen_at, 'state', case when n.cordoned_at is not null then 'cordoned'
               when l.is_live then 'live' else 'silent' end,
             'reasons', r.reasons || case when l.is_live then '[]'
               else jsonb_build_array(jsonb_build_object('stage', 'live', 'code', 'node_not_live',
                 'permanent', false, 'message', format('no sign of life since %s', s.seen_at))) end)
             order by i.ordinality), '[]')
    from jsonb_array_elements(v_fleet -> 'nearest') with ordinality i
    join hwqueue.node n on n.node_id = (i.value ->> 'node_id')::uuid
    join hwqueue.node_state s on s.node_id = n.node_id
    cross join lateral (select hwqueue.is_live(n, s, p_now) as is_live) l
    left join hwqueue.fleet_facts(p_class, v_known, p_now) t on t.node_id = n.node_id
      and t.node_id = any (array(
        select (e.value ->> 'node_id')::uuid from jsonb_array_elements(v_fleet -> 'nearest') e))
    cross join lateral (
      select hwqueue.read_load(n.node_id) as load, coalesce(t.facts, '[]') as facts, (
               select min(d) from jsonb_array_elements_text(v_known -> 'kept_out') d
               where v_known -> 'kept_at'
                 ? (d || '@' || hwqueue.domain_value(d, n.node_id, n.rack, n.labels))) as kept_out offset 0) k
    cross join lateral (
      select coalesce(jsonb_agg(
               hwqueue.failure_reason(f, p_class, n, k.load)
               || hwqueue.failure_detail(f, k.facts, k.kept_out, p_class, p_lease, n, k.load, p_now)
               order by e.ordinality), '[]') as reasons
      from jsonb_array_elements(i.value -> 'failures') with ordinality e
      cross join lateral jsonb_populate_record(null::hwqueue.failure, e.value) f
      offset 0) r);
  help := hwqueue.what_helps(p_class, v_queue, v_fleet, nearest, pending);
  if v_unmatched then
    -- names that no live node has: those with a similar one first, the others last
    help := (
      select coalesce(jsonb_agg(k.help order by k.words) filter (where k.is_known), '[]')
        || explain_waiting.help
        || coalesce(jsonb_agg(k.help order by k.words) filter (where not k.is_known), '[]')
      from (
        select u.words, u.is_known, jsonb_build_object('action', 'correct', 'leases', pending, 'words',
                 u.words || case when u.is_known then '' else ': check its spelling' end) as help
        from hwqueue.unknown_names(p_class.required, p_class.custom, p_now) u) k);
  end if;
  if p_deadline <= p_now then
    code := 'deadline_exceeded';
    permanent := true;
    headline := format('its deadline passed %s ago: the next reap fails it',
        hwqueue.span_words(p_now - p_deadline));
  elsif code is null and v_prefers and v_fleet ->> 'best_free' is not null then
    select n.* into v_free from hwqueue.node n where n.node_id = (v_fleet ->> 'best_free')::uuid;
    waits_until := p_eligible_at + (hwqueue.waits_for(p_class, v_free, p_eligible_at, p_now)).wait;
    if waits_until > p_now then
      code := 'waiting_for_preferred';
      headline := format('waits %s more for node %s, which suits it better than %s',
          hwqueue.span_words(waits_until - p_now), v_fleet ->> 'best',
        case nodes_free when 1 then 'the free node ' || v_free.name
          else 'the ' || nodes_free || ' free nodes' end);
    else
      waits_until := null;
    end if;
  end if;
end
$$;

-- Says of a lease that is not pending where it runs, until when, and why it was asked to stop; or when it
-- becomes claimable, what its limit, handler, gang or everywhere task waits for; or how it ended (p_end).
create or replace function hwqueue.lease_story(p_lease hwqueue.lease, p_claim hwqueue.claim,
  p_end hwqueue.outcome, p_state text, p_now timestamptz, out headline text, out code text,
  out waits_until timestamptz)
language plpgsql stable
as $$
declare
  v_runs boolean := p_state = 'claimed' and p_claim.lease_id is not null;
  v_node_id uuid := case when v_runs then p_claim.node_id else p_end.node_id end;
  v_node text := coalesce((select n.name from hwqueue.node n where n.node_id = v_node_id), v_node_id::text);
  v_wait hwqueue.checkpoint;
  v_error jsonb := p_end.error;
begin
  if p_state = 'scheduled' and p_lease.lanes is not null then
    select w.headline, w.code, w.opens_at into headline, code, waits_until
    from hwqueue.limit_wait(p_lease, p_now) w;
    if code is not null then
      return;
    end if;
  end if;
  code := p_state;
  waits_until := nullif(case p_state when 'claimed' then p_claim.expires_at
    when 'scheduled' then p_lease.available_at end, 'infinity');
  if p_state = 'scheduled' then
    v_wait := hwqueue.suspension_of(p_lease);
    v_error := (select a.error from hwqueue.attempt a
                where a.lease_id = p_lease.lease_id order by a.claim_token desc limit 1);
  end if;
  if v_wait.name is not null and p_lease.available_at > p_now
    and (v_wait.signal is not null or p_lease.available_at < 'infinity') then
    headline := 'suspended: its handler ' || case when v_wait.signal is null
      then format('goes on in %s', hwqueue.span_words(p_lease.available_at - p_now))
      else format('waits for signal %s', to_json(v_wait.signal))
        || coalesce(', for ' || hwqueue.span_words(v_wait.waits_until - p_now) || ' at most', '') end;
  elsif v_runs and p_claim.is_earmark and p_claim.team_id is not null
    or p_state = 'scheduled' and (p_lease.team_id is not null or p_lease.available_at = 'infinity') then
    headline := coalesce(hwqueue.team_words(p_lease.lease_id, p_lease.team_id, p_now), 'scheduled');
    code := case when not v_runs then code when hwqueue.is_everywhere(p_lease.lease_id, p_lease.team_id)
      then 'everywhere_earmarked' when exists (
        select from hwqueue.gang g where g.gang_id = p_lease.team_id and g.reason = 'waits_for_preemption')
      then 'waits_for_preemption' else 'gang_earmarked' end;
  elsif v_runs and p_claim.is_reserved and p_claim.team_id is null then
    code := case when p_claim.is_earmark and exists (
        select from hwqueue.replacement r where r.lease_id = p_lease.lease_id and r.old_lease is null)
      then 'waits_for_preemption' else 'reserved' end;
    headline := format('has room on %s, ', v_node) || case when p_claim.is_earmark
      then 'that is still in use: ' || coalesce(hwqueue.team_words(p_lease.lease_id, null, p_now), '')
      else 'which fetches it with its next claim' end;
  elsif v_runs then
    code := case when p_claim.expires_at <= p_now then 'expired' when p_claim.stop_requested_at <= p_now
      then p_claim.stop_reason else 'claimed' end;
    headline := format('runs on %s for %s, attempt %s of %s; ', v_node,
        hwqueue.span_words(p_now - p_claim.claimed_at), p_claim.attempt, coalesce(p_lease.max_attempts, (
          select q.max_attempts from hwqueue.queue q where q.queue_id = p_lease.queue_id)))
      || case when p_claim.expires_at <= p_now
              then format('its claim expired %s ago, and the next reap ends it',
                  hwqueue.span_words(p_now - p_claim.expires_at))
              else format('its claim ends in %s unless its worker goes on',
                  hwqueue.span_words(p_claim.expires_at - p_now)) end
      || case when p_claim.stop_requested_at is null then ''
         else format('; it %s (%s%s)', case when p_claim.stop_requested_at > p_now
             then 'will be asked to stop in ' || hwqueue.span_words(p_claim.stop_requested_at - p_now)
             else format('was asked to stop %s ago',
               hwqueue.span_words(p_now - p_claim.stop_requested_at)) end,
           p_claim.stop_reason, coalesce(': ' || left(p_claim.stop_detail, 400), '')) end;
  elsif p_state = 'scheduled' then
    headline := case when p_lease.available_at > p_now then format('scheduled: claimable in %s',
        hwqueue.span_words(p_lease.available_at - p_now))
      else 'scheduled, and due: the next claim of the queue or reap makes it pending' end
      || case when p_lease.attempt_count > 0 then format(', for attempt %s%s', p_lease.attempt_count + 1,
        coalesce('; the one before ended with ' || hwqueue.error_words(v_error), '')) else '' end;
  else
    headline := format('%s %s ago%s%s%s', p_state, hwqueue.span_words(p_now - p_end.finished_at),
      coalesce(' on ' || v_node, ''),
      case when p_end.attempt > 0 then format(', attempt %s', p_end.attempt) else '' end,
      coalesce(': ' || hwqueue.error_words(v_error), ''));
  end if;
end
$$;

-- Returns what would let leases of a class run, the most useful first: [{"action", "words", "nodes": how many
-- it opens, "leases": how many wait, "predicate", "samples": names of nodes, "lease_id"}]. action: resume,
-- register, revive, uncordon, serve, tolerate, attest, resize, isolate, relax, add_node, wait.
create or replace function hwqueue.what_helps(p_class hwqueue.placement_class, p_queue hwqueue.queue,
  p_fleet jsonb, p_near jsonb, p_pending bigint)
returns jsonb
language plpgsql stable
as $$ begin return (
  select coalesce(jsonb_agg(jsonb_strip_nulls(h.help) || jsonb_build_object('leases', p_pending)
         order by h.place, h.ordinality), '[]')
  from (
    select 1 as place, 1 as ordinality,
           jsonb_build_object('action', 'resume', 'words',
               format('resume the queue: hwqueue queue resume %s', p_queue.name)) as help
    where p_queue.paused_at is not null
    union all
    select 2, 1, jsonb_build_object('action', 'register', 'words',
           'register a node: hwqueue worker run registers the machine it runs on')
    where p_fleet ->> 'registered' = '0'
    union all
    select 3, s.ordinality, jsonb_build_object('nodes', s.value -> 'nodes', 'samples', s.value -> 'samples',
             'predicate', hwqueue.without_terms(s.value -> 'predicate'), 'action', a.action,
             'words', format('%s but for ', hwqueue.count_words((s.value ->> 'nodes')::bigint,
               'node would match', 'nodes would match')) || case a.action
               when 'revive' then format('being silent: start the worker of %s', a.samples)
               when 'uncordon' then format('being cordoned: hwqueue node uncordon %s',
                 s.value #>> '{samples,0}')
               when 'admit' then format('being for other tenants: hwqueue node reserve %s TENANT', a.samples)
               when 'tolerate' then format('the taint %s: tolerate it, or take it off %s',
                 hwqueue.taint_text(s.value -> 'predicate'), a.samples)
               when 'serve' then format(case when s.value #> '{predicate,queue}' is not null
                 then '%s: hwqueue worker run --queue %s' else '%s: add it to the app of their workers' end,
                 a.words, s.value #>> '{predicate,queue}')
               when 'attest' then format('not being %s: hwqueue node attest, or node confirm if that is '
                 'suspended', a.words)
               when 'resize' then format('being smaller than %s: ask for less', a.words)
               when 'isolate' then format('not offering %s: let them, or ask for less', a.words)
               else format('%s: relax it', a.words) end)
    from jsonb_array_elements(p_fleet -> 'sole') with ordinality s
    cross join lateral (
      select case s.value ->> 'stage' when 'live' then 'revive' when 'cordon' then 'uncordon'
               when 'served' then 'serve' when 'trust' then 'attest' when 'taints' then case
                 when s.value -> 'predicate' ? 'tenants' then 'admit' else 'tolerate' end
               when 'capacity' then 'resize' when 'isolation' then 'isolate' else 'relax' end as action,
             hwqueue.list_words(s.value -> 'samples', 'and') as samples,
             hwqueue.failure_words(s.value, p_class) as words) a
    where s.value ->> 'stage' not in ('free', 'away', 'spread')
    union all
    select 4, 1, jsonb_build_object('action', 'add_node', 'words',
           left(replace('add a node with ' || hwqueue.class_words(p_class), ' with any node', ''), 400))
    where p_fleet ->> 'nodes_matching' = '0'
      and (p_fleet ->> 'nodes_serving' <> '0' or p_fleet ->> 'live' = '0')
    union all
    select 5, t.ordinality, t.help
    from (
      select jsonb_build_object('action', 'wait', 'lease_id', h.holder ->> 'lease_id', 'samples',
             jsonb_agg(h.node order by h.ordinality), 'nodes', count(*),
               'words', format(case when h.is_room then '%s is full: lease %s of %s holds %s'
                   else '%s is taken by lease %s of %s' end, h.place,
                 h.holder ->> 'lease_id', coalesce('service ' || (h.holder ->> 'service_id'),
                     'task ' || (h.holder ->> 'task')),
                 coalesce(h.holder ->> 'holds', 'a slot'))) as help,
             min(h.ordinality) as ordinality
      from (
        select n.value ->> 'node' as node, coalesce(r.value ->> 'place',
               'node ' || (n.value ->> 'node')) as place, r.value #> '{holders,0}' as holder,
               r.value ->> 'stage' = 'free' as is_room, n.ordinality
        from jsonb_array_elements(p_near) with ordinality n
        cross join jsonb_array_elements(n.value -> 'reasons') r
        where r.value ? 'holders' and jsonb_array_length(n.value -> 'reasons') = 1
      ) h
      group by h.place, h.holder, h.is_room
      order by min(h.ordinality) limit 5) t
  ) h
); end $$;
