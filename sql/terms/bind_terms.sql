-- Terms: what a class asks about other leases, cut into parts that can be counted. A term is a selection of leases, a domain, and the
-- use that is made of it; equal ones share a row in hwqueue.term, found by digest:
--   {"use", "all": [ITEM, ...], "domain": "node" | "rack" | "label:KEY" | "failure", "queue": only with "failure"}
-- ITEM: {"exprs", "tenants"}, {"service", "tenants"}, {"task", "queue", "tenants"} or {"lease"}; a lease is selected when all match.
-- use: toward, away (symmetric), apart (away inside an any: not symmetric), skew, cap (max_per_domain), soft (scores only).
-- Locks: none. Raises: QHC03 where said. Idempotent: yes.

-- What a selector of a class means: {"same": ...} is resolved, tenants are the class's own unless others are named.
-- Raises: QHC03 for the same service in a lease without one.
create or replace function hwqueue.term_item(p_selector jsonb, p_tenants jsonb, p_class hwqueue.placement_class) returns jsonb
language plpgsql immutable
as $$
declare
  v_tenants jsonb := coalesce(p_tenants, jsonb_build_array(p_class.tenant));
begin
  if p_selector ? 'exprs' then
    return jsonb_build_object('exprs', p_selector -> 'exprs', 'tenants', v_tenants);
  elsif p_selector ->> 'same' = 'task' then
    return jsonb_build_object('task', p_class.task_name, 'queue', p_class.queue_id, 'tenants', v_tenants);
  elsif p_class.service_id is null then
    perform hwqueue.refuse('QHC03', 'a selector asks for the same service, but the lease has none',
      jsonb_build_object('field', 'options.service_id'), 'give the lease a service_id, or select by labels or the same task');
  end if;
  return jsonb_build_object('service', p_class.service_id, 'tenants', v_tenants);
end
$$;

-- Writes a term among those of a class, once, and gives its index.
create or replace function hwqueue.add_term(p_use text, p_items jsonb, p_domain text, p_class hwqueue.placement_class,
                                            inout p_terms jsonb, out index int)
language plpgsql immutable
as $$
declare
  v_spec jsonb := jsonb_build_object('use', p_use, 'all', p_items, 'domain', coalesce(p_domain, 'failure'))
    || case when p_domain is null then jsonb_build_object('queue', p_class.queue_id) else '{}' end;
begin
  select (t.ordinality - 1)::int into index from jsonb_array_elements(p_terms) with ordinality t where t.value -> 'spec' = v_spec;
  if not found then
    index := jsonb_array_length(p_terms);
    p_terms := p_terms || jsonb_build_object('spec', v_spec, 'self', hwqueue.term_selects(v_spec, p_class),
      'digest', ('x' || substr(encode(sha256(convert_to(v_spec::text, 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint);
  end if;
end
$$;

-- A list of normal expressions in which those about other leases carry the index of their term.
-- p_place: require, any (inside one), prefer. p_together: the items of all required leases terms toward, which one lease must meet at once.
create or replace function hwqueue.bind_exprs(p_exprs jsonb, p_place text, p_together jsonb, p_class hwqueue.placement_class,
                                              inout p_terms jsonb, out exprs jsonb)
language plpgsql immutable
as $$
declare
  v_expr jsonb;
  v_branch jsonb;
  v_branches jsonb;
  v_items jsonb;
  v_bound record;
begin
  exprs := '[]'::jsonb;
  for v_expr in select e.value from jsonb_array_elements(p_exprs) with ordinality e order by e.ordinality loop
    if v_expr ? 'any' then
      v_branches := '[]'::jsonb;
      for v_branch in select b.value from jsonb_array_elements(v_expr -> 'any') with ordinality b order by b.ordinality loop
        v_bound := hwqueue.bind_exprs(v_branch, case p_place when 'require' then 'any' else p_place end, null, p_class, p_terms);
        p_terms := v_bound.p_terms;
        v_branches := v_branches || jsonb_build_array(v_bound.exprs);
      end loop;
      v_expr := jsonb_build_object('any', v_branches);
    elsif v_expr ?| array['leases', 'service', 'lease'] then
      v_items := case
        when v_expr ? 'lease' then jsonb_build_array(jsonb_build_object('lease', v_expr -> 'lease'))
        when v_expr ? 'service' then jsonb_build_array(jsonb_build_object('service', v_expr -> 'service', 'tenants', '*'))
        when p_place = 'require' and not v_expr ? 'away' then p_together
        else jsonb_build_array(hwqueue.term_item(v_expr -> 'leases', v_expr -> 'tenants', p_class)) end;
      v_bound := hwqueue.add_term(case when p_place = 'prefer' then 'soft' when not v_expr ? 'away' then 'toward'
                                       when p_place = 'require' then 'away' else 'apart' end,
                                  v_items, v_expr ->> 'domain', p_class, p_terms);
      p_terms := v_bound.p_terms;
      v_expr := v_expr || jsonb_build_object('term', v_bound.index);
    end if;
    exprs := exprs || jsonb_build_array(v_expr);
  end loop;
end
$$;

-- Binds all that a class asks about other leases: its requirements, preferences and spread carry the index of their terms then.
create or replace function hwqueue.bind_terms(inout p_class hwqueue.placement_class)
language plpgsql immutable
as $$
declare
  v_together jsonb := (
    select coalesce(jsonb_agg(hwqueue.term_item(e.value -> 'leases', e.value -> 'tenants', p_class) order by e.ordinality), '[]')
    from jsonb_array_elements(p_class.required) with ordinality e where e.value ? 'leases' and not e.value ? 'away');
  v_terms jsonb := '[]'::jsonb;
  v_bound record;
  v_item jsonb;
  v_items jsonb := '[]'::jsonb;
begin
  v_bound := hwqueue.bind_exprs(p_class.required, 'require', v_together, p_class, v_terms);
  p_class.required := v_bound.exprs;
  v_terms := v_bound.p_terms;
  for v_item in select p.value from jsonb_array_elements(p_class.preferred) with ordinality p order by p.ordinality loop
    v_bound := hwqueue.bind_exprs(v_item -> 'when', 'prefer', null, p_class, v_terms);
    v_terms := v_bound.p_terms;
    v_items := v_items || jsonb_build_object('weight', v_item -> 'weight', 'when', v_bound.exprs);
  end loop;
  p_class.preferred := v_items;
  v_items := '[]'::jsonb;
  for v_item in select s.value from jsonb_array_elements(p_class.spread) with ordinality s order by s.ordinality loop
    v_bound := hwqueue.add_term(case when v_item ? 'max_per_domain' then 'cap' when v_item ? 'max_skew' and not v_item ? 'when' then 'skew'
                                     else 'soft' end,
      jsonb_build_array(hwqueue.term_item(v_item -> 'select', null, p_class)), v_item ->> 'domain', p_class, v_terms);
    v_terms := v_bound.p_terms;
    v_items := v_items || jsonb_build_array(v_item || jsonb_build_object('term', v_bound.index));
  end loop;
  p_class.spread := v_items;
  p_class.terms := v_terms;
end
$$;
