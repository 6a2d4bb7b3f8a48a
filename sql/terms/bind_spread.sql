-- bind_terms for the spread of a class.
create or replace function hwqueue.bind_spread(inout p_class hwqueue.placement_class)
language plpgsql immutable
as $$
declare
  v_bound record;
  v_item jsonb;
  v_items jsonb := '[]'::jsonb;
  v_selection jsonb;
  v_nodes jsonb;
begin
  for v_item in select s.value from jsonb_array_elements(p_class.spread) with ordinality s order by s.ordinality loop
    v_selection := jsonb_build_array(hwqueue.term_item(v_item -> 'select', null, p_class));
    v_nodes := case when v_item ? 'max_skew' then hwqueue.spread_nodes(v_item, p_class) end;
    v_bound := hwqueue.add_term(case when v_item ? 'max_per_domain' then 'cap' when v_item ? 'max_skew' and not v_item ? 'when' then 'skew'
                                     else 'soft' end, v_selection, v_item ->> 'domain', p_class, p_class.terms, v_nodes);
    p_class.terms := v_bound.p_terms;
    v_item := v_item || jsonb_build_object('term', v_bound.index);
    if v_item ? 'max_skew' and v_nodes is null then  -- which nodes count is asked node by node
      v_bound := hwqueue.add_term('tally', v_selection, 'node', p_class, p_class.terms);
      p_class.terms := v_bound.p_terms;
      v_item := v_item || jsonb_build_object('tally', v_bound.index);
    end if;
    v_items := v_items || jsonb_build_array(v_item);
  end loop;
  p_class.spread := v_items;
end
$$;

-- Which nodes count for a required max_skew, as a term says it (speaks_of); null when rack and labels do not tell.
create or replace function hwqueue.spread_nodes(p_spread jsonb, p_class hwqueue.placement_class) returns jsonb
language sql immutable
as $$
  select case when not p_class.is_pinned and not p_spread ? 'when' and p_spread #>> '{count_nodes,taints}' is distinct from 'honor' then
      case when r.exprs = '[]' then '{}' else jsonb_build_object('require', r.exprs) end
      || case when d.domains = '[]' then '{}' else jsonb_build_object('domains', d.domains) end end
  from (
    select coalesce(jsonb_agg(e.value order by e.ordinality), '[]') as exprs
    from jsonb_array_elements(p_class.placement -> 'require') with ordinality e
    where p_spread #>> '{count_nodes,affinity}' is distinct from 'ignore' and not e.value ?| array['leases', 'service', 'lease']
  ) r, (
    select coalesce(jsonb_agg(distinct s.value -> 'domain'), '[]') as domains
    from jsonb_array_elements(p_class.spread) s
    where s.value ? 'max_skew' and not s.value ? 'when' and s.value ->> 'domain' not in ('node', p_spread ->> 'domain')
  ) d
$$;
