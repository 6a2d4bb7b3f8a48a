-- The nodes that serve the queue and task of each of these classes, as bit strings (numbered_nodes); no row
-- for what all nodes serve. Nodes that announced the same are judged once. p_none: a zero for each node.
create or replace function hwqueue.served_masks(p_class_ids bigint[], p_none bit varying, p_now timestamptz, p_shard int)
returns table (queue_id int, task_name text, mask bit varying)
language sql stable
as $$
  with announced as materialized (
    select v.queues, v.tasks, bit_or(set_bit(p_none, n.number, 1)) as mask
    from hwqueue.served v
    join hwqueue.numbered_nodes(p_now, p_shard) n on (n.node).node_id = v.node_id
    where v.shard_id = p_shard
    group by v.queues, v.tasks
  ), asked as (
    select distinct c.queue_id, q.name, c.task_name
    from hwqueue.placement_class c
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id
    where c.shard_id = p_shard and c.class_id = any (p_class_ids)
  )
  select k.queue_id, k.task_name, ~bit_or(a.mask)
  from asked k
  join announced a on hwqueue.unserved_part(a.queues, a.tasks, k.name, k.task_name) is not null
  group by k.queue_id, k.task_name
$$;
