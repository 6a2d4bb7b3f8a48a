-- Whether a node may run leases of a class, by what it is and not by what runs there. Without p_node: whether every node of its
-- profile may; classes that name nodes or resources are asked with it. The one place that knows all static rules; claims remember
-- its answer, class_reasons says why not. p_gpu_ids, p_gpu_parents: the node's devices, for a class that names one.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.suits(p_class hwqueue.placement_class, p_profile hwqueue.profile, p_node uuid, p_resources uuid[],
                                         p_gpu_ids uuid[] default '{}', p_gpu_parents uuid[] default '{}') returns boolean
language sql immutable parallel safe
as $$
  select hwqueue.exprs_hold(p_class.required, p_profile.labels, p_profile.rack, p_node, p_resources)
     -- asked only where there may be something: most classes and nodes know no isolation
     and case when p_class.cpu_isolation is null and p_class.gpu_exclusivity is null and p_class.gpu_wanted = '{}'
                   and p_profile.gpu_share_mode = 'fractional' then true
         else not hwqueue.has_isolation_conflict(p_class, p_profile.cpu_isolation, p_profile.gpu_exclusivity, p_profile.gpu_share_mode,
                                                 p_gpu_ids, p_gpu_parents) end
$$;
