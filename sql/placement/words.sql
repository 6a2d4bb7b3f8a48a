-- Expressions of a placement in words for people: "zone in a or b", "with lease 0195... in the same rack".
--
-- The text comes from users, so it is cut short; who prints it removes control characters (requirement_text
-- does). Every word for an expression is chosen here, so that all answers name it alike.

-- Says one normal expression of any kind; nodes by their names.
create or replace function hwqueue.expr_words(p_expr jsonb) returns text
language plpgsql stable
as $$
begin
  if p_expr ? 'label' then
    return hwqueue.label_words(p_expr);
  elsif p_expr ? 'tags' then
    return case when p_expr -> 'tags' = '{}' then 'any node'
      else 'labels contain ' || left((p_expr -> 'tags')::text, 100) end;
  elsif p_expr ? 'any' then
    return (
      select string_agg('(' || hwqueue.exprs_words(b.value, ' and ') || ')', ' or ' order by b.ordinality)
      from jsonb_array_elements(p_expr -> 'any') with ordinality b where b.ordinality <= 4);
  elsif p_expr ? 'trust' then
    return 'trusted for ' || left(p_expr ->> 'trust', 100);
  elsif p_expr ?| array['lease', 'service', 'leases'] then
    return format('%s %s %s', case when p_expr ? 'away' then 'away from' else 'with' end,
      case when p_expr ? 'lease' then 'lease ' || (p_expr ->> 'lease')
           when p_expr ? 'service' then 'service ' || (p_expr ->> 'service')
           else hwqueue.selector_words(p_expr -> 'leases', p_expr -> 'tenants') end,
      hwqueue.domain_words(p_expr ->> 'domain'));
  elsif p_expr ? 'domain' then
    return 'a ' || case when p_expr ->> 'domain' = 'rack' then 'rack'
      else 'label ' || left(substr(p_expr ->> 'domain', 7), 60) end;
  end if;
  return case when p_expr ? 'away' then 'not ' else '' end || case
    when p_expr ? 'rack' then 'in rack ' || hwqueue.list_words(p_expr -> 'rack')
    when p_expr ? 'resource' then 'with device ' || hwqueue.list_words(p_expr -> 'resource')
    else 'on node ' || hwqueue.list_words((
      select jsonb_agg(coalesce(to_jsonb(n.name), t.value) order by t.ordinality)
      from jsonb_array_elements(p_expr -> 'node') with ordinality t
      left join hwqueue.node n on n.node_id = (t.value #>> '{}')::uuid)) end;
end
$$;

-- Says a list of expressions.
create or replace function hwqueue.exprs_words(p_exprs jsonb, p_between text) returns text
language plpgsql stable
as $$ begin return (
  select string_agg(hwqueue.expr_words(e.value), p_between order by e.ordinality)
  from jsonb_array_elements(p_exprs) with ordinality e where e.ordinality <= 10
); end $$;

-- Says one {"label", "op", ...}.
create or replace function hwqueue.label_words(p_expr jsonb) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select case p_expr ->> 'op'
    when 'exists' then 'has ' || l.label
    when 'does_not_exist' then 'has no ' || l.label
    else format('%s %s %s', l.label, case p_expr ->> 'op'
        when 'not_in' then 'not in' when 'gt' then '>' when 'gte' then '>=' when 'lt' then '<' when 'lte'
          then '<='
        when 'regexp' then 'matches' when 'contains_all' then 'contains' when 'contains_any' then 'contains'
          else p_expr ->> 'op' end,
      case when p_expr ? 'other_label' then 'label ' || left(p_expr ->> 'other_label', 60)
           else hwqueue.list_words(p_expr -> 'values', case p_expr ->> 'op' when 'contains_all' then 'and'
               else 'or' end) end) end
  from (select left(p_expr ->> 'label', 60) as label) l
); end $$;

-- Says that a label's value is of another type than an expression asks for, where a reader may not see it:
-- 'the number 12.1, and the lease asks for the text "12.10"'; null: it is not. Text that reads as a number is
-- one for gt and its like.
create or replace function hwqueue.type_words(p_expr jsonb, p_value jsonb) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select format('the %s %s, and the lease asks for the %s %s', t.has, left(p_value::text, 100), t.asked,
    left(trim(p_expr ->> 'values', '[]'), 100))
  from (select replace(jsonb_typeof(p_value), 'string', 'text') as has, case
      when p_expr ->> 'op' in ('version', 'semver', 'regexp') then 'text'
      when p_expr ->> 'op' ~ '^[gl]te?$' and hwqueue.label_number(p_value) is null then 'number'
      when p_expr ->> 'op' = 'in' then replace(jsonb_typeof(p_expr #> '{values,0}'), 'string', 'text')
      end as asked) t
  where t.has in ('text', 'number', 'boolean') and t.has <> t.asked
); end $$;

-- Says which leases a selector selects.
create or replace function hwqueue.selector_words(p_selector jsonb, p_tenants jsonb) returns text
language plpgsql immutable parallel safe
as $$ begin return
  case
      when p_selector ? 'same' then 'leases of the same ' || (p_selector ->> 'same')
      when p_selector -> 'exprs' = '[]' then 'any lease'
      else 'leases with ' || (
        select string_agg(hwqueue.label_words(e.value), ' and ' order by e.ordinality)
        from jsonb_array_elements(p_selector -> 'exprs') with ordinality e) end
    || case when p_tenants is null then ''
            when p_tenants = '"*"' then ' of any tenant'
            else ' of tenant ' || hwqueue.list_words(p_tenants) end;
end $$;

-- Says where two things are together: "on the same node", "in the same rack", "in the same zone". Null:
-- a service's failure domain.
create or replace function hwqueue.domain_words(p_domain text) returns text
language sql immutable parallel safe
as $$
  select case when p_domain is null or p_domain = 'failure' then 'in the same failure domain'
              when p_domain in ('node', 'own:node') then 'on the same node'
              when p_domain = 'fleet' then 'in the whole fleet'
              else 'in the same ' || left(regexp_replace(p_domain, '^(own:)?(label:)?', ''), 60) end
$$;

-- Returns up to three values of a list, the rest as a number: "a, b or c", "a, b, c or 4 more".
create or replace function hwqueue.list_words(p_values jsonb, p_or text default 'or') returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select case when count(*) = 1 then max(v.word)
    else string_agg(v.word, ', ' order by v.ordinality) filter (where v.ordinality < least(v.total, 4))
      || ' ' || p_or || ' ' || case when max(v.total) > 4 then max(v.total) - 3 || ' more'
        else max(v.word) filter (where v.ordinality = v.total) end
    end
  from (
    select case when length(e.value #>> '{}') > 60 then left(e.value #>> '{}', 57) || '...'
           else coalesce(e.value #>> '{}', 'null') end as word,
           e.ordinality, count(*) over () as total
    from jsonb_array_elements(p_values) with ordinality e
  ) v
); end $$;

-- Says one requirement in a line of at most 300 characters.
create or replace function hwqueue.requirement_text(p_expr jsonb) returns text
language sql stable
as $$ select regexp_replace(left(hwqueue.expr_words(p_expr), 300), '[[:cntrl:]]+', ' ', 'g') $$;

-- Returns amounts of resources: "2 GPU", "0.5 GPU", "4 CPU", "8 GiB", "1 license".
create or replace function hwqueue.resource_words(p_resources jsonb) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select string_agg(case r.key
      when 'gpu' then r.value || ' GPU'
      when 'gpu_milli' then trim_scale(r.value::numeric / 1000) || ' GPU'
      when 'cpu_milli' then trim_scale(r.value::numeric / 1000) || ' CPU'
      when 'memory_mib' then case when r.value::numeric >= 1024
        then trim_scale(round(r.value::numeric / 1024, 1)) || ' GiB' else r.value || ' MiB' end
      else r.value || ' ' || r.key end, ', ' order by strpos('gpu gpu_milli cpu_milli memory_mib', r.key) = 0,
      strpos('gpu gpu_milli cpu_milli memory_mib', r.key), r.key)
  from jsonb_each_text(p_resources) r
); end $$;

-- Says one rule of a spread; a preference says that it is one.
create or replace function hwqueue.spread_words(p_spread jsonb) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select case
    when p_spread ? 'max_per_domain' then format('at most %s of %s %s', p_spread ->> 'max_per_domain',
        s.leases, d.place)
    when p_spread ? 'targets' then format('prefers shares of %s by %s', s.leases, d.domain)
    else format('%s %s within %s over %s', case when p_spread ? 'when' then 'prefers' else 'spreads' end,
        s.leases,
                p_spread ->> 'max_skew', d.domain) end
  from (select hwqueue.selector_words(p_spread -> 'select', null) as leases) s,
       (select hwqueue.domain_words(p_spread ->> 'domain') as place,
               left(regexp_replace(p_spread ->> 'domain', '^label:', ''), 60) as domain) d
); end $$;

-- Says what a placement class asks, in one line of at most 500 characters: "gpu_model in A100, 2 GPU,
-- away from service ... in the same rack"; "any node" when it asks nothing. plan_cache_mode = auto:
-- callers set force_custom_plan, which would plan the statements inside again for each of hundreds of
-- classes.
create or replace function hwqueue.class_words(p_class hwqueue.placement_class) returns text
language plpgsql stable set plan_cache_mode = auto
as $$ begin return (
  select case when length(w.words) > 500 then left(w.words, 497) || '...' else w.words end
  from (
    select regexp_replace(coalesce(nullif(concat_ws(', ', hwqueue.exprs_words(p_class.required, ', '),
      hwqueue.resource_words(p_class.placement -> 'resources'),
      'CPU ' || p_class.cpu_isolation, 'GPU ' || p_class.gpu_exclusivity,
      (select string_agg(hwqueue.spread_words(s.value), ', ' order by s.ordinality)
       from jsonb_array_elements(p_class.spread) with ordinality s where s.ordinality <= 5),
      (select string_agg('prefers ' || case when (p.value ->> 'weight')::int < 0 then 'not ' else '' end
                         || coalesce(hwqueue.exprs_words(p.value -> 'when', ' and '),
                             'any node'), ', ' order by p.ordinality)
       from jsonb_array_elements(p_class.preferred) with ordinality p where p.ordinality <= 5),
      'with strength ' || (p_class.placement ->> 'strength') || ' of 100',
      'tolerates ' || (
        select string_agg(coalesce(t.value ->> 'key', 'everything') || coalesce('=' || (t.value ->> 'value'),
               '')
                          || coalesce(':' || (t.value ->> 'effect'), ''), ' and ' order by t.ordinality)
        from jsonb_array_elements(p_class.tolerate) with ordinality t where t.ordinality <= 5)), ''),
          'any node'),
      '[[:cntrl:]]+', ' ', 'g') as words offset 0  -- a fence, or they would be written twice
  ) w
); end $$;
