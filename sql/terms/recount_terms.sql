-- What runs, counted from the claims themselves: for dry runs (match_nodes, explanations), whose class may not be written anywhere, and to hold the
-- counts against.

-- All that a class must know of others, on every node: {"terms": [{PLACE: {"held", "here"}}, ...] in the order of its terms,
-- "spread": [spread_counts, ...] in the order of its spread, and what kept_out_places gives}.
-- p_lease: the lease that asks; null: one that is not spawned yet.
create or replace function hwqueue.recount_terms(p_class hwqueue.placement_class, p_lease uuid, p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
declare
  v_terms jsonb := '[]'::jsonb;
  v_counts jsonb := '[]'::jsonb;
  v_term jsonb;
  v_spread jsonb;
begin
  for v_term in select s.value -> 'spec' from jsonb_array_elements(p_class.terms) with ordinality s order by s.ordinality loop
    v_terms := v_terms || jsonb_build_array(hwqueue.recount_term(v_term, p_now, p_shard));
  end loop;
  for v_spread in select s.value from jsonb_array_elements(p_class.spread) with ordinality s order by s.ordinality loop
    v_counts := v_counts || coalesce(
      case when v_spread ? 'max_skew' then hwqueue.spread_counts(v_spread, p_class, v_terms, p_now, p_shard) end, 'null');
  end loop;
  return hwqueue.kept_out_places(p_class, p_lease, p_shard)
    || jsonb_build_object('terms', v_terms, 'spread', v_counts);
end
$$;

-- Running leases that a term selects, by place: {PLACE: {"held", "bound", "here"}}; bound without those asked to stop, here without the
-- expired, either, nor, of max_skew, those on dead nodes.
create or replace function hwqueue.recount_term(p_spec jsonb, p_now timestamptz, p_shard int) returns jsonb
language sql stable
as $$
  -- all that term_selects asks of a class; very many may run that differ in what they need
  with alike as materialized (
    select array_agg(k.class_id) as class_ids
    from hwqueue.placement_class k
    where k.shard_id = p_shard
      and k.class_id in (select u.class_id from hwqueue.claim u where u.shard_id = p_shard)
    group by k.queue_id, k.task_name, k.tenant, k.service_id, k.labels, k.target
  ), selected as materialized (
    select unnest(a.class_ids) as class_id
    from alike a
    where (select hwqueue.term_selects(p_spec, k) from hwqueue.placement_class k
           where k.shard_id = p_shard and k.class_id = a.class_ids[1])
  ), domain as materialized (
    select hwqueue.term_domain(p_spec, p_shard) as domain
  )
  select coalesce(jsonb_object_agg(r.place, jsonb_build_object('held', r.held, 'here', r.here, 'bound', r.bound)), '{}')
  from (
    select coalesce(hwqueue.term_place(p_spec, d.domain, n.node_id, n.rack, n.labels), '') as place,
           count(*) as held, count(*) filter (where c.stop_requested_at <= p_now is not true) as bound,
           count(*) filter (where c.stop_requested_at <= p_now is not true and c.expires_at > p_now
                              and (p_spec ->> 'use' <> 'skew' or hwqueue.is_live(n, s, p_now))) as here
    from domain d
    cross join selected k
    join hwqueue.claim c on c.shard_id = p_shard and c.class_id = k.class_id
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = c.node_id
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = c.node_id
    group by 1
  ) r
$$;

-- Where a class is kept out by running leases that require to be away from it: {"kept_out": [DOMAIN, ...],
-- "kept_at": {"DOMAIN@PLACE": true}}.
create or replace function hwqueue.kept_out_places(p_class hwqueue.placement_class, p_lease uuid, p_shard int) returns jsonb
language sql stable
as $$
  select jsonb_build_object('kept_out', coalesce(jsonb_agg(distinct h.domain), '[]'),
                            'kept_at', coalesce(jsonb_object_agg(h.domain || '@' || h.place, true), '{}'))
  from (
    select a.domain, hwqueue.domain_value(a.domain, n.node_id, n.rack, n.labels) as place
    from (
      select k.class_id, hwqueue.term_domain(t.value -> 'spec', p_shard) as domain
      from hwqueue.placement_class k, jsonb_array_elements(k.terms) t
      where k.shard_id = p_shard and k.class_id in (select u.class_id from hwqueue.claim u where u.shard_id = p_shard)
        and t.value #>> '{spec,use}' = 'away'
        and (hwqueue.term_selects(t.value -> 'spec', p_class) or (t.value #>> '{spec,all,0,lease}')::uuid = p_lease)
    ) a
    join hwqueue.claim c on c.shard_id = p_shard and c.class_id = a.class_id
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = c.node_id
  ) h
  where h.place is not null
$$;
