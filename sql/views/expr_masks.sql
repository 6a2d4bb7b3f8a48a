-- The nodes that meet each of these requirements, as bit strings (numbered_nodes). Judged by expr_reason,
-- once for all nodes that a requirement cannot tell apart; a required equality is judged only where its value
-- occurs (anchors); nodes that it names are judged one by one. What is asked about other leases counts as
-- met, as in suits. At most p_most judgements, the cheapest first: requirements that have no anchor and tell
-- thousands of nodes apart (a pattern over host names) take that many each, and patterns as many more as they
-- cost (placement_cost). Beyond, mask is null: not known. p_none: a zero for each node. Locks: none. Raises:
-- nothing. Idempotent: yes.
create or replace function hwqueue.expr_masks(p_exprs jsonb[], p_most int, p_none bit varying, p_now timestamptz, p_shard int)
returns table (expr jsonb, mask bit varying)
language sql stable
as $$
  with site as materialized (  -- nodes with the same labels, rack and attestations
    select p.labels, p.rack, s.attested, s.mask
    from (
      select n.profile_id, case when n.attested = '{}' then n.attested else hwqueue.still_attested(n.attested, n.attested_until, p_now) end as attested,
             bit_or(set_bit(p_none, k.number, 1)) as mask
      from hwqueue.node_numbers(p_shard) k
      join hwqueue.node n on n.shard_id = p_shard and n.node_id = k.node_id
      group by 1, 2) s
    join hwqueue.profile p on p.shard_id = p_shard and p.profile_id = s.profile_id
  ), asked as materialized (
    select e.ordinality as id, e.expr, hwqueue.class_anchors(jsonb_build_array(e.expr)) as anchors, s.keys, s.sees_rack, s.trusts, s.ids,
           hwqueue.placement_cost(jsonb_build_object('require', jsonb_build_array(e.expr))) as cost
    from unnest(p_exprs) with ordinality e(expr, ordinality)
    cross join lateral hwqueue.expr_sight(e.expr) s
  ), sight as materialized (
    select row_number() over () as sight_id, s.keys, s.sees_rack, s.trusts
    from (select distinct a.keys, a.sees_rack, a.trusts from asked a) s
  ), kind as materialized (  -- nodes that requirements of one sight cannot tell apart
    select row_number() over () as kind_id, k.*
    from (
      select g.sight_id, hwqueue.labels_seen(t.labels, g.keys) as labels, case when g.sees_rack then t.rack end as rack,
             case when g.trusts = '{}' then '{}' else array(select d from unnest(g.trusts) d where d = any (t.attested)) end as attested,
             bit_or(t.mask) as mask
      from sight g cross join site t
      group by 1, 2, 3, 4) k
  ), anchored as materialized (
    select k.sight_id, a.anchor, k.kind_id from kind k cross join lateral hwqueue.anchors_of(k.labels, k.rack) a(anchor)
  ), work as materialized (
    select a.*, g.sight_id, sum(case when a.anchors = '{*}' then k.kinds else cardinality(a.anchors) end + a.cost) over (order by k.kinds + a.cost, a.id) as so_far
    from asked a
    join sight g on g.keys = a.keys and g.sees_rack = a.sees_rack and g.trusts = a.trusts
    join (select x.sight_id, count(*) as kinds from kind x group by 1) k on k.sight_id = g.sight_id
  ), sought as materialized (
    select w.id, w.sight_id, a.anchor from work w cross join lateral unnest(w.anchors) a(anchor) where w.so_far <= p_most
  ), met as (
    select w.id, bit_or(k.mask) as mask
    from sought s
    join anchored c on c.sight_id = s.sight_id and c.anchor = s.anchor
    join kind k on k.kind_id = c.kind_id
    join work w on w.id = s.id
    where hwqueue.expr_reason(w.expr, k.labels, k.rack, null, '{}', null, k.attested) is null
    group by w.id
  ), known as materialized (  -- by id, if any is named
    select n.number, n.node, n.attested, i.id
    from hwqueue.numbered_nodes(p_now, p_shard) n
    cross join lateral unnest((n.node).node_id || (n.node).resources || (n.node).gpu_ids) i(id)
    where exists (select 1 from work w where w.ids <> '{}')
  ), named as (
    select w.id, bit_or(set_bit(p_none, n.number, 1)) as mask,
           bit_or(set_bit(p_none, n.number, 1)) filter (where hwqueue.expr_reason(w.expr, (n.node).labels, (n.node).rack, (n.node).node_id,
             (n.node).resources || (n.node).gpu_ids, null, n.attested) is null) as met
    from work w
    join (select x.id as expr_id, i.id from work x cross join lateral unnest(x.ids) i(id)) i on i.expr_id = w.id
    join known n on n.id = i.id
    group by w.id
  )
  select w.expr, case when w.so_far <= p_most then
           coalesce(m.mask, p_none) & ~coalesce(n.mask, p_none) | coalesce(n.met, p_none) end
  from work w
  left join met m on m.id = w.id
  left join named n on n.id = w.id
$$;
