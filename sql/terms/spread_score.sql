-- How well one more lease of a class would be spread if it ran on a node, 0..100, the mean over its kinds of spread preferences; 0 without any.
-- "when": "prefer": 100 / (1 + c), c the rounded sum of count x ln(domains + 2) + max_skew - 1 (Kubernetes' PodTopologySpread score, turned
-- round); 0 where the node lacks a domain. "targets": 100 x percent / (percent + share), weighted, share what the domain would hold of
-- all that match, this lease included, in percent: 50 at the target; without a target the rest of the hundred, and without any all
-- domains alike.
-- p_recounts, p_counts: what recount_terms gave as terms and spread; null: not known, for claims.
create or replace function hwqueue.spread_score(p_class hwqueue.placement_class, p_facts jsonb, p_recounts jsonb, p_counts jsonb, p_now timestamptz, p_shard int)
returns double precision
language plpgsql stable
as $$
declare
  v_spread jsonb;
  v_fact jsonb;
  v_counts jsonb;
  v_cost double precision;
  v_gain double precision := 0;
  v_weights double precision := 0;
  v_weight double precision;
begin
  for v_index in 0 .. jsonb_array_length(p_class.spread) - 1 loop
    v_spread := p_class.spread -> v_index;
    v_fact := p_facts -> (v_spread ->> 'term')::int;
    if v_spread ? 'targets' then
      v_weight := coalesce((v_spread ->> 'weight')::double precision, 100);
      v_gain := v_gain + v_weight * hwqueue.target_gain(v_spread, v_fact, p_class, p_recounts -> (v_spread ->> 'term')::int, p_now, p_shard);
      v_weights := v_weights + v_weight;
    elsif v_spread ? 'when' then
      v_counts := coalesce(p_counts -> v_index, hwqueue.spread_counts(v_spread, p_class, null, p_now, p_shard));
      v_cost := coalesce(v_cost, 0) + case when v_fact ->> 'value' is null then 'infinity' else
        coalesce((v_counts #>> array['here', v_fact ->> 'value'])::double precision, 0) * ln((v_counts ->> 'places')::double precision + 2)
        + (v_spread ->> 'max_skew')::int - 1 end;
    end if;
  end loop;
  return case
    when v_cost is null and v_weights = 0 then 0
    when v_cost is null then 100 * v_gain / v_weights
    when v_weights = 0 then 100 / (1 + round(v_cost))
    else (100 * v_gain / v_weights + 100 / (1 + round(v_cost))) / 2 end;
end
$$;

-- The gain of one {"targets"}, 0..1.
create or replace function hwqueue.target_gain(p_spread jsonb, p_fact jsonb, p_class hwqueue.placement_class, p_recount jsonb, p_now timestamptz, p_shard int)
returns double precision
language plpgsql stable
as $$
declare
  v_term_id bigint := (
    select t.term_id from hwqueue.term t
    where t.shard_id = p_shard and t.digest = (p_class.terms #>> array[p_spread ->> 'term', 'digest'])::bigint);
  v_share double precision;
  v_percent double precision;
begin
  if p_fact ->> 'value' is null then
    return 0;
  end if;
  v_share := 100 * ((p_fact ->> 'here')::double precision + 1) / (hwqueue.staying(v_term_id, p_recount, null, true, p_now, p_shard) + 1);
  v_percent := case when p_spread -> 'targets' = '[]' then 100.0 / greatest(1, (
      select count(distinct hwqueue.domain_value(p_spread ->> 'domain', n.node_id, n.rack, n.labels))
      from hwqueue.node n
      join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
      where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)))
    else coalesce(
      (select (t.value ->> 'percent')::double precision from jsonb_array_elements(p_spread -> 'targets') t
       where case when p_spread ->> 'domain' like 'label:%' then (t.value -> 'value')::text else t.value ->> 'value' end = p_fact ->> 'value'),
      100 - (select coalesce(sum((t.value ->> 'percent')::double precision), 0) from jsonb_array_elements(p_spread -> 'targets') t
             where t.value ->> 'value' <> '*')) end;
  return v_percent / (v_percent + v_share);
end
$$;
