-- Adds a batch of judged classes to what nodes of a profile without GPUs and custom countables may run of each queue.
-- Locks: the caller holds the profile's row.
create or replace function hwqueue.note_eligible(p_profile_id bigint, p_batch bigint[], p_shard int) returns void
language sql volatile
as $$
  insert into hwqueue.profile_queue as s (shard_id, profile_id, queue_id, classes, task_names, most_cpu_milli, most_memory_mib, is_even,
                                          checked, classes_seen)
  select p_shard, p_profile_id, e.queue_id, (array_agg(e.class_id))[1 : 201], (array_agg(distinct e.task_name))[1 : 51],
         max(e.cpu_milli), max(e.memory_mib),
         bool_and(coalesce(e.affinity = 0, false)),
         coalesce((array_agg(e.class_id) filter (where e.is_checked))[1 : 201], '{}'), '0'
  from hwqueue.profile_eligibility e
  where e.shard_id = p_shard and e.profile_id = p_profile_id and e.class_id = any (p_batch) and e.gpu_count = 0 and e.custom is null
  group by e.queue_id
  on conflict (shard_id, profile_id, queue_id) do update
  set classes = array(select distinct u from unnest(s.classes || excluded.classes) u limit 201),
      task_names = array(select distinct u from unnest(s.task_names || excluded.task_names) u limit 51),
      most_cpu_milli = greatest(s.most_cpu_milli, excluded.most_cpu_milli),
      most_memory_mib = greatest(s.most_memory_mib, excluded.most_memory_mib),
      checked = array(select distinct u from unnest(s.checked || excluded.checked) u limit 201),
      is_even = s.is_even and excluded.is_even
$$;
