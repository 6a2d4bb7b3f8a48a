-- The terms that a claim of a class touches on a node: its own and those that select it. place is '' where the node has no value for it.
-- decides: the class goes by it; counts: the claim changes it. Of terms that name a lease, those that name p_lease.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.touched_terms(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_shard int)
returns hwqueue.touched_term[]
language plpgsql stable
as $$
begin
  return array(
    select row(t.term_id, t.use, t.domain, coalesce(hwqueue.term_place(t.spec, t.domain, p_node.node_id, p_node.rack, p_node.labels), ''),
               bool_or(u.decides), bool_or(u.counts))::hwqueue.touched_term
    from (
      select k.term_id, true as decides, (s.value -> 'self')::boolean as counts
      from jsonb_array_elements(p_class.terms) s
      join hwqueue.term k on k.shard_id = p_shard and k.digest = (s.value ->> 'digest')::bigint
      union all
      select m.term_id, false, true from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = p_class.class_id
    ) u
    join hwqueue.term t on t.shard_id = p_shard and t.term_id = u.term_id
    where u.decides or coalesce((t.spec #>> '{all,0,lease}')::uuid = p_lease, true)
    group by t.shard_id, t.term_id);
end
$$;

-- What a claim that touches these terms adds to term_count; null: nothing.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.counted_terms(p_touched hwqueue.touched_term[]) returns jsonb
language plpgsql immutable
as $$
begin
  return (
    select jsonb_agg(jsonb_build_object('t', t.term_id, 'd', t.place, 'n', t.counts::int, 'h', (t.use = 'away' and t.decides)::int) order by t.term_id)
    from unnest(p_touched) t
    where t.counts or t.use = 'away');
end
$$;

-- The same of a claim of a class on a node.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.counts_of(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_shard int) returns jsonb
language sql stable
as $$ select hwqueue.counted_terms(hwqueue.touched_terms(p_class, p_lease, p_node, p_shard)) $$;

-- Counts running leases anew: those of a node that has other labels or another rack now, or those of a class with other terms; the other
-- one is null.
-- Locks: node_state is held by the caller, for a node; the claims by lease_id; term_count, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.move_counts(p_node uuid, p_class_id bigint, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_claim record;
begin
  perform 1 from hwqueue.claim c
  where c.shard_id = p_shard and (c.node_id = p_node or c.class_id = p_class_id) and c.counted is not null order by c.lease_id for update;
  for v_claim in
    select c.lease_id, c.counted, hwqueue.counts_of(k, c.lease_id, n, p_shard) as now_counted
    from hwqueue.claim c
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = c.node_id
    where c.shard_id = p_shard and (c.node_id = p_node or c.class_id = p_class_id) and c.counted is not null
  loop
    if v_claim.counted is distinct from v_claim.now_counted then
      perform hwqueue.add_counts(v_claim.counted, -1, p_shard), hwqueue.add_counts(v_claim.now_counted, 1, p_shard);
      update hwqueue.claim c set counted = v_claim.now_counted where c.shard_id = p_shard and c.lease_id = v_claim.lease_id;
    end if;
  end loop;
end
$$;
