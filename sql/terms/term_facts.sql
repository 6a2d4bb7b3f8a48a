-- What a claim must know of each of a class's terms on one node, in their order: {"value": where the node is, "held": leases there,
-- "here": those that are not about to leave (for max_per_domain the expired stay: they may go on), "elsewhere": of toward, whether any run in another place, "self": the class is selected}.
-- Null for a term that is not published yet: nothing may be decided by it. expr_reason and spread_reason judge by these facts.
-- p_recount: what recount_terms gave, for dry runs; null: by what claims have counted.
-- Locks: none; what is decided by them is read again under the gates.
create or replace function hwqueue.term_facts(p_class hwqueue.placement_class, p_node hwqueue.node, p_recount jsonb, p_now timestamptz, p_shard int)
returns jsonb
language plpgsql stable
as $$
declare
  v_term record;
  v_facts jsonb := '[]'::jsonb;
begin
  for v_term in
    select (s.value -> 'self')::boolean and s.value #>> '{spec,use}' <> 'soft' as is_self, t.term_id, t.published_at, coalesce(t.domain, hwqueue.term_domain(s.value -> 'spec', p_shard)) as domain,
           s.value #>> '{spec,all,0,lease}' as lease_id, s.value #>> '{spec,use}' as use, p_recount #> array['terms', (s.ordinality - 1)::text] as recount
    from jsonb_array_elements(p_class.terms) with ordinality s
    left join hwqueue.term t on t.shard_id = p_shard and t.digest = (s.value ->> 'digest')::bigint
    order by s.ordinality
  loop
    v_facts := v_facts || case
      when v_term.published_at is null and p_recount is null then 'null'::jsonb
      when v_term.lease_id is not null then hwqueue.lease_fact(v_term.lease_id::uuid, v_term.domain, p_node, p_now, p_shard)
      else hwqueue.count_fact(v_term.term_id, hwqueue.domain_value(v_term.domain, p_node.node_id, p_node.rack, p_node.labels),
                              v_term.is_self, v_term.use, v_term.recount, p_now, p_shard) end;
  end loop;
  return v_facts;
end
$$;

-- The fact of a term that selects by what classes are.
create or replace function hwqueue.count_fact(p_term_id bigint, p_value text, p_self boolean, p_use text, p_recount jsonb, p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
declare
  v_held bigint := 0;
  v_here bigint := 0;
  v_elsewhere boolean := false;
begin
  if p_recount is not null then
    v_held := coalesce((p_recount #>> array[p_value, 'held'])::bigint, 0);
  elsif p_value is not null then
    select c.leases into v_held from hwqueue.read_count(p_term_id, p_value, p_shard) c;
  end if;
  if v_held > 0 then
    v_here := case when p_recount is null then v_held - hwqueue.leaving(p_term_id, p_value, p_use <> 'cap', p_now, p_shard)
              else hwqueue.staying(p_term_id, p_recount, p_value, p_use <> 'cap', p_now, p_shard) end;
  end if;
  if p_self and p_use = 'toward' and v_here <= 0 then  -- may it start its group?
    v_elsewhere := hwqueue.staying(p_term_id, p_recount, null, true, p_now, p_shard) > 0;
  end if;
  return jsonb_build_object('value', p_value, 'held', v_held, 'here', v_here, 'elsewhere', v_elsewhere, 'self', p_self);
end
$$;

-- The fact of a term on one lease: where it runs, else where it succeeded.
create or replace function hwqueue.lease_fact(p_lease uuid, p_domain text, p_node hwqueue.node, p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
declare
  v_value text := hwqueue.domain_value(p_domain, p_node.node_id, p_node.rack, p_node.labels);
  v_runs record;
  v_there boolean;
begin
  select c.node_id, 1 as held, (c.stop_requested_at <= p_now is not true and c.expires_at > p_now)::int as here into v_runs
  from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease;
  if not found then
    select o.node_id, 0 as held, 1 as here into v_runs
    from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = p_lease and o.state = 'completed';
  end if;
  v_there := (
    select hwqueue.domain_value(p_domain, n.node_id, n.rack, n.labels) = v_value
    from hwqueue.node n where n.shard_id = p_shard and n.node_id = v_runs.node_id);
  return jsonb_build_object('value', v_value, 'held', case when v_there then v_runs.held else 0 end,
    'here', case when v_there then v_runs.here else 0 end, 'elsewhere', false, 'self', false);
end
$$;
