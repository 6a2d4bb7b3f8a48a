-- Whether one more lease of a class would break one of its required spread limits on a node: spread_exceeded, or null.
-- Kubernetes' topology spread (max_skew), and a cap on matching leases in a domain (max_per_domain). p_floor: see spread_floor; null: not known.
-- Locks: none; the caller holds the gate of its own domain, or only looks: what others do elsewhere can only raise the minimum.
-- Raises: nothing. Idempotent: yes.
create or replace function hwqueue.spread_reason(p_spread jsonb, p_class hwqueue.placement_class, p_facts jsonb, p_floor bigint, p_now timestamptz, p_shard int)
returns text
language plpgsql stable
as $$
declare
  v_fact jsonb := p_facts -> (p_spread ->> 'term')::int;
  v_count bigint := (v_fact ->> 'here')::bigint + case when (v_fact -> 'self')::boolean then 1 else 0 end;
begin
  if p_spread ? 'targets' or p_spread ? 'when' then
    return null;  -- a preference
  end if;
  return case
    when v_fact ->> 'value' is null then 'spread_exceeded'
    when p_spread ? 'max_per_domain' then
      case when v_count > (p_spread ->> 'max_per_domain')::bigint then 'spread_exceeded' end
    when v_count - (p_spread ->> 'max_skew')::bigint > coalesce(p_floor, hwqueue.spread_floor(p_spread, p_class, null, p_now, p_shard)) then 'spread_exceeded'
  end;
end
$$;

-- The fewest leases that any domain holds of what a max_skew term selects; 0 when there are fewer domains than min_domains. Domains are those
-- of live nodes that have all domains of the class's required skews and, as asked, meet its requirements on nodes and its taints.
-- p_recounts: the terms of recount_terms; null: by what claims have counted.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.spread_floor(p_spread jsonb, p_class hwqueue.placement_class, p_recounts jsonb, p_now timestamptz, p_shard int) returns bigint
language plpgsql stable
as $$
declare
  v_domain text := p_spread ->> 'domain';
  v_term_id bigint := (
    select t.term_id from hwqueue.term t
    where t.shard_id = p_shard and t.digest = (p_class.terms #>> array[p_spread ->> 'term', 'digest'])::bigint);
  v_places text[] := hwqueue.spread_places(p_spread, p_class, p_now, p_shard);
begin
  if v_places = '{}' or cardinality(v_places) < coalesce((p_spread ->> 'min_domains')::int, 1) then
    return 0;
  end if;
  return (
    select min(hwqueue.staying(v_term_id, p_recounts -> (p_spread ->> 'term')::int, p.place, p_now, p_shard)) from unnest(v_places) p(place));
end
$$;

-- The values of a domain that live nodes have which count for a max_skew term.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.spread_places(p_spread jsonb, p_class hwqueue.placement_class, p_now timestamptz, p_shard int) returns text[]
language sql stable
as $$
  select array(
    select distinct hwqueue.domain_value(p_spread ->> 'domain', n.node_id, n.rack, n.labels)
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
      and not exists (
        select 1 from jsonb_array_elements(p_class.spread) k
        where k.value ? 'max_skew' and not k.value ? 'when'
          and hwqueue.domain_value(k.value ->> 'domain', n.node_id, n.rack, n.labels) is null)
      and (p_spread #>> '{count_nodes,affinity}' is not distinct from 'ignore'
           or hwqueue.exprs_hold(p_class.required, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids, null)))
$$;
