-- How well one more lease of a class would be spread if it ran on a node, 0..100, the mean over its spread preferences; 0 without any.
-- "when": "prefer", and max_skew: 100 / (1 + c), c the sum of count x ln(domains + 2) + max_skew - 1 (Kubernetes' PodTopologySpread
-- score, turned round); 0 where the node lacks the domain. "targets": 50 x (1 + boost), boost = (desired - used - 1) / desired (Nomad's
-- spread boost), -1..1; used: matching leases there; desired: percent of all that match and this one, what has no target shares the rest.
-- p_recounts: see spread_floor.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.spread_score(p_class hwqueue.placement_class, p_facts jsonb, p_recounts jsonb, p_now timestamptz, p_shard int)
returns double precision
language plpgsql stable
as $$
declare
  v_spread jsonb;
  v_fact jsonb;
  v_cost double precision;
  v_boosts double precision[] := '{}';
  v_weights double precision := 0;
  v_boost double precision := 0;
begin
  for v_spread in select s.value from jsonb_array_elements(p_class.spread) s loop
    v_fact := p_facts -> (v_spread ->> 'term')::int;
    if v_spread ? 'targets' then
      v_boost := v_boost + coalesce((v_spread ->> 'weight')::double precision, 100)
        * hwqueue.target_boost(v_spread, v_fact, p_class, p_recounts -> (v_spread ->> 'term')::int, p_now, p_shard);
      v_weights := v_weights + coalesce((v_spread ->> 'weight')::double precision, 100);
    elsif v_spread ? 'when' then
      v_cost := coalesce(v_cost, 0) + case when v_fact ->> 'value' is null then 'infinity' else
        (v_fact ->> 'here')::double precision
          * ln(cardinality(hwqueue.spread_places(v_spread, p_class, p_now, p_shard)) + 2.0) + (v_spread ->> 'max_skew')::int - 1 end;
    end if;
  end loop;
  if v_cost is not null then
    v_boosts := v_boosts || 100 / (1 + v_cost);
  end if;
  if v_weights > 0 then
    v_boosts := v_boosts || 50 * (1 + v_boost / v_weights);
  end if;
  return coalesce((select avg(b) from unnest(v_boosts) b), 0);
end
$$;

-- The boost of one {"targets"}, -1..1; without targets all domains of live nodes are to hold the same.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.target_boost(p_spread jsonb, p_fact jsonb, p_class hwqueue.placement_class, p_recount jsonb, p_now timestamptz, p_shard int)
returns double precision
language plpgsql stable
as $$
declare
  v_term_id bigint := (
    select t.term_id from hwqueue.term t
    where t.shard_id = p_shard and t.digest = (p_class.terms #>> array[p_spread ->> 'term', 'digest'])::bigint);
  v_total bigint;
  v_percent double precision;
  v_desired double precision;
  v_least bigint;
  v_most bigint;
begin
  if p_fact ->> 'value' is null then
    return -1;
  elsif p_spread -> 'targets' = '[]' then
    select min(c.leases), max(c.leases) into v_least, v_most
    from unnest(hwqueue.spread_places(p_spread, p_class, p_now, p_shard)) p(place)
    cross join lateral (select hwqueue.staying(v_term_id, p_recount, p.place, p_now, p_shard) as leases) c;
    return case
      when (p_fact ->> 'here')::bigint > v_least then (v_least - (p_fact ->> 'here')::double precision) / greatest(v_least, 1)
      when v_least = v_most then case when v_least = 0 then 0 else -1 end
      else (v_most - v_least) / greatest(v_least, 1)::double precision end;
  end if;
  v_percent := coalesce(
    (select (t.value ->> 'percent')::double precision from jsonb_array_elements(p_spread -> 'targets') t
     where (t.value -> 'value')::text = p_fact ->> 'value'),
    100 - (select sum((t.value ->> 'percent')::double precision) from jsonb_array_elements(p_spread -> 'targets') t));
  v_total := hwqueue.staying(v_term_id, p_recount, null, p_now, p_shard) + 1;
  v_desired := v_percent / 100 * v_total;
  return case when v_desired <= 0 then -1
              else greatest(-1, (v_desired - (p_fact ->> 'here')::double precision - 1) / v_desired) end;
end
$$;
