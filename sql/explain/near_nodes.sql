-- The nodes that fail the least, and why.

-- {"wanted", "has", "holders", "place"} of one failed rule; what there is nothing to say of is left out.
create or replace function hwqueue.failure_detail(p_stage text, p_code text, p_predicate jsonb, p_lacks int, p_facts jsonb, p_kept_out text,
  p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_load hwqueue.node_load, p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
declare
  v_index int := (p_predicate ->> 'term')::int;
  v_spec jsonb := p_class.terms #> array[v_index::text, 'spec'];
  v_fact jsonb := p_facts -> v_index;
  v_domain text := coalesce((select t.domain from hwqueue.term t
                             where t.shard_id = p_shard and t.digest = (p_class.terms #>> array[v_index::text, 'digest'])::bigint),
                            hwqueue.term_domain(v_spec, p_shard));
  v_holders jsonb;
  v_place text := case when v_fact ->> 'value' is not null then hwqueue.place_words(v_domain, v_fact ->> 'value', p_shard) end;
begin
  if p_stage = 'free' then
    v_holders := hwqueue.holder_list(array(
      select c.lease_id from hwqueue.claim c
      where c.shard_id = p_shard and c.node_id = p_node.node_id and c.assignment is not null
      order by c.claimed_at, c.lease_id limit 5), true, p_now, p_shard);
  elsif p_stage = 'away' and p_predicate is null then
    v_domain := p_kept_out;
    v_place := hwqueue.place_words(p_kept_out, hwqueue.domain_value(p_kept_out, p_node.node_id, p_node.rack, p_node.labels), p_shard);
    v_holders := hwqueue.away_holders(p_class, p_lease, p_kept_out, p_node, p_now, p_shard);
  elsif p_stage = 'spread' or p_stage = 'away' and p_predicate ? 'away' then
    v_holders := hwqueue.term_holders(v_spec, v_domain, p_node, p_now, p_shard);
  end if;
  return jsonb_strip_nulls(jsonb_build_object(
    'wanted', hwqueue.blocker_words(p_stage, p_code, p_predicate, p_lacks, p_class),
    'has', hwqueue.node_has(p_stage, p_predicate, p_lacks, v_fact, v_domain, p_class, p_node, p_load, p_now),
    'place', v_place, 'holders', nullif(v_holders, '[]')));
end
$$;

-- Nodes and all that keeps a lease of a class off each of them: [{"node_id", "node", "rack", "state": live | silent | cordoned, "seen_at", "reasons": [those of
-- class_reasons, with "wanted" and "has" in words, "holders" where running leases are the reason, and for others "place"]}], in the order given.
-- p_lease: the lease that asks, null for any of the class; p_known: see known_of_others.
create or replace function hwqueue.near_nodes(p_node_ids uuid[], p_class hwqueue.placement_class, p_lease uuid, p_known jsonb, p_now timestamptz, p_shard int)
returns jsonb
language sql stable
as $$
  select coalesce(jsonb_agg(jsonb_build_object('node_id', n.node_id, 'node', n.name, 'rack', n.rack, 'seen_at', s.seen_at,
           'state', case when n.cordoned_at is not null then 'cordoned' when hwqueue.is_live(n, s, p_now) then 'live' else 'silent' end,
           'reasons', r.reasons || case when hwqueue.is_live(n, s, p_now) then '[]' else jsonb_build_array(jsonb_build_object('stage', 'live',
             'code', 'node_not_live', 'permanent', false, 'message', format('no sign of life since %s', s.seen_at))) end) order by i.ordinality), '[]')
  from unnest(p_node_ids) with ordinality i(node_id, ordinality)
  join hwqueue.node n on n.shard_id = p_shard and n.node_id = i.node_id
  join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = i.node_id
  cross join lateral (
    select hwqueue.read_load(n.node_id, p_shard) as load,
           hwqueue.term_facts(p_class, n, case when p_known ? 'terms' then p_known end, p_now, p_shard) as facts,
           hwqueue.known_to_keep_out(p_known, n) as kept_out offset 0) k
  cross join lateral (
    select coalesce(jsonb_agg(
             hwqueue.failure_reason(f.stage, f.code, f.permanent, f.message, f.predicate, f.lacks, p_class, n, k.load)
             || hwqueue.failure_detail(f.stage, f.code, f.predicate, f.lacks, k.facts, k.kept_out, p_class, p_lease, n, k.load, p_now, p_shard)
             order by array_position(hwqueue.funnel_stages(), f.stage)), '[]') as reasons
    from hwqueue.all_failures(p_class, n, k.load, k.facts, p_known -> 'spread', k.kept_out, p_now, p_shard) f offset 0) r
$$;
