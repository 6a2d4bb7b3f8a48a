-- Whether one more lease of a class would break one of its required spread limits on a node: spread_exceeded, or null.
-- Kubernetes' topology spread (max_skew), and a cap on matching leases in a domain (max_per_domain).
-- p_counts: what spread_counts gave; null: a claim, which goes by what is remembered of the fleet ('unlooked' when that does not tell).
-- Locks: none; the caller holds the gate of its own domain, or only looks: what others do elsewhere can only raise the minimum.
create or replace function hwqueue.spread_reason(p_spread jsonb, p_class hwqueue.placement_class, p_facts jsonb, p_counts jsonb, p_now timestamptz, p_shard int)
returns text
language plpgsql stable
as $$
declare
  v_fact jsonb := p_facts -> (p_spread ->> 'term')::int;
  v_self int := case when (v_fact -> 'self')::boolean then 1 else 0 end;
  v_counts jsonb := p_counts;
begin
  if p_spread ? 'targets' or p_spread ? 'when' then
    return null;  -- a preference
  elsif v_fact ->> 'value' is null then
    return 'spread_exceeded';
  elsif p_spread ? 'max_per_domain' then
    return case when (v_fact ->> 'here')::bigint + v_self > (p_spread ->> 'max_per_domain')::bigint then 'spread_exceeded' end;
  elsif (v_fact ->> 'here')::bigint + v_self <= (p_spread ->> 'max_skew')::bigint then
    return null;  -- however few there are elsewhere
  elsif p_counts is null and not p_spread ? 'tally' then
    return hwqueue.level_reason(p_spread, v_fact, (p_class.terms #>> array[p_spread ->> 'term', 'digest'])::bigint, p_now, p_shard);
  end if;
  v_counts := coalesce(v_counts, hwqueue.spread_counts(p_spread, p_class, null, p_now, p_shard));
  return case when coalesce((v_counts #>> array['here', v_fact ->> 'value'])::bigint, 0) + v_self
      - case when (v_counts ->> 'places')::int < coalesce((p_spread ->> 'min_domains')::int, 1) then 0 else (v_counts ->> 'least')::bigint end
      > (p_spread ->> 'max_skew')::bigint then 'spread_exceeded' end;
end
$$;
