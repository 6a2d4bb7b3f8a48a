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

-- Binds all that a class asks about other leases: its requirements, preferences and spread carry the index of their terms then. What its
-- service keeps away from is required of it, too.
create or replace function hwqueue.bind_terms(inout p_class hwqueue.placement_class)
language plpgsql immutable
as $$
declare
  v_required jsonb := coalesce(p_class.placement -> 'require', '[]') || array_to_json(array(
    select jsonb_build_object('service', s, 'away', true) from unnest(p_class.away_from) s))::jsonb;
  v_preferred jsonb := coalesce(p_class.placement -> 'prefer', '[]');
  v_bound record;
  v_item jsonb;
begin
  p_class.required := v_required;
  p_class.spread := coalesce(p_class.placement -> 'spread', '[]');
  p_class.terms := '[]';
  if p_class.spread = '[]' and not hwqueue.asks_others(jsonb_build_array(v_required, v_preferred)) then
    return;  -- as of most classes
  end if;
  v_bound := hwqueue.bind_exprs(v_required, 'require', (
    select coalesce(jsonb_agg(hwqueue.term_item(e.value -> 'leases', e.value -> 'tenants', p_class) order by e.ordinality), '[]')
    from jsonb_array_elements(v_required) with ordinality e where e.value ? 'leases' and not e.value ? 'away'), p_class, p_class.terms);
  p_class.required := v_bound.exprs;
  p_class.terms := v_bound.p_terms;
  p_class.preferred := '[]';
  for v_item in select p.value from jsonb_array_elements(v_preferred) with ordinality p order by p.ordinality loop
    v_bound := hwqueue.bind_exprs(v_item -> 'when', 'prefer', null, p_class, p_class.terms);
    p_class.terms := v_bound.p_terms;
    p_class.preferred := p_class.preferred || jsonb_build_object('weight', v_item -> 'weight', 'when', v_bound.exprs);
  end loop;
  p_class := hwqueue.bind_spread(p_class);
end
$$;
