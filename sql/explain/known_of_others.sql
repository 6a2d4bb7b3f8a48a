-- What explanations must know of other leases, read once for all nodes; the shapes are those of recount_terms and term_facts.

-- Whether all that a class asks about others is in force, so that claims may decide by it (terms_reason asks the same).
create or replace function hwqueue.terms_in_force(p_class hwqueue.placement_class, p_shard int) returns boolean
language sql stable
as $$
  select not hwqueue.is_stale(p_class, p_shard)
    and not exists (
      select 1 from jsonb_array_elements(p_class.terms) s
      left join hwqueue.term t on t.shard_id = p_shard and t.digest = (s.value ->> 'digest')::bigint
      where t.published_at is null)
    and not exists (
      select 1 from hwqueue.class_term m
      join hwqueue.term t on t.shard_id = p_shard and t.term_id = m.term_id
      where m.shard_id = p_shard and m.class_id = p_class.class_id and t.published_at is null and t.holds_up)
$$;

-- What recount_terms gives, but "spread" is counted as claims do, and there are no "terms": unless some are
-- not in force, then all are counted anew.
create or replace function hwqueue.known_of_others(p_class hwqueue.placement_class, p_lease uuid, p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
begin
  if not hwqueue.terms_in_force(p_class, p_shard) then
    return hwqueue.recount_terms(p_class, p_lease, p_now, p_shard);
  end if;
  return hwqueue.kept_out_places(p_class, p_lease, p_shard) || jsonb_build_object('spread', (
    select coalesce(jsonb_agg(case when s.value ? 'max_skew' and not s.value ? 'when'
                                   then hwqueue.spread_counts(s.value, p_class, null, p_now, p_shard) end order by s.ordinality), '[]')
    from jsonb_array_elements(p_class.spread) with ordinality s));
end
$$;

-- Where something runs that a class's terms select, term by term (index from 0): what count_fact and lease_fact tell of one place.
create or replace function hwqueue.term_places(p_class hwqueue.placement_class, p_known jsonb, p_now timestamptz, p_shard int)
returns table (index int, place text, held bigint, here bigint)
language plpgsql stable
as $$
declare
  v_term record;
begin
  for v_term in
    select (s.ordinality - 1)::int as index, t.term_id, coalesce(t.domain, hwqueue.term_domain(s.value -> 'spec', p_shard)) as domain,
           (s.value #>> '{spec,all,0,lease}')::uuid as lease_id, s.value #>> '{spec,use}' <> 'cap' as expired
    from jsonb_array_elements(p_class.terms) with ordinality s
    left join hwqueue.term t on t.shard_id = p_shard and t.digest = (s.value ->> 'digest')::bigint
  loop
    if v_term.lease_id is not null then
      return query
        select v_term.index, v.place, (f.fact ->> 'held')::bigint, (f.fact ->> 'here')::bigint
        from hwqueue.node n
        cross join lateral (select hwqueue.domain_value(v_term.domain, n.node_id, n.rack, n.labels) as place) v
        cross join lateral (select hwqueue.lease_fact(v_term.lease_id, v_term.domain, n, p_now, p_shard) as fact offset 0) f
        where n.shard_id = p_shard and v.place is not null and n.node_id = coalesce(
          (select c.node_id from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = v_term.lease_id),
          (select o.node_id from hwqueue.outcome o
           where o.shard_id = p_shard and o.lease_id = v_term.lease_id and o.state = 'completed'));
    elsif p_known ? 'terms' then
      return query
        select v_term.index, r.key, (r.value ->> 'held')::bigint, (r.value ->> case when v_term.expired then 'here' else 'bound' end)::bigint
        from jsonb_each(p_known #> array['terms', v_term.index::text]) r;
    else
      return query
        select v_term.index, k.domain, k.leases, k.leases - coalesce(l.leases, 0)
        from (select c.domain, sum(c.leases) as leases from hwqueue.term_count c
              where c.shard_id = p_shard and c.term_id = v_term.term_id group by c.domain having sum(c.leases) > 0) k
        left join (
          select x.value ->> 'd' as domain, count(*) as leases
          from (select c.counted from hwqueue.claim c where c.shard_id = p_shard and c.stop_requested_at <= p_now
                union all
                select c.counted from hwqueue.claim c
                where v_term.expired and c.shard_id = p_shard and c.check_at <= p_now and c.expires_at <= p_now
                  and c.stop_requested_at <= p_now is not true) c
          cross join jsonb_array_elements(c.counted) x
          where (x.value ->> 't')::bigint = v_term.term_id and x.value ->> 'n' = '1' group by 1) l on l.domain = k.domain;
    end if;
  end loop;
end
$$;

-- The facts of term_facts for every registered node at once; no rows for a class that asks nothing about others.
create or replace function hwqueue.fleet_facts(p_class hwqueue.placement_class, p_known jsonb, p_now timestamptz, p_shard int)
returns table (node_id uuid, facts jsonb)
language sql stable
as $$
  with held as materialized (
    select * from hwqueue.term_places(p_class, p_known, p_now, p_shard)
  ), asked as materialized (
    select (s.ordinality - 1)::int as index, coalesce(t.domain, hwqueue.term_domain(s.value -> 'spec', p_shard)) as domain,
           (s.value -> 'self')::boolean and s.value #>> '{spec,use}' <> 'soft' and s.value #> '{spec,all,0,lease}' is null as is_self,
           s.value #>> '{spec,use}' = 'toward' and coalesce((select sum(h.here) from held h where h.index = s.ordinality - 1), 0) > 0 as anywhere
    from jsonb_array_elements(p_class.terms) with ordinality s
    left join hwqueue.term t on t.shard_id = p_shard and t.digest = (s.value ->> 'digest')::bigint
  )
  select n.node_id, jsonb_agg(jsonb_build_object('value', v.place, 'held', coalesce(h.held, 0), 'here', coalesce(h.here, 0),
           'elsewhere', a.is_self and coalesce(h.here, 0) <= 0 and a.anywhere, 'self', a.is_self) order by a.index)
  from hwqueue.node n
  cross join asked a
  cross join lateral (select hwqueue.domain_value(a.domain, n.node_id, n.rack, n.labels) as place) v
  left join held h on h.index = a.index and h.place = v.place
  where n.shard_id = p_shard and n.deregistered_at is null
  group by n.node_id
$$;
