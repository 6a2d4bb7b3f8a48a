-- Those of these classes that a requirement about one lease keeps from a node now: it runs elsewhere, or where they must not be; or they must
-- be with it, and it neither runs nor has succeeded (lease_fact).
create or replace function hwqueue.blocked_by_leases(p_classes bigint[], p_node hwqueue.node, p_now timestamptz, p_shard int) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    select unnest(r.classes)
    from (
      select c.term_id, c.use, c.lease_id, array_agg(c.class_id) as classes
      from hwqueue.class_rule c where c.shard_id = p_shard and c.class_id = any (p_classes) and c.lease_id is not null
      group by c.term_id, c.use, c.lease_id) r
    cross join lateral (select * from hwqueue.term x where x.shard_id = p_shard and x.term_id = r.term_id offset 0) t
    cross join lateral (
      select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
    left join lateral (
      select c.node_id, c.stop_requested_at <= p_now is not true and c.expires_at > p_now as stays
      from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = r.lease_id offset 0) runs on true
    left join lateral (
      select o.node_id from hwqueue.outcome o
      where runs.node_id is null and o.shard_id = p_shard and o.lease_id = r.lease_id and o.state = 'completed' offset 0) ran on true
    left join lateral (
      select hwqueue.domain_value(t.domain, n.node_id, n.rack, n.labels) as place
      from hwqueue.node n where n.shard_id = p_shard and n.node_id = coalesce(runs.node_id, ran.node_id) offset 0) there on true
    where t.published_at is null or p.place is not null and case r.use
      when 'toward' then (there.place = p.place and coalesce(runs.stays, true)) is not true
      when 'away' then runs.node_id is not null and there.place = p.place
      end);
end
$$;
