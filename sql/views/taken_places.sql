-- Where leases of these classes may not run because of what other leases do, as far as claims have counted it: places of a domain that are
-- taken (required away, both ways; max_per_domain), or, with is_only, the only ones that will do (required toward). A term without a place
-- that would do has one row with a null value. Left out, and so a bound: max_skew, what is asked inside an any, terms not in force yet.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.taken_places(p_class_ids bigint[], p_shard int)
returns table (class_id bigint, code text, is_only boolean, term_id bigint, domain text, value text)
language sql stable
as $$
  with asked as materialized (
    select c.class_id, t.term_id, t.use, t.domain, (s.value -> 'self')::boolean as is_self, (t.spec #>> '{all,0,lease}')::uuid as lease_id, (
             select min((x.value ->> 'max_per_domain')::bigint) from jsonb_array_elements(c.spread) x
             where x.value ? 'max_per_domain' and (x.value ->> 'term')::bigint = s.ordinality - 1) as most
    from hwqueue.placement_class c
    cross join lateral jsonb_array_elements(c.terms) with ordinality s
    join hwqueue.term t on t.shard_id = p_shard and t.digest = (s.value ->> 'digest')::bigint
    where c.shard_id = p_shard and c.class_id = any (p_class_ids) and c.terms <> '[]' and t.published_at is not null
      and t.use in ('away', 'cap', 'toward')
  ), place as materialized (
    select k.term_id, k.domain as value, sum(k.leases) as leases from hwqueue.term_count k
    where k.shard_id = p_shard and k.term_id in (select a.term_id from asked a) group by 1, 2 having sum(k.leases) > 0
    union all
    select a.term_id, hwqueue.domain_value(a.domain, n.node_id, n.rack, n.labels), 1
    from (select distinct x.term_id, x.domain, x.lease_id from asked x where x.lease_id is not null) a
    left join hwqueue.outcome o on o.shard_id = p_shard and o.lease_id = a.lease_id
    left join hwqueue.claim r on r.shard_id = p_shard and r.lease_id = a.lease_id
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = coalesce(r.node_id, case when o.state = 'completed' and a.term_id in (
      select x.term_id from asked x where x.use = 'toward') then o.node_id end)
  ), held as materialized (  -- places that something keeps others out of
    select t.term_id, t.domain, t.spec, t.anchors, k.domain as value
    from hwqueue.term t
    join hwqueue.term_count k on k.shard_id = p_shard and k.term_id = t.term_id
    where t.shard_id = p_shard and t.use = 'away' and t.published_at is not null
    group by t.term_id, t.domain, t.spec, t.anchors, k.domain having sum(k.holders) > 0
  )
  select a.class_id, case a.use when 'cap' then 'spread_exceeded' else 'anti_affinity_conflict' end, false, a.term_id, a.domain, k.value
  from asked a
  join place k on k.term_id = a.term_id
  where a.use = 'away' or a.use = 'cap' and k.leases + case when a.is_self then 1 else 0 end > a.most
  union all
  select a.class_id, 'required_affinity_unsatisfiable', true, a.term_id, a.domain, k.value
  from asked a
  left join place k on k.term_id = a.term_id
  where a.use = 'toward' and (k.term_id is not null or not a.is_self)  -- a lease may start the group that it requires to be with
  union all
  select x.class_id, 'anti_affinity_conflict', false, h.term_id, h.domain, h.value
  from held h
  join (select distinct c.class_id, t.term_id
        from (select distinct y.term_id, y.spec, y.anchors from held y) t
        cross join lateral unnest(t.anchors) a(anchor)
        join (select k as class, k.class_id, s.anchor from hwqueue.placement_class k cross join lateral unnest(hwqueue.selected_anchors(k)) s(anchor)
              where k.shard_id = p_shard and k.class_id = any (p_class_ids) and exists (select 1 from held)) c on c.anchor = a.anchor
        where hwqueue.term_selects(t.spec, c.class)) x on x.term_id = h.term_id
$$;

-- The same as bit strings (numbered_nodes): of each class with such places the nodes that are left, and why the others are not.
-- p_none: a zero for each node. Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.untaken_masks(p_class_ids bigint[], p_none bit varying, p_now timestamptz, p_shard int)
returns table (class_id bigint, code text, mask bit varying)
language sql stable
as $$
  with taken as materialized (
    select * from hwqueue.taken_places(p_class_ids, p_shard)
  ), place as materialized (
    select d.domain, hwqueue.domain_value(d.domain, (n.node).node_id, (n.node).rack, (n.node).labels) as value, bit_or(set_bit(p_none, n.number, 1)) as mask
    from (select distinct t.domain from taken t) d
    cross join hwqueue.numbered_nodes(p_now, p_shard) n
    group by 1, 2
  )
  select u.class_id, min(u.code), bit_and(u.mask)
  from (
    select t.class_id, t.code, case when t.is_only then coalesce(bit_or(p.mask), p_none) else ~coalesce(bit_or(p.mask), p_none) end as mask
    from taken t
    left join place p on p.domain = t.domain and p.value = t.value
    group by t.class_id, t.code, t.is_only, t.term_id
  ) u
  group by u.class_id
$$;
