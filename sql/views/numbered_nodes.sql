-- Sets of nodes as bit strings. Whether 10,000 classes suit 10,000 nodes is a hundred million questions; but classes share what they ask, nodes
-- share what they are, and "the nodes that meet this" is one bit a node. What suits a class is then a few ANDs, how many nodes that are a
-- count of bits. docs/explanation/views.md tells the whole.

-- The registered nodes of a shard, numbered from 0: the same numbers in every statement of a stable function. attested: trust domains that it
-- is vouched for now.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.numbered_nodes(p_now timestamptz, p_shard int)
returns table (number int, node hwqueue.node, attested text[], is_live boolean)
language sql stable
as $$
  select (row_number() over (order by n.node_id))::int - 1, n,
         case when n.attested = '{}' then n.attested else hwqueue.attested_at(n, p_now) end,
         hwqueue.is_live(n, s, p_now)
  from hwqueue.node n
  join hwqueue.node_state s on s.shard_id = n.shard_id and s.node_id = n.node_id
  where n.shard_id = p_shard and n.deregistered_at is null
$$;

-- What is in use on each node now: the newest versions.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.newest_loads(p_shard int) returns setof hwqueue.node_load
language sql stable
as $$
  select distinct on (u.node_id) u.* from hwqueue.node_load u where u.shard_id = p_shard order by u.node_id, u.version desc
$$;
