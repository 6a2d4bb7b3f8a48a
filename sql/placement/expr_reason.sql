-- Why a node does not meet one normal expression: a reason code, or null when it does. The one judge of node facts:
-- claims, match_nodes and explanations all come here. p_facts: what term_facts tells of other leases; without it they are left out of
-- account, and what is asked about them counts as met. p_attested: the trust domains that the node is attested for.
create or replace function hwqueue.expr_reason(p_expr jsonb, p_labels jsonb, p_rack bigint, p_node uuid, p_resources uuid[],
                                               p_facts jsonb, p_attested text[] default '{}') returns text
language plpgsql immutable parallel safe
as $$
declare
  v_away boolean := p_expr ? 'away';
  v_holds boolean;
begin
  if p_expr ? 'label' then
    if p_expr ? 'other_label' then
      v_holds := hwqueue.labels_hold(p_expr ->> 'op', p_labels -> (p_expr ->> 'label'), p_labels -> (p_expr ->> 'other_label'));
    else
      v_holds := hwqueue.label_holds(p_expr ->> 'op', p_labels -> (p_expr ->> 'label'), p_expr -> 'values');
    end if;
    return case when v_holds then null
                when p_labels ? (p_expr ->> 'label') then 'label_mismatch'
                else 'label_missing' end;
  elsif p_expr ? 'tags' then
    return case when p_labels @> (p_expr -> 'tags') then null
                when p_labels ?& array(select jsonb_object_keys(p_expr -> 'tags')) then 'label_mismatch'
                else 'label_missing' end;
  elsif p_expr ? 'any' then
    return case when exists (
        select 1 from jsonb_array_elements(p_expr -> 'any') b
        where hwqueue.exprs_hold(b.value, p_labels, p_rack, p_node, p_resources, p_facts, p_attested)) then null
      else 'required_affinity_unsatisfiable' end;
  elsif p_expr ? 'trust' then
    return case when p_expr ->> 'trust' = any (p_attested) then null else 'trust_not_attested' end;
  elsif p_expr ?| array['leases', 'service', 'lease'] then
    return case when p_facts is not null then hwqueue.fact_reason(p_expr, p_facts -> (p_expr ->> 'term')::int) end;
  elsif p_expr ? 'node' then
    v_holds := coalesce(p_expr -> 'node' @> to_jsonb(p_node), false);  -- null: some node that is not named
  elsif p_expr ? 'rack' then
    if p_rack is null then  -- toward fails and away holds, unless the expression says otherwise
      return case when coalesce(p_expr ->> 'unknown', case when v_away then 'pass' else 'fail' end) = 'pass' then null
                  when v_away then 'anti_affinity_conflict' else 'required_affinity_unsatisfiable' end;
    end if;
    v_holds := p_expr -> 'rack' @> to_jsonb(p_rack);
  else
    v_holds := (p_expr #>> '{resource,0}')::uuid = any (p_resources);
  end if;
  return case when v_holds <> v_away then null
              when v_away then 'anti_affinity_conflict'
              else 'required_affinity_unsatisfiable' end;
end
$$;

-- The same of an expression about other leases, by the fact of its term.
create or replace function hwqueue.fact_reason(p_expr jsonb, p_fact jsonb) returns text
language plpgsql immutable parallel safe
as $$
begin
  if p_expr ? 'away' then
    return case when p_fact ->> 'value' is null then case when p_expr ->> 'unknown' = 'fail' then 'anti_affinity_conflict' end
                when (p_fact ->> 'held')::bigint > 0 then 'anti_affinity_conflict' end;
  elsif p_fact ->> 'value' is null then
    return case when p_expr ->> 'unknown' is distinct from 'pass' then 'required_affinity_unsatisfiable' end;
  end if;
  -- a lease may start the group that it requires to be with
  return case when (p_fact ->> 'here')::bigint <= 0 and not ((p_fact -> 'self')::boolean and not (p_fact -> 'elsewhere')::boolean)
              then 'required_affinity_unsatisfiable' end;
end
$$;

-- All of a list of normal expressions.
create or replace function hwqueue.exprs_hold(p_exprs jsonb, p_labels jsonb, p_rack bigint, p_node uuid, p_resources uuid[],
                                              p_facts jsonb, p_attested text[] default '{}') returns boolean
language plpgsql immutable parallel safe
as $$
declare
  v_expr jsonb;
begin
  for v_expr in select e.value from jsonb_array_elements(p_exprs) e loop
    if hwqueue.expr_reason(v_expr, p_labels, p_rack, p_node, p_resources, p_facts, p_attested) is not null then
      return false;
    end if;
  end loop;
  return true;
end
$$;

-- One label against another of the same node: a label that is missing on either side meets not_in only.
create or replace function hwqueue.labels_hold(p_op text, p_value jsonb, p_other jsonb) returns boolean
language sql immutable parallel safe
as $$
  select case
    when p_value is null or p_other is null then p_op = 'not_in'
    when p_op in ('contains_all', 'contains_any') then
      jsonb_typeof(p_other) = 'array' and hwqueue.label_holds(p_op, p_value, p_other)
    else hwqueue.label_holds(p_op, p_value, jsonb_build_array(p_other))
  end
$$;
