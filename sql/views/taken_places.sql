-- Where leases of these classes may not run because of what other leases do, as far as claims have counted
-- it, by the rules that claims ask (class_rule, class_term; blocked_classes asks them of one node): places of
-- a domain that are taken (required away, both ways; max_per_domain), or, with is_only, the only ones that
-- will do (required toward). A term without a place that would do has one row with a null value. Left out,
-- and so a bound: max_skew, what is asked inside an any, terms not in force yet.
create or replace function hwqueue.taken_places(p_class_ids bigint[], p_shard int)
returns table (class_id bigint, code text, is_only boolean, term_id bigint, domain text, value text)
language sql stable
as $$
  with rule as materialized (
    select r.class_id, r.term_id, r.use, r.most, r.is_self, r.lease_id, t.domain
    from hwqueue.class_rule r
    join hwqueue.term t on t.shard_id = p_shard and t.term_id = r.term_id
    where r.shard_id = p_shard and r.class_id = any (p_class_ids) and r.use in ('away', 'cap', 'toward')
      and t.published_at is not null
  ), named as (  -- where the lease that a term names runs, or, for those that want to be with it, has succeeded
    select x.term_id, x.domain, coalesce(c.node_id, o.node_id) as node_id
    from (select distinct r.term_id, r.use, r.domain, r.lease_id from rule r where r.lease_id is not null) x
    left join hwqueue.claim c on c.shard_id = p_shard and c.lease_id = x.lease_id
    left join hwqueue.outcome o on x.use = 'toward' and o.shard_id = p_shard and o.lease_id = x.lease_id and o.state = 'completed'
  ), place as materialized (
    select k.term_id, k.domain as value, sum(k.leases) as leases
    from hwqueue.term_count k
    where k.shard_id = p_shard and k.term_id in (select r.term_id from rule r where r.lease_id is null)
    group by 1, 2 having sum(k.leases) > 0
    union all
    select x.term_id, hwqueue.domain_value(x.domain, n.node_id, n.rack, n.labels), 1
    from named x join hwqueue.node n on n.shard_id = p_shard and n.node_id = x.node_id
  )
  select r.class_id, case r.use when 'cap' then 'spread_exceeded' else 'anti_affinity_conflict' end, false, r.term_id,
         r.domain, k.value
  from rule r
  join place k on k.term_id = r.term_id
  where r.use = 'away' or r.use = 'cap' and k.leases + r.is_self::int > r.most
  union all
  select r.class_id, 'required_affinity_unsatisfiable', true, r.term_id, r.domain, k.value
  from rule r
  left join place k on k.term_id = r.term_id
  where r.use = 'toward' and (k.term_id is not null or not r.is_self)  -- a lease may start the group that it requires to be with
  union all
  select m.class_id, 'anti_affinity_conflict', false, m.term_id, t.domain, k.domain
  from hwqueue.class_term m
  join hwqueue.term t on t.shard_id = p_shard and t.term_id = m.term_id and t.use = 'away' and t.published_at is not null
  join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = m.class_id
  join hwqueue.term_count k on k.shard_id = p_shard and k.term_id = m.term_id
  where m.shard_id = p_shard and m.class_id = any (p_class_ids)
    and coalesce((t.spec #>> '{all,0,lease}')::uuid = c.target, true)
  group by m.class_id, m.term_id, t.domain, k.domain having sum(k.holders) > 0
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
