-- Affinity terms: what a class asks about other leases, cut into parts that can be counted.
--
-- An example: a class requires to be away from app=db by rack. bind_terms adds the term to the class's
-- terms, and writes its index into the requirement.
--
-- A term is a selection of leases, a domain and a use. Equal terms share one row of affinity_term, found
-- by digest, which constraints/publish writes later:
--   {"use", "all": [ITEM, ...], "domain": "node" | "rack" | "label:KEY" | "failure",
--    "queue": only with domain failure, "nodes": only of skew, the nodes it counts if not all}
--
-- ITEM is {"exprs", "tenants"}, {"service", "tenants"}, {"task", "queue", "tenants"} or {"lease"}. A
-- term selects the leases that match all of its items.
--
-- The uses: toward; away (symmetric); apart (away inside an any, not symmetric); skew; cap
-- (max_per_domain); tally (the counts of skew by node, where rack and labels do not say which nodes
-- count); soft (scores only).
--
-- The modules of constraints/ count and decide.

-- Returns normal expressions in which those about other leases carry the index of their term, and the terms.
-- p_place: require, any (inside one) or prefer. p_together: the items of all required leases terms toward:
-- one lease must match them all at once.
create or replace function hwqueue.bind_exprs(p_exprs jsonb, p_place text, p_together jsonb,
  p_class hwqueue.placement_class, inout p_terms jsonb, out exprs jsonb)
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
      for v_branch in select b.value from jsonb_array_elements(v_expr -> 'any') with ordinality b
        order by b.ordinality loop
        v_bound := hwqueue.bind_exprs(v_branch, case p_place when 'require' then 'any' else p_place end, null,
          p_class, p_terms);
        p_terms := v_bound.p_terms;
        v_branches := v_branches || jsonb_build_array(v_bound.exprs);
      end loop;
      v_expr := v_expr || jsonb_build_object('any', v_branches);
    elsif v_expr ?| array['leases', 'service', 'lease'] then
      v_items := case
        when v_expr ? 'lease' then jsonb_build_array(jsonb_build_object('lease', v_expr -> 'lease'))
        when v_expr ? 'service'
          then jsonb_build_array(jsonb_build_object('service', v_expr -> 'service', 'tenants', '*'))
        when p_place = 'require' and not v_expr ? 'away' then p_together
        else jsonb_build_array(hwqueue.term_item(v_expr -> 'leases', v_expr -> 'tenants', p_class)) end;
      v_bound := hwqueue.add_term(
        case when p_place = 'prefer' then 'soft'
          when not v_expr ? 'away' then 'toward'
          when p_place = 'require' then 'away'
          else 'apart' end,
        v_items, v_expr ->> 'domain', p_class, p_terms);
      p_terms := v_bound.p_terms;
      v_expr := v_expr || jsonb_build_object('term', v_bound.index);
    end if;
    exprs := exprs || jsonb_build_array(v_expr);
  end loop;
end
$$;

-- Binds everything that a class asks about other leases: its requirements, preferences and spread then
-- carry the indexes of their terms. The services that its own service keeps away from become requirements.
create or replace function hwqueue.bind_terms(inout p_class hwqueue.placement_class)
language plpgsql immutable
as $$
declare
  v_required jsonb := coalesce(p_class.placement -> 'require', '[]') || array_to_json(array(
    select jsonb_build_object('service', s, 'away', true) from unnest(p_class.away_from) s))::jsonb;
  v_preferred jsonb := coalesce(p_class.placement -> 'prefer', '[]');
  v_spread jsonb := coalesce(p_class.placement -> 'spread', '[]');
  v_bound record;
  v_item jsonb;
  v_selection jsonb;
  v_nodes jsonb;  -- which nodes count for a max_skew (scope_exprs)
begin
  p_class.required := v_required;
  p_class.spread := '[]';
  p_class.terms := '[]';
  if v_spread = '[]' and not hwqueue.asks_others(jsonb_build_array(v_required, v_preferred)) then
    return;  -- most classes
  end if;
  v_bound := hwqueue.bind_exprs(v_required, 'require', (
    select coalesce(jsonb_agg(hwqueue.term_item(e.value -> 'leases', e.value -> 'tenants', p_class)
           order by e.ordinality), '[]')
    from jsonb_array_elements(v_required) with ordinality e
    where e.value ? 'leases' and not e.value ? 'away'), p_class, p_class.terms);
  p_class.required := v_bound.exprs;
  p_class.terms := v_bound.p_terms;
  p_class.preferred := '[]';
  for v_item in select p.value from jsonb_array_elements(v_preferred) with ordinality p
    order by p.ordinality loop
    v_bound := hwqueue.bind_exprs(v_item -> 'when', 'prefer', null, p_class, p_class.terms);
    p_class.terms := v_bound.p_terms;
    p_class.preferred := p_class.preferred
      || jsonb_build_object('weight', v_item -> 'weight', 'when', v_bound.exprs);
  end loop;
  for v_item in select s.value from jsonb_array_elements(v_spread) with ordinality s
    order by s.ordinality loop
    v_selection := jsonb_build_array(hwqueue.term_item(v_item -> 'select', null, p_class));
    v_nodes := null;
    if v_item ? 'max_skew' and not p_class.is_pinned and not v_item ? 'when'
      and v_item #>> '{count_nodes,taints}' is distinct from 'honor' then
      -- rack and labels decide which nodes count: those that meet its requirements on nodes, and have a
      -- value in the domain of every required max_skew
      select case when r.exprs = '[]' then '{}' else jsonb_build_object('require', r.exprs) end
        || case when d.domains = '[]' then '{}' else jsonb_build_object('domains', d.domains) end into v_nodes
      from (
        select coalesce(jsonb_agg(e.value - array['during', 'grace'] order by e.ordinality), '[]') as exprs
        from jsonb_array_elements(p_class.placement -> 'require') with ordinality e
        where v_item #>> '{count_nodes,affinity}' is distinct from 'ignore'
          and not e.value ?| array['leases', 'service', 'lease']
      ) r, (
        select coalesce(jsonb_agg(distinct s.value -> 'domain'), '[]') as domains
        from jsonb_array_elements(v_spread) s
        where s.value ? 'max_skew' and not s.value ? 'when'
          and s.value ->> 'domain' not in ('node', v_item ->> 'domain')
      ) d;
    end if;
    v_bound := hwqueue.add_term(
      case when v_item ? 'max_per_domain' then 'cap'
        when v_item ? 'max_skew' and not v_item ? 'when' then 'skew'
        else 'soft' end,
      v_selection, v_item ->> 'domain', p_class, p_class.terms, v_nodes);
    p_class.terms := v_bound.p_terms;
    v_item := v_item || jsonb_build_object('term', v_bound.index);
    if v_item ? 'max_skew' and v_nodes is null then  -- whether a node counts is judged node by node
      v_bound := hwqueue.add_term('tally', v_selection, 'node', p_class, p_class.terms);
      p_class.terms := v_bound.p_terms;
      v_item := v_item || jsonb_build_object('tally', v_bound.index);
    end if;
    p_class.spread := p_class.spread || jsonb_build_array(v_item);
  end loop;
end
$$;

-- Returns the expressions that a node in a scope {"require": [EXPR, ...], "domains": [DOMAIN, ...]} meets: it
-- has a value in every domain.
create or replace function hwqueue.scope_exprs(p_nodes jsonb) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return
  coalesce(p_nodes -> 'require', '[]') || array_to_json(array(
    select jsonb_build_object('domain', d) from jsonb_array_elements(p_nodes -> 'domains') d))::jsonb;
end $$;

-- Returns the place in which a term counts what runs on a node. Null when the term does not count it:
-- the node has no value there, or is outside the term's nodes.
create or replace function hwqueue.term_place(p_spec jsonb, p_domain text, p_node uuid, p_rack bigint,
  p_labels jsonb) returns text
language sql immutable parallel safe
as $$
  select case when not p_spec ? 'nodes'
      or hwqueue.expr_reason(hwqueue.scope_exprs(p_spec -> 'nodes'), p_labels, p_rack, null, '{}', null)
        is null
    then hwqueue.domain_value(p_domain, p_node, p_rack, p_labels) end
$$;

-- Returns the domain of a term. A service's term without a domain uses the service's failure domain,
-- else that of the lease's queue.
create or replace function hwqueue.term_domain(p_spec jsonb) returns text
language plpgsql stable
as $$ begin return
  case when p_spec ->> 'domain' <> 'failure' then p_spec ->> 'domain' else 'own:' || coalesce(
    (select s.failure_domain from hwqueue.service s
     where s.service_id = (p_spec #>> '{all,0,service}')::uuid),
    (select q.failure_domain from hwqueue.queue q where q.queue_id = (p_spec ->> 'queue')::int), 'rack') end;
end $$;

-- Returns the item of a class's selector: {"same": ...} is resolved, and tenants are the class's own
-- unless the selector names others.
-- Raises: QHC03 for the same service in a lease without one.
create or replace function hwqueue.term_item(p_selector jsonb, p_tenants jsonb,
  p_class hwqueue.placement_class) returns jsonb
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
      jsonb_build_object('field', 'options.service_id'),
      'give the lease a service_id, or select by labels or the same task');
  end if;
  return jsonb_build_object('service', p_class.service_id, 'tenants', v_tenants);
end
$$;

-- Adds a term to those of a class, unless it is there, and returns its index.
create or replace function hwqueue.add_term(p_use text, p_items jsonb, p_domain text,
  p_class hwqueue.placement_class, inout p_terms jsonb, p_nodes jsonb default null, out index int)
language plpgsql immutable
as $$
declare
  v_spec jsonb := jsonb_build_object('use', p_use, 'all', p_items, 'domain', coalesce(p_domain, 'failure'))
    || case when p_domain is null then jsonb_build_object('queue', p_class.queue_id) else '{}' end
    || hwqueue.present('nodes', nullif(p_nodes, '{}'));
begin
  select (t.ordinality - 1)::int into index from jsonb_array_elements(p_terms) with ordinality t
  where t.value -> 'spec' = v_spec;
  if not found then
    index := jsonb_array_length(p_terms);
    p_terms := p_terms || jsonb_build_object('spec', v_spec, 'self', hwqueue.term_selects(v_spec, p_class),
      'digest',
      ('x' || substr(encode(sha256(convert_to(v_spec::text, 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint);
  end if;
end
$$;

-- Whether a term selects the leases of a class. A term on one lease selects the class made for that lease
-- (target). Where other leases share the class, the claim tells them apart. A class that hides a key of the
-- term is none of it: its leases are moved to others before the term is published (constraints/labels).
create or replace function hwqueue.term_selects(p_spec jsonb, p_class hwqueue.placement_class) returns boolean
language plpgsql immutable
as $$
declare
  v_item jsonb;
begin
  for v_item in select i.value from jsonb_array_elements(p_spec -> 'all') i loop
    if not (case
      when v_item ? 'lease' then coalesce(v_item ->> 'lease' = p_class.target::text, false)
      when jsonb_typeof(v_item -> 'tenants') = 'array' and not v_item -> 'tenants' ? p_class.tenant then false
      when v_item ? 'service' then coalesce(v_item ->> 'service' = p_class.service_id::text, false)
      when v_item ? 'task' then v_item ->> 'task' = p_class.task_name
        and (v_item ->> 'queue')::int = p_class.queue_id
      else not exists (
        select 1 from jsonb_array_elements(v_item -> 'exprs') e
        where p_class.labels -> (e.value ->> 'label') = 'null' or not hwqueue.label_holds(
          e.value ->> 'op', p_class.labels -> (e.value ->> 'label'), e.value -> 'values'))
      end) then
      return false;
    end if;
  end loop;
  return true;
end
$$;

-- Returns the anchors of a term: one thing that every lease which it selects has, or '*'. By them new classes
-- find the terms that select them, and new terms classes, without reading all. And the keys that it names, by
-- which spawns find that these are shown.
create or replace function hwqueue.term_anchors(p_spec jsonb) returns text[]
language plpgsql immutable
as $$ begin return
  coalesce(
    (select array['lease:' || (i.value ->> 'lease')]
     from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'lease' limit 1),
    (select array['service:' || (i.value ->> 'service')]
     from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'service' limit 1),
    (select array['task:' || (i.value ->> 'task')]
     from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'task' limit 1),
    (select array(
       select 'label:' || (e.value ->> 'label') || '=' || left(v.value, 200)
       from jsonb_array_elements_text(e.value -> 'values') v)
     from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
     where e.value ->> 'op' = 'in' order by jsonb_array_length(e.value -> 'values') limit 1),
    array['*'])
  || array(
    select distinct hwqueue.key_anchor(t.value #>> '{}', e.value ->> 'label')
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
    cross join jsonb_array_elements(
      case when i.value -> 'tenants' = '"*"' then '[null]' else i.value -> 'tenants' end) t);
end $$;

-- The anchor of a term by which spawns find that it names a key for a tenant; null: for all.
create or replace function hwqueue.key_anchor(p_tenant text, p_key text) returns text
language sql stable  -- as jsonb_build_array is: an immutable one would not be inlined
as $$ select 'key:' || jsonb_build_array(p_tenant, p_key)::text $$;

-- Returns the anchors of terms that a class looks up.
create or replace function hwqueue.selected_anchors(p_class hwqueue.placement_class) returns text[]
language plpgsql immutable
as $$ begin return
  array['*', 'task:' || p_class.task_name]
    || case when p_class.service_id is null then '{}' else array['service:' || p_class.service_id] end
    || case when p_class.target is null then '{}' else array['lease:' || p_class.target] end
    || array(select 'label:' || l.key || '=' || left(l.value, 200) from jsonb_each_text(p_class.labels) l
             where l.value is not null);
end $$;
