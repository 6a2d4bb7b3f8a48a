-- The terms that a claim of a class touches on a node: its own and those that select it. place is '' where the node has no value for it.
-- decides: the class goes by it; counts: the claim changes it; is_plain: it is counted, and selects by what classes are. Of terms that name
-- a lease, those that name p_lease; is_named: some name a lease of the class, this one or another.
create or replace function hwqueue.touched_terms(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_shard int,
                                                 out touched hwqueue.touched_term[], out is_named boolean)
language plpgsql stable
as $$
begin
  select coalesce(array_agg(
           row(t.term_id, t.use, t.domain, coalesce(hwqueue.term_place(t.spec, t.domain, p_node.node_id, p_node.rack, p_node.labels), ''),
               t.decides, t.counts, t.lease_id is null and (t.published_at is not null or not t.decides and not t.holds_up))::hwqueue.touched_term
           order by t.term_id) filter (where t.decides or coalesce(t.lease_id = p_lease, true)), '{}'),
         coalesce(bool_or(t.is_member and t.lease_id is not null), false)
  into touched, is_named
  from (
    select t.term_id, t.use, t.domain, t.spec, t.published_at, t.holds_up, (t.spec #>> '{all,0,lease}')::uuid as lease_id,
           bool_or(u.decides) as decides, bool_or(u.counts) as counts, bool_or(u.is_member) as is_member
    from (
      select k.term_id, true as decides, (s.value -> 'self')::boolean as counts, false as is_member
      from jsonb_array_elements(p_class.terms) s
      join hwqueue.term k on k.shard_id = p_shard and k.digest = (s.value ->> 'digest')::bigint
      union all
      select m.term_id, false, true, true from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = p_class.class_id
    ) u
    join hwqueue.term t on t.shard_id = p_shard and t.term_id = u.term_id
    group by t.shard_id, t.term_id) t;
end
$$;

-- What a claim that touches these terms adds to term_count; null: nothing.
create or replace function hwqueue.counted_terms(p_touched hwqueue.touched_term[]) returns jsonb
language plpgsql immutable
as $$
declare
  v_term hwqueue.touched_term;
  v_counted jsonb;
begin
  foreach v_term in array p_touched loop
    if v_term.counts or v_term.use = 'away' then
      v_counted := coalesce(v_counted, '[]') || jsonb_build_object(
        't', v_term.term_id, 'd', v_term.place, 'n', v_term.counts::int, 'h', (v_term.use = 'away' and v_term.decides)::int);
    end if;
  end loop;
  return v_counted;
end
$$;

-- The same of a claim of a class on a node.
create or replace function hwqueue.counts_of(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_shard int) returns jsonb
language sql stable
as $$ select hwqueue.counted_terms((hwqueue.touched_terms(p_class, p_lease, p_node, p_shard)).touched) $$;

-- Counts running leases anew: those of a node that has other labels or another rack now, or those of a class with other terms; the other
-- one is null.
-- Locks: node_state is held by the caller, for a node; the claims by lease_id; term_count, skip locked.
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
