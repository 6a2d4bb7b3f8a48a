-- What must hold of terms, counted from the claims (verify_invariants).

-- touched_terms without what is remembered of classes: by what terms select.
create or replace function hwqueue.recounted_terms(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_shard int)
returns table (term_id bigint, use text, domain text, place text, decides boolean, counts boolean)
language sql stable
as $$
  select u.term_id, u.use, u.domain, coalesce(hwqueue.term_place(u.spec, u.domain, p_node.node_id, p_node.rack, p_node.labels), ''),
         u.decides, u.counts
  from (
    select t.*, p_class.terms @> jsonb_build_array(jsonb_build_object('digest', t.digest)) as decides,
           case when t.spec #> '{all,0,lease}' is not null then (t.spec #>> '{all,0,lease}')::uuid = p_lease
                else hwqueue.term_selects(t.spec, p_class) end as counts
    from hwqueue.term t where t.shard_id = p_shard
  ) u
  where u.decides or u.counts
$$;

-- Published terms whose counts are not what runs.
create or replace function hwqueue.broken_counts(p_shard int) returns table (term_id bigint, detail jsonb)
language sql stable
as $$
  with running as (
    select t.term_id, t.place, sum(t.counts::int) as leases, sum((t.use = 'away' and t.decides)::int) as holders
    from hwqueue.claim c
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = c.node_id
    cross join lateral hwqueue.recounted_terms(k, c.lease_id, n, p_shard) t
    where c.shard_id = p_shard
    group by t.term_id, t.place
  ), written as (
    select k.term_id, k.domain as place, sum(k.leases) as leases, sum(k.holders) as holders
    from hwqueue.term_count k where k.shard_id = p_shard group by k.term_id, k.domain
  )
  select t.term_id, jsonb_build_object('spec', t.spec, 'place', d.place, 'written', array[d.leases, d.holders],
                                       'counted', array[d.running_leases, d.running_holders])
  from (
    select coalesce(w.term_id, r.term_id) as term_id, coalesce(w.place, r.place) as place, coalesce(w.leases, 0) as leases,
           coalesce(w.holders, 0) as holders, coalesce(r.leases, 0) as running_leases, coalesce(r.holders, 0) as running_holders
    from written w full join running r on r.term_id = w.term_id and r.place = w.place
  ) d
  join hwqueue.term t on t.shard_id = p_shard and t.term_id = d.term_id and t.published_at is not null
  where (d.leases, d.holders) <> (d.running_leases, d.running_holders)
$$;

-- Running leases that are where they required to be away from others that run there, or that are too many of a max_per_domain.
create or replace function hwqueue.broken_terms(p_shard int) returns table (rule text, lease_id uuid, detail jsonb)
language sql stable
as $$
  with touched as (
    select c.lease_id, c.node_id, c.stop_requested_at, k.terms, k.spread, t.*
    from hwqueue.claim c
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = c.node_id
    cross join lateral hwqueue.recounted_terms(k, c.lease_id, n, p_shard) t
    where c.shard_id = p_shard and t.place <> ''
  )
  select 'away', h.lease_id, jsonb_build_object('term', h.term_id, 'domain', h.domain, 'place', h.place, 'from', m.lease_id)
  from touched h
  join touched m on m.term_id = h.term_id and m.place = h.place and m.counts and m.lease_id <> h.lease_id
  where h.use = 'away' and h.decides
  union all
  select 'max_per_domain', min(h.lease_id::text)::uuid,
         jsonb_build_object('term', h.term_id, 'domain', h.domain, 'place', h.place, 'limit', s.most, 'running', count(*))
  from touched h
  cross join lateral (
    select min((s.value ->> 'max_per_domain')::bigint) as most
    from jsonb_array_elements(h.spread) s
    join hwqueue.term t on t.shard_id = p_shard and t.term_id = h.term_id
    where s.value ? 'max_per_domain'
      and (h.terms #>> array[s.value ->> 'term', 'digest'])::bigint = t.digest) s
  where h.use = 'cap' and h.decides and h.counts and h.stop_requested_at is null
  group by h.term_id, h.domain, h.place, s.most
  having count(*) > s.most
$$;
