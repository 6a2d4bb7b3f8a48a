-- What a profile and a node may run of a queue, with what it needs and how well it is liked there. A class is in one of the two
-- tables: in the node's when it names nodes, resources or trust domains. p_only: of these classes (null: all).
create or replace function hwqueue.eligible_classes(p_profile_id bigint, p_node uuid, p_queue_id int, p_only bigint[], p_shard int)
returns table (class_id bigint, affinity double precision, task_name text, cpu_milli bigint, memory_mib bigint, gpu_count int,
               gpu_milli int, gpu_wanted uuid[], custom jsonb, cpu_isolation text, gpu_exclusivity text, trusts text[], is_checked boolean)
language sql stable
as $$
  select p.class_id, p.affinity, p.task_name, p.cpu_milli, p.memory_mib, p.gpu_count, p.gpu_milli, p.gpu_wanted, p.custom,
         p.cpu_isolation, p.gpu_exclusivity, '{}'::text[], p.is_checked
  from (
    select * from hwqueue.profile_eligibility a
    where p_only is null and a.shard_id = p_shard and a.profile_id = p_profile_id and a.queue_id = p_queue_id
    union all
    select o.* from unnest(p_only) k(class_id)
    cross join lateral (  -- fenced: each by its key
      select * from hwqueue.profile_eligibility x
      where x.shard_id = p_shard and x.profile_id = p_profile_id and x.queue_id = p_queue_id and x.class_id = k.class_id offset 0) o) p
  union all
  select n.class_id, n.affinity, n.task_name, n.cpu_milli, n.memory_mib, n.gpu_count, n.gpu_milli, n.gpu_wanted, n.custom,
         n.cpu_isolation, n.gpu_exclusivity, n.trusts, n.is_checked
  from hwqueue.node_eligibility n
  where n.shard_id = p_shard and n.node_id = p_node and n.queue_id = p_queue_id and (p_only is null or n.class_id = any (p_only))
$$;
