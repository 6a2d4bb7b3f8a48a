-- The nodes none of whose taints keeps leases with these tolerations off, as bit strings (numbered_nodes).
-- p_none: a zero for each node. Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.toleration_masks(p_tolerate jsonb[], p_none bit varying, p_now timestamptz, p_shard int)
returns table (tolerate jsonb, mask bit varying)
language sql stable
as $$
  with tainted as materialized (
    select p.taints, bit_or(set_bit(p_none, n.number, 1)) as mask
    from hwqueue.profile p
    join hwqueue.numbered_nodes(p_now, p_shard) n on (n.node).profile_id = p.profile_id
    where p.shard_id = p_shard and p.taints <> '[]'
    group by p.taints
  )
  select t, ~coalesce(bit_or(x.mask), p_none)
  from unnest(p_tolerate) t
  left join tainted x on hwqueue.barring_taints(x.taints, t) <> '[]'
  group by t
$$;
