-- How leases are spread over a domain, for max_skew: {"places": domains that count, "least": the fewest leases in one of them,
-- "here": {PLACE: leases}, where there are any}. As Kubernetes counts: domains of live nodes that have a value for every domain of the class's
-- spreads of the same kind (required or preferred) and, as asked, meet its requirements on nodes and have no taint that keeps it out; leases
-- on other nodes are not there. p_recounts: the terms of recount_terms; null: by what claims have counted.
create or replace function hwqueue.spread_counts(p_spread jsonb, p_class hwqueue.placement_class, p_recounts jsonb, p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
declare
  v_counts jsonb;
  v_profiles bigint[];
begin
  if not p_spread ? 'tally' then
    return hwqueue.place_counts(p_spread, p_class.terms #> array[p_spread ->> 'term', 'spec'],
      (p_class.terms #>> array[p_spread ->> 'term', 'digest'])::bigint, p_recounts -> (p_spread ->> 'term')::int, p_now, p_shard);
  end if;
  v_profiles := case when not p_class.is_pinned then array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and hwqueue.spread_counts_node(p_spread, p_class, p, null, '{}')) end;
  with live as materialized (
    select n.node_id, hwqueue.domain_value(p_spread ->> 'domain', n.node_id, n.rack, n.labels) as place
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = n.profile_id
    where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
      and case when v_profiles is null then hwqueue.spread_counts_node(p_spread, p_class, p, n.node_id, n.resources || n.gpu_ids,
                                                                                hwqueue.attested_at(n, p_now))
               else n.profile_id = any (v_profiles) end
  ), run as (
    select l.place, sum(c.leases) as leases
    from hwqueue.tally(p_class, (p_spread ->> 'tally')::int, p_recounts, p_now, p_shard) c
    join live l on l.node_id = c.node_id
    group by l.place having sum(c.leases) > 0
  ), all_places as (
    select count(distinct l.place) as places from live l
  )
  select jsonb_build_object('places', a.places,
    'least', case when a.places > (select count(*) from run) then 0 else coalesce((select min(r.leases) from run r), 0) end,
    'here', (select coalesce(jsonb_object_agg(r.place, r.leases), '{}') from run r))
  into v_counts from all_places a;
  return v_counts;
end
$$;

-- Whether a node counts.
create or replace function hwqueue.spread_counts_node(p_spread jsonb, p_class hwqueue.placement_class, p_profile hwqueue.profile, p_node uuid, p_resources uuid[],
                                                      p_attested text[] default '{}') returns boolean
language sql stable
as $$
  select not exists (
      select 1 from jsonb_array_elements(p_class.spread) k
      where k.value ? 'max_skew' and k.value ->> 'when' is not distinct from p_spread ->> 'when'
        and k.value ->> 'domain' <> 'node' and hwqueue.domain_value(k.value ->> 'domain', p_node, p_profile.rack, p_profile.labels) is null)
    and (p_spread #>> '{count_nodes,affinity}' is not distinct from 'ignore'
         or hwqueue.exprs_hold(p_class.required, p_profile.labels, p_profile.rack, p_node, p_resources, null, p_attested))
    and (p_spread #>> '{count_nodes,taints}' is distinct from 'honor'
         or hwqueue.barring_taints(p_profile.taints, p_class.tolerate) = '[]')
$$;

-- Running leases that a class's term by node selects, node by node, without those that are about to leave.
create or replace function hwqueue.tally(p_class hwqueue.placement_class, p_term int, p_recounts jsonb, p_now timestamptz, p_shard int)
returns table (node_id uuid, leases bigint)
language plpgsql stable
as $$
declare
  v_term_id bigint;
  v_leaving bigint;
begin
  if p_recounts is not null then
    return query select r.key::uuid, (r.value ->> 'here')::bigint from jsonb_each(p_recounts -> p_term) r;
    return;
  end if;
  v_term_id := (
    select t.term_id from hwqueue.term t
    where t.shard_id = p_shard and t.digest = (p_class.terms #>> array[p_term::text, 'digest'])::bigint);
  v_leaving := hwqueue.leaving(v_term_id, null, true, p_now, p_shard);
  return query
    select k.domain::uuid, sum(k.leases) - (
      case when v_leaving = 0 then 0
           else hwqueue.leaving(v_term_id, k.domain, true, p_now, p_shard) end)
    from hwqueue.term_count k
    where k.shard_id = p_shard and k.term_id = v_term_id
    group by k.domain having sum(k.leases) > 0;
end
$$;
