-- Whether a node may run leases of a class, by what it is and not by what runs there. Without p_node: whether every node of its
-- profile may; classes that name nodes or resources are asked with it. The one place that knows all static rules; claims remember
-- its answer, class_reasons says why not.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.suits(p_class hwqueue.placement_class, p_profile hwqueue.profile, p_node uuid, p_resources uuid[])
returns boolean
language sql immutable parallel safe
as $$
  select hwqueue.exprs_hold(p_class.required, p_profile.labels, p_profile.rack, p_node, p_resources, null)
$$;
