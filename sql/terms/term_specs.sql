-- Terms: what a class asks about other leases, cut into parts that can be counted. A term is a selection of leases, a domain, and the
-- use that is made of it; equal ones share a row in hwqueue.term, found by digest:
--   {"use", "all": [ITEM, ...], "domain": "node" | "rack" | "label:KEY" | "failure", "queue": only with "failure",
--    "nodes": only of skew, which nodes it speaks of if not of all (speaks_of)}
-- ITEM: {"exprs", "tenants"}, {"service", "tenants"}, {"task", "queue", "tenants"} or {"lease"}; a lease is selected when all match.
-- use: toward, away (symmetric), apart (away inside an any: not symmetric), skew, cap (max_per_domain), tally (skew's counts by node, where it
-- takes more than rack and labels to know which nodes count), soft (scores only).
-- Raises: QHC03 where said.

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
                                            inout p_terms jsonb, p_nodes jsonb default null, out index int)
language plpgsql immutable
as $$
declare
  v_spec jsonb := jsonb_build_object('use', p_use, 'all', p_items, 'domain', coalesce(p_domain, 'failure'))
    || case when p_domain is null then jsonb_build_object('queue', p_class.queue_id) else '{}' end
    || case when p_nodes <> '{}' then jsonb_build_object('nodes', p_nodes) else '{}' end;
begin
  select (t.ordinality - 1)::int into index from jsonb_array_elements(p_terms) with ordinality t where t.value -> 'spec' = v_spec;
  if not found then
    index := jsonb_array_length(p_terms);
    p_terms := p_terms || jsonb_build_object('spec', v_spec, 'self', hwqueue.term_selects(v_spec, p_class),
      'digest', ('x' || substr(encode(sha256(convert_to(v_spec::text, 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint);
  end if;
end
$$;
