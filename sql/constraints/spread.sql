-- Spread of leases over domains: max_skew, max_per_domain and the preferences for spread.
--
-- A claim goes by the cached fleet (cached_skew_reason), dry runs and explanations count exactly
-- (spread_counts). The invariant: a claim that holds the lock stripe of its own place decides safely, because
-- what other claims do in other places can only raise the minimum.

-- Returns 'spread_exceeded' if one more lease of a class would break a required spread limit on a node, else
-- null. max_skew is as in Kubernetes' topology spread; max_per_domain limits matching leases in a domain.
-- p_counts: what spread_counts returned. Null for a claim, which goes by the cached fleet; on a cache
-- miss the result is 'cache_miss'. The caller holds the lock stripe of its own place, or only explains.
create or replace function hwqueue.spread_reason(p_spread jsonb, p_class hwqueue.placement_class,
  p_facts jsonb, p_counts jsonb, p_now timestamptz) returns text
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
    return case when (v_fact ->> 'here')::bigint + v_self > (p_spread ->> 'max_per_domain')::bigint
      then 'spread_exceeded' end;
  elsif (v_fact ->> 'here')::bigint + v_self <= (p_spread ->> 'max_skew')::bigint then
    return null;  -- however few run in other places
  elsif p_counts is null and not p_spread ? 'tally' then
    return hwqueue.cached_skew_reason(p_spread, v_fact,
        (p_class.terms #>> array[p_spread ->> 'term', 'digest'])::bigint, p_now);
  end if;
  v_counts := coalesce(v_counts, hwqueue.spread_counts(p_spread, p_class, null, p_now));
  return case when coalesce((v_counts #>> array['here', v_fact ->> 'value'])::bigint, 0) + v_self
      - case when (v_counts ->> 'places')::int < coalesce((p_spread ->> 'min_domains')::int, 1) then 0
        else (v_counts ->> 'least')::bigint end
      > (p_spread ->> 'max_skew')::bigint then 'spread_exceeded' end;
end
$$;

-- How well one more lease of a class would be spread if it ran on a node, 0 to 100: the mean over its
-- kinds of spread preferences, 0 without any.
--   - "when": "prefer": 100 / (1 + c), where c is the rounded sum of count x ln(domains + 2) + max_skew
--     - 1. This is Kubernetes' PodTopologySpread score, inverted. 0 where the node lacks a domain.
--   - "targets": 100 x percent / (percent + share), weighted. share is what the domain would hold of all
--     that match, this lease included, in percent: at the target the score is 50. A domain without a
--     target gets the rest of the hundred. Without any targets all domains are equal.
-- p_recounts, p_counts: what recount_terms returned as terms and spread; null for claims.
create or replace function hwqueue.spread_score(p_class hwqueue.placement_class, p_facts jsonb,
  p_recounts jsonb, p_counts jsonb, p_now timestamptz) returns double precision
language plpgsql stable
as $$
declare
  v_spread jsonb;
  v_fact jsonb;
  v_counts jsonb;
  v_term_id bigint;
  v_share double precision;
  v_percent double precision;
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
      v_weights := v_weights + v_weight;
      continue when v_fact ->> 'value' is null;
      v_term_id := (
        select t.term_id from hwqueue.affinity_term t
        where t.digest = (p_class.terms #>> array[v_spread ->> 'term', 'digest'])::bigint);
      v_share := 100 * ((v_fact ->> 'here')::double precision + 1) / (hwqueue.remaining_count(
        v_term_id, p_recounts -> (v_spread ->> 'term')::int, p_now) + 1);
      v_percent := case when v_spread -> 'targets' = '[]' then 100.0 / greatest(1, (
          select count(distinct hwqueue.domain_value(v_spread ->> 'domain', n.node_id, n.rack, n.labels))
          from hwqueue.node n
          join hwqueue.node_state s on s.node_id = n.node_id
          where n.deregistered_at is null and hwqueue.is_live(n, s, p_now)))
        else coalesce(
          (select (t.value ->> 'percent')::double precision
           from jsonb_array_elements(v_spread -> 'targets') t
           where case when v_spread ->> 'domain' like 'label:%' then (t.value -> 'value')::text
             else t.value ->> 'value' end = v_fact ->> 'value'),
          100 - (
            select coalesce(sum((t.value ->> 'percent')::double precision), 0)
            from jsonb_array_elements(v_spread -> 'targets') t where t.value ->> 'value' <> '*')) end;
      v_gain := v_gain + v_weight * (v_percent / (v_percent + v_share));
    elsif v_spread ? 'when' then
      v_counts := coalesce(p_counts -> v_index, hwqueue.spread_counts(v_spread, p_class, null, p_now));
      v_cost := coalesce(v_cost, 0) + case when v_fact ->> 'value' is null then 'infinity' else
        coalesce((v_counts #>> array['here', v_fact ->> 'value'])::double precision, 0)
        * ln((v_counts ->> 'places')::double precision + 2)
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

-- How leases are spread over a domain, for max_skew: {"places": how many places count, "least": the fewest
-- leases in one of them, "here": {PLACE: leases} where there are any}. As in Kubernetes a place counts if a
-- live node in it has a value for every domain of the class's spreads of the same kind (required or
-- preferred) and, as asked, meets its requirements on nodes and has no taint that keeps it out. Leases on
-- other nodes do not count. p_recounts: the terms of recount_terms; null: by what claims have counted.
create or replace function hwqueue.spread_counts(p_spread jsonb, p_class hwqueue.placement_class,
  p_recounts jsonb, p_now timestamptz) returns jsonb
language plpgsql stable set enable_seqscan = on set enable_hashjoin = on set enable_sort = on
as $$
declare
  v_by_node boolean := p_spread ? 'tally';  -- else the term's own places tell which nodes count
  v_counting text := coalesce(p_spread ->> 'tally', p_spread ->> 'term');
  v_term_id bigint;
  v_fleet hwqueue.spread_fleet;
  v_profiles bigint[];
  v_stopping jsonb;  -- by what is counted: nodes or places
  v_counts jsonb;
begin
  if not v_by_node then
    v_fleet := hwqueue.scan_fleet(p_class.terms #> array[v_counting, 'spec'], p_spread ->> 'domain', p_now);
  elsif not p_class.is_pinned then
    v_profiles := array(
      select p.profile_id from hwqueue.profile p
      where hwqueue.spread_counts_node(p_spread, p_class, p, null, '{}'));
  end if;
  if p_recounts is null then
    v_term_id := (
      select t.term_id from hwqueue.affinity_term t
      where t.digest = (p_class.terms #>> array[v_counting, 'digest'])::bigint);
    v_stopping := hwqueue.stopping_by_place(v_term_id, true, v_fleet.dead, p_now);
  end if;
  with counting as materialized (
    select p as counted, p as place from unnest(v_fleet.places) p
    union all
    select n.node_id::text, hwqueue.domain_value(p_spread ->> 'domain', n.node_id, n.rack, n.labels)
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    join hwqueue.profile p on p.profile_id = n.profile_id
    where v_by_node and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
      and case
        when v_profiles is null then hwqueue.spread_counts_node(p_spread, p_class, p, n.node_id,
          n.resources || n.gpu_ids, hwqueue.attested_at(n, p_now))
        else n.profile_id = any (v_profiles) end
  ), counted as materialized (  -- without what is about to stop
    select r.key, (r.value ->> 'here')::bigint as leases from jsonb_each(p_recounts -> v_counting::int) r
    union all
    select k.place, sum(k.leases) - coalesce((v_stopping ->> k.place)::bigint, 0)
    from hwqueue.term_counter k where k.term_id = v_term_id group by k.place
  )
  select jsonb_build_object('places', count(*), 'least', coalesce(min(l.leases), 0),
           'here', coalesce(jsonb_object_agg(l.place, l.leases) filter (where l.leases > 0), '{}'))
  into v_counts
  from (
    select c.place, coalesce(sum(d.leases), 0) as leases
    from counting c left join counted d on d.key = c.counted
    where c.place is not null
    group by c.place) l;
  return v_counts;
end
$$;

-- True if a node of a profile counts for a spread.
create or replace function hwqueue.spread_counts_node(p_spread jsonb, p_class hwqueue.placement_class,
  p_profile hwqueue.profile, p_node uuid, p_resources uuid[], p_attested text[] default '{}') returns boolean
language plpgsql stable
as $$ begin return
  not exists (
      select 1 from jsonb_array_elements(p_class.spread) k
      where k.value ? 'max_skew' and k.value ->> 'when' is not distinct from p_spread ->> 'when'
        and k.value ->> 'domain' <> 'node'
        and hwqueue.domain_value(k.value ->> 'domain', p_node, p_profile.rack, p_profile.labels) is null)
    and (p_spread #>> '{count_nodes,affinity}' is not distinct from 'ignore'
         or hwqueue.expr_reason(p_class.required, p_profile.labels, p_profile.rack, p_node, p_resources,
           null, p_attested) is null)
    and (p_spread #>> '{count_nodes,taints}' is distinct from 'honor'
         or hwqueue.barring_taints(p_profile.taints, p_class.tolerate, p_class.tenant) = '[]');
end $$;

-- Decides max_skew by the cached fleet: 'spread_exceeded', null, or 'cache_miss'.
create or replace function hwqueue.cached_skew_reason(p_spread jsonb, p_fact jsonb, p_digest bigint,
  p_now timestamptz) returns text
language plpgsql stable
as $$
declare
  v_term hwqueue.affinity_term;
  v_fleet hwqueue.spread_fleet;
  v_floor record;
  v_stopping jsonb;  -- by place
  v_level bigint;  -- how many leases each place must have
begin
  select t.* into v_term from hwqueue.affinity_term t where t.digest = p_digest;
  v_fleet := hwqueue.cached_fleet(v_term.spec, v_term.domain, p_now);
  if v_fleet.fleet_id is null then
    return 'cache_miss';
  end if;
  v_stopping := hwqueue.stopping_by_place(v_term.term_id, true, v_fleet.dead, p_now);
  v_level := (p_fact ->> 'held')::bigint - coalesce((v_stopping ->> (p_fact ->> 'value'))::bigint, 0)
    + case when (p_fact -> 'self')::boolean then 1 else 0 end - (p_spread ->> 'max_skew')::bigint;
  if v_level <= 0 then
    return null;
  elsif v_fleet.place_count < coalesce((p_spread ->> 'min_domains')::int, 1) then
    return 'spread_exceeded';
  end if;
  -- one statement, one MVCC snapshot: prune_terms may remove counters that the visible floors have seen
  select f.places_digest, f.least, f.lowest, f.next_xid, array(
    select k.place from hwqueue.term_counter k
    where k.term_id = v_term.term_id and k.dropped_xid >= f.next_xid
    union all
    select k.place from hwqueue.term_counter k
    where k.term_id = v_term.term_id and k.dropped_xid = any (f.unseen)
    limit 129) as dropped into v_floor
  from (
    select o.* from hwqueue.spread_floor o
    where o.term_id = v_term.term_id order by o.floor_id desc limit 1) f;
  if v_floor.places_digest is distinct from v_fleet.places_digest or hwqueue.is_old_floor(v_floor.next_xid)
     or cardinality(v_floor.dropped) > 128 then
    return 'cache_miss';
  elsif exists (
      select 1
      from (
        select l as place, true as is_live from unnest(v_floor.lowest) l where v_floor.least < v_level
        union all
        select d, false from unnest(v_floor.dropped) d
        union all
        select g, false from jsonb_object_keys(v_stopping) g
      ) s
      cross join lateral hwqueue.read_count(v_term.term_id, s.place) n
      where n.leases - coalesce((v_stopping ->> s.place)::bigint, 0) < v_level
        and (s.is_live or s.place = any (array(
          select unnest(f.places) from hwqueue.spread_fleet f
          where f.fleet_key = v_fleet.fleet_key and f.fleet_id = v_fleet.fleet_id)))) then
    return 'spread_exceeded';
  end if;
  return case when v_floor.least < v_level then 'cache_miss' end;
end
$$;

-- True if enough transactions have begun since a floor was scanned to make the next scan due. A claim
-- reads every place that was lowered since, even if it is one place over and over.
create or replace function hwqueue.is_old_floor(p_next_xid xid8) returns boolean
language sql stable
as $$ select pg_snapshot_xmax(pg_current_snapshot())::text::bigint - p_next_xid::text::bigint > 10000 $$;
