-- Why a lease may not join what runs: the first reason code, null when it may. 'unpublished': a term of its class is not counted yet.
-- p_skew: max_skew as well, which costs most; p_exact: by what nodes are now, not by what is remembered of them.
-- Locks: none; the caller holds what it decides by, or only looks.
create or replace function hwqueue.terms_reason(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_facts jsonb, p_skew boolean, p_exact boolean, p_now timestamptz, p_shard int)
returns text
language plpgsql stable
as $$
declare
  v_expr jsonb;
  v_reason text;
  v_attested text[];
  v_holds_up boolean;
  v_keeps_out boolean;
begin
  -- of the terms that select the class: whether one is to be counted first, and whether what runs here might keep it out
  select coalesce(bool_or(t.published_at is null and t.holds_up), false), coalesce(bool_or(n.holders > 0), false) into v_holds_up, v_keeps_out
  from hwqueue.class_term m
  join hwqueue.term t on t.shard_id = p_shard and t.term_id = m.term_id
  cross join lateral (
    select sum(k.holders) as holders from hwqueue.term_count k
    where t.use = 'away' and k.shard_id = p_shard and k.term_id = t.term_id
      and k.domain = hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels)) n
  where m.shard_id = p_shard and m.class_id = p_class.class_id;
  if v_holds_up or p_facts @> '[null]' or p_class.service_id is not null and hwqueue.is_stale(p_class, p_shard) then
    return 'unpublished';
  end if;
  if p_facts <> '[]' and p_class.required <> '[]' then
    v_attested := case when p_node.attested = '{}' then '{}' else hwqueue.attested_at(p_node, p_now) end;
    -- what says nothing about other leases, nor about trust, was decided when the class was judged
    for v_expr in
      select e.value from jsonb_array_elements(p_class.required) e
      where jsonb_path_exists(e.value, 'strict $.** ? (exists(@.term) || exists(@.trust))', '{}', true)
    loop
      v_reason := hwqueue.expr_reason(v_expr, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids, p_facts,
                                      v_attested);
      if v_reason is not null then
        return v_reason;
      end if;
    end loop;
  end if;
  if p_facts <> '[]' and p_class.spread <> '[]' then
    for v_expr in select s.value from jsonb_array_elements(p_class.spread) s where p_skew or not s.value ? 'max_skew' loop
      v_reason := hwqueue.spread_reason(v_expr, p_class, p_facts,
        case when p_exact and v_expr ? 'max_skew' then hwqueue.spread_counts(v_expr, p_class, null, p_now, p_shard) end, p_now, p_shard);
      if v_reason is not null then
        return v_reason;
      end if;
    end loop;
  end if;
  if v_keeps_out and hwqueue.kept_out_of(p_class, p_lease, p_node, p_shard) is not null then
    return 'anti_affinity_conflict';
  end if;
  return null;
end
$$;

-- The first domain out of which something that runs keeps a lease of this class: required "away" holds both ways. Null: there is none.
create or replace function hwqueue.kept_out_of(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node,
    p_shard int) returns text
language plpgsql stable
as $$
begin
  return (
    select t.domain
    from hwqueue.class_term m
    join hwqueue.term t on t.shard_id = p_shard and t.term_id = m.term_id
    cross join lateral hwqueue.read_count(t.term_id, hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels), p_shard) c
    where m.shard_id = p_shard and m.class_id = p_class.class_id and t.use = 'away' and c.holders > 0
      and coalesce((t.spec #>> '{all,0,lease}')::uuid = p_lease, true)
    order by t.term_id limit 1);
end
$$;

-- The same by what kept_out_places gave.
create or replace function hwqueue.known_to_keep_out(p_known jsonb, p_node hwqueue.node) returns text
language sql immutable parallel safe
as $$
  select min(d) from jsonb_array_elements_text(p_known -> 'kept_out') d
  where p_known -> 'kept_at' ? (d || '@' || hwqueue.domain_value(d, p_node.node_id, p_node.rack, p_node.labels))
$$;
