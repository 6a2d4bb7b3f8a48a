-- Why leases of a class are pending: what explain_class and explain_lease have in common.
-- p_lease, p_eligible_at, p_deadline: of the lease that is asked about, or of the first in line; p_lease null: there is none.
create or replace function hwqueue.explain_waiting(p_class hwqueue.placement_class, p_lease uuid, p_eligible_at timestamptz, p_deadline timestamptz,
  p_now timestamptz, p_shard int, out headline text, out code text, out permanent boolean, out waits_until timestamptz, out funnel jsonb,
  out sole_blockers jsonb, out nearest jsonb, out help jsonb, out pending bigint, out nodes_registered bigint, out nodes_live bigint,
  out nodes_matching bigint, out nodes_free bigint)
language plpgsql stable
as $$
declare
  v_queue hwqueue.queue;
  v_known jsonb := hwqueue.known_of_others(p_class, p_lease, p_now, p_shard);
  v_prefers boolean;
  v_fleet jsonb;
  v_free hwqueue.node;
begin
  select q.* into v_queue from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_class.queue_id;
  v_prefers := p_eligible_at + coalesce(p_class.patience, v_queue.patience) > p_now
    and (p_class.preferred <> '[]' or exists (
           select 1 from hwqueue.profile p where p.shard_id = p_shard and p.taints @> '[{"effect": "prefer_no_schedule"}]'));
  v_fleet := hwqueue.judge_fleet(p_class, v_known, coalesce(v_prefers, false), p_now, p_shard);
  select count(*) into pending
  from (select 1 from hwqueue.ready r where r.shard_id = p_shard and r.class_id = p_class.class_id limit 10001) r;
  select f.registered, f.live, f.matching, f.free, f.funnel
  into nodes_registered, nodes_live, nodes_matching, nodes_free, funnel
  from jsonb_to_record(v_fleet) f(registered bigint, live bigint, matching bigint, free bigint, funnel jsonb);
  sole_blockers := (
    select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('stage', s.value -> 'stage', 'code', s.value -> 'code', 'permanent', s.value -> 'permanent',
      'predicate', case when s.value ? 'lacks' then jsonb_build_object('resources', hwqueue.needs_of(p_class, (s.value ->> 'lacks')::int, null))
                        else hwqueue.without_terms(s.value -> 'predicate') end, 'words', hwqueue.failure_words(s.value, p_class), 'nodes', s.value -> 'nodes',
      'samples', s.value -> 'samples')) order by s.ordinality), '[]')
    from jsonb_array_elements(v_fleet -> 'sole') with ordinality s);
  nearest := hwqueue.near_nodes(array(select n.value::uuid from jsonb_array_elements_text(v_fleet -> 'near') with ordinality n order by n.ordinality),
                                p_class, p_lease, v_known, p_now, p_shard);
  help := hwqueue.what_helps(p_class, v_queue, v_fleet, nearest, pending);
  select h.headline, h.code, h.permanent into headline, code, permanent
  from hwqueue.pending_headline(p_class, v_queue, v_fleet, p_now, p_shard) h;
  if p_deadline <= p_now then
    code := 'deadline_exceeded';
    permanent := true;
    headline := format('its deadline passed %s ago: the next reap fails it', hwqueue.span_words(p_now - p_deadline));
  elsif code is null and v_prefers and v_fleet ->> 'best_free' is not null then
    select n.* into v_free from hwqueue.node n where n.shard_id = p_shard and n.node_id = (v_fleet ->> 'best_free')::uuid;
    waits_until := p_eligible_at + (hwqueue.waits_for(p_class, v_free, p_eligible_at, true, p_now, p_shard)).wait;
    if waits_until > p_now then
      code := 'waiting_for_preferred';
      headline := format('waits %s more for node %s, which suits it better than %s', hwqueue.span_words(waits_until - p_now), v_fleet ->> 'best',
        case nodes_free when 1 then 'the free node ' || v_free.name else 'the ' || nodes_free || ' free nodes' end);
    else
      waits_until := null;
    end if;
  end if;
end
$$;
