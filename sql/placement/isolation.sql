-- CPU isolation and GPU exclusivity: what a class comes to on a node, and whether the node honours it. A filter, never a score.

-- The CPU isolation of a class on a node: what it asks for, else the node's default; null is best_effort. What asks nothing
-- takes the default, what asks for best_effort does not.
create or replace function hwqueue.cpu_isolation_on(p_asked text, p_default text) returns text
language sql immutable parallel safe
as $$ select nullif(coalesce(p_asked, p_default), 'best_effort') $$;

-- Its GPU exclusivity there, null for shared. session_exclusive and device_exclusive both mean that the lease has its devices to itself:
-- leases share no sessions. They differ in what a node must honour.
create or replace function hwqueue.gpu_exclusivity_on(p_asked text, p_share_mode text) returns text
language sql immutable parallel safe
as $$ select nullif(coalesce(p_asked, case when p_share_mode = 'exclusive' then 'device_exclusive' end), 'shared') $$;

-- What a class sets aside of cpu_milli: the whole cores that it takes, 1000 each; p_isolation is what it comes to.
create or replace function hwqueue.cpu_needed(p_cpu_milli bigint, p_isolation text) returns bigint
language sql immutable parallel safe
as $$ select case when p_isolation is null then p_cpu_milli else 1000 * greatest(1, (p_cpu_milli + 999) / 1000) end $$;

-- Why the classes asked for do not go with what a node (or every node of a profile) honours; no row: they do. All of it is permanent.
-- p_gpu_parents: node.gpu_parents with p_gpu_ids; empty for a profile, whose classes name no devices.
create or replace function hwqueue.isolation_conflicts(p_class hwqueue.placement_class, p_cpu text[], p_gpu text[], p_share_mode text,
                                                       p_gpu_ids uuid[], p_gpu_parents uuid[])
returns table (code text, message text, predicate jsonb)
language sql immutable parallel safe
as $$
  select 'no_node_supports_class', format('the node does not honour CPU isolation %s', p_class.cpu_isolation),
         jsonb_build_object('cpu', p_class.cpu_isolation)
  where p_class.cpu_isolation <> all (p_cpu)
  union all
  select 'no_node_supports_class', format('the node does not honour GPU exclusivity %s', p_class.gpu_exclusivity),
         jsonb_build_object('gpu', p_class.gpu_exclusivity)
  where p_class.gpu_exclusivity <> all (p_gpu)
  union all
  select 'class_conflicts_with_daemon_mode', 'the node gives every GPU to one lease alone',
         jsonb_strip_nulls(jsonb_build_object('gpu', p_class.gpu_exclusivity, 'gpu_milli', nullif(p_class.gpu_milli, 0)))
  where p_share_mode = 'exclusive' and (p_class.gpu_exclusivity = 'shared' or p_class.gpu_milli > 0)
  union all
  select 'class_conflicts_with_resource_id',
         format('device %s is %s', d.id, case when d.parent is null then 'whole, the lease asks for a part of one'
                                              else 'a part of another, which only partition_exclusive is given' end),
         jsonb_build_object('gpu', hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_share_mode), 'resource', d.id)
  from unnest(p_class.gpu_wanted) w(id)
  join unnest(p_gpu_ids, p_gpu_parents) d(id, parent) on d.id = w.id
  where (hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_share_mode) is not distinct from 'partition_exclusive') <> (d.parent is not null)
$$;

-- Whether there is such a conflict.
create or replace function hwqueue.has_isolation_conflict(p_class hwqueue.placement_class, p_cpu text[], p_gpu text[], p_share_mode text,
                                                          p_gpu_ids uuid[], p_gpu_parents uuid[]) returns boolean
language sql immutable parallel safe
as $$ select exists (select from hwqueue.isolation_conflicts(p_class, p_cpu, p_gpu, p_share_mode, p_gpu_ids, p_gpu_parents)) $$;
