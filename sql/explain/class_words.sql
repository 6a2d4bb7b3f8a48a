-- What a placement class asks of a node, in words for people.

-- Amounts of resources: "2 GPU", "0.5 GPU", "4 CPU", "8 GiB", "1 license".
create or replace function hwqueue.resource_words(p_resources jsonb) returns text
language sql immutable parallel safe
as $$
  select string_agg(case r.key
      when 'gpu' then r.value || ' GPU'
      when 'gpu_milli' then trim_scale(r.value::numeric / 1000) || ' GPU'
      when 'cpu_milli' then trim_scale(r.value::numeric / 1000) || ' CPU'
      when 'memory_mib' then case when r.value::numeric >= 1024 then trim_scale(round(r.value::numeric / 1024, 1)) || ' GiB' else r.value || ' MiB' end
      else r.value || ' ' || r.key end, ', ' order by strpos('gpu gpu_milli cpu_milli memory_mib', r.key) = 0,
      strpos('gpu gpu_milli cpu_milli memory_mib', r.key), r.key)
  from jsonb_each_text(p_resources) r
$$;

-- One rule of a spread; a preference says so.
create or replace function hwqueue.spread_words(p_spread jsonb) returns text
language sql immutable parallel safe
as $$
  select case
    when p_spread ? 'max_per_domain' then format('at most %s of %s %s', p_spread ->> 'max_per_domain', s.leases, d.place)
    when p_spread ? 'targets' then format('prefers shares of %s by %s', s.leases, d.domain)
    else format('%s %s within %s over %s', case when p_spread ? 'when' then 'prefers' else 'spreads' end, s.leases,
                p_spread ->> 'max_skew', d.domain) end
  from (select hwqueue.selector_words(p_spread -> 'select', null) as leases) s,
       (select hwqueue.domain_words(p_spread ->> 'domain') as place,
               left(regexp_replace(p_spread ->> 'domain', '^label:', ''), 60) as domain) d
$$;

-- A placement class in one line of at most 500 characters: "gpu_model in A100, 2 GPU, away from service ...
-- in the same rack"; "any node" when it asks nothing. plan_cache_mode = auto: callers set force_custom_plan,
-- which would plan the statements inside again for each of hundreds of classes.
create or replace function hwqueue.class_words(p_class hwqueue.placement_class) returns text
language sql stable set plan_cache_mode = auto
as $$
  select case when length(w.words) > 500 then left(w.words, 497) || '...' else w.words end
  from (
    select regexp_replace(coalesce(nullif(concat_ws(', ',
      hwqueue.exprs_words(p_class.required, ', ', p_class.shard_id),
      hwqueue.resource_words(p_class.placement -> 'resources'),
      'CPU ' || p_class.cpu_isolation, 'GPU ' || p_class.gpu_exclusivity,
      (select string_agg(hwqueue.spread_words(s.value), ', ' order by s.ordinality)
       from jsonb_array_elements(p_class.spread) with ordinality s where s.ordinality <= 5),
      (select string_agg('prefers ' || case when (p.value ->> 'weight')::int < 0 then 'not ' else '' end
                         || coalesce(hwqueue.exprs_words(p.value -> 'when', ' and ', p_class.shard_id), 'any node'), ', ' order by p.ordinality)
       from jsonb_array_elements(p_class.preferred) with ordinality p where p.ordinality <= 5),
      'with strength ' || (p_class.placement ->> 'strength') || ' of 100',
      'tolerates ' || (
        select string_agg(coalesce(t.value ->> 'key', 'everything') || coalesce('=' || (t.value ->> 'value'), '')
                          || coalesce(':' || (t.value ->> 'effect'), ''), ' and ' order by t.ordinality)
        from jsonb_array_elements(p_class.tolerate) with ordinality t where t.ordinality <= 5)), ''), 'any node'),
      '[[:cntrl:]]+', ' ', 'g') as words offset 0  -- a fence, or they would be written twice
  ) w
$$;
