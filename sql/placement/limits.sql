-- Limits of a placement: contradictions, the cost of judging it, and regular expressions that could run
-- away.
-- Judging happens inside the claims and the upkeep of all tenants, so what one producer may ask is bounded
-- (docs/reference/placement.md). Postgres cannot time a regular expression out. So a pattern is read
-- (read_regexp) before it is compiled for the first time, and only patterns of bounded size are accepted.
-- Read placement_limits first, then check_patterns and check_cost, which refuse, then read_regexp.

-- Returns the requirements, unless no node whatever could meet them. It reads the ANDed list only: a branch
-- of an any that contradicts itself simply never holds.
-- Raises: QHC04.
create or replace function hwqueue.check_contradictions(p_required jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_kind text;
  v_why text;
begin
  if coalesce(jsonb_array_length(p_required), 0) < 2 then
    return p_required;
  end if;
  foreach v_kind in array array['node', 'rack', 'resource'] loop
    continue when not jsonb_path_exists(p_required, ('$[*].' || v_kind)::jsonpath);
    -- the intersection of all lists toward, less all targets away, must not be empty; a node has many
    -- resources, so there only the same resource toward and away collides
    with term as (
      select e.ordinality, t.value as target, coalesce((e.value -> 'away')::boolean, false) as away
      from jsonb_array_elements(p_required) with ordinality e, jsonb_array_elements(e.value -> v_kind) t
      where e.value ? v_kind
    ), toward as (
      select t.target, count(*) as lists from term t where not t.away group by t.target
    )
    select case when v_kind = 'resource' then
        (select format('toward and away from resource %s', t.target) from toward t
         where t.target in (select a.target from term a where a.away) limit 1)
      when exists (select 1 from toward) and not exists (
        select 1 from toward t
        where t.lists = (select count(distinct w.ordinality) from term w where not w.away)
          and t.target not in (select a.target from term a where a.away))
      then format('no %s is left that all terms allow', v_kind) end
    into v_why;
    exit when v_why is not null;
  end loop;
  if v_why is null then
    -- a label that is required to be two things at once
    with term as (
      select e.value ->> 'label' as label, e.value ->> 'op' as op, e.value -> 'values' as alternatives
      from jsonb_array_elements(p_required) e
      where e.value ? 'label' and not e.value ? 'other_label'
    )
    select coalesce(
      (select format('label %s must exist and must not', to_json(a.label))
       from term a join term b using (label)
       where a.op = 'does_not_exist' and b.op not in ('does_not_exist', 'not_in') limit 1),
      (select format('label %s has no value left', to_json(a.label)) from term a
       where a.op = 'in' and not exists (
         select 1 from jsonb_array_elements(a.alternatives) v
         where not exists (
           select 1 from term b where b.label = a.label
             and (b.op = 'in' and not b.alternatives @> jsonb_build_array(v.value)
                  or b.op = 'not_in' and b.alternatives @> jsonb_build_array(v.value)))) limit 1),
      (select format('label %s must be above %s and below %s', to_json(a.label), a.alternatives -> 0,
         b.alternatives -> 0)
       from term a join term b using (label)
       where a.op in ('gt', 'gte') and b.op in ('lt', 'lte')
         and ((a.alternatives ->> 0)::numeric > (b.alternatives ->> 0)::numeric
              or (a.alternatives ->> 0)::numeric = (b.alternatives ->> 0)::numeric
              and not (a.op = 'gte' and b.op = 'lte')) limit 1)) into v_why;
  end if;
  if v_why is null and jsonb_path_exists(p_required,
      '$[*] ? (exists(@.lease) || exists(@.service) || exists(@.leases))') then
    -- leases on one node share every domain, so toward by node contradicts away by any domain
    with term as (
      select e.value - array['domain', 'away', 'unknown', 'during', 'grace'] as target,
             e.value ->> 'domain' as domain,
             e.value ? 'away' as away
      from jsonb_array_elements(p_required) e
      where e.value ?| array['lease', 'service', 'leases']
    )
    select format('toward and away from %s', t.target) into v_why from term t join term a using (target)
    where not t.away and a.away and (t.domain = 'node' or t.domain is not distinct from a.domain) limit 1;
  end if;
  if v_why is not null then
    perform hwqueue.refuse_field('QHC04', p_field, format('contradicts itself: %s', v_why),
      'no node could ever meet all of it: drop one of the terms');
  end if;
  return p_required;
end
$$;

-- Refuses too many or too large patterns, before any is compiled. The placement need not be normal.
-- Raises: QHC03.
create or replace function hwqueue.check_patterns(p_placement jsonb, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_limits record := hwqueue.placement_limits();
  v_found record := hwqueue.count_patterns(p_placement);
begin
  if v_found.patterns > v_limits.patterns or v_found.chars > v_limits.pattern_chars then
    perform hwqueue.refuse('QHC03', format('%s has %s regexp, version and semver expressions of %s '
        'characters, with their bounds written out', p_field, v_found.patterns, v_found.chars),
      jsonb_build_object('field', p_field, 'patterns', v_found.patterns, 'pattern_chars', v_found.chars,
        'limit', case when v_found.patterns > v_limits.patterns then v_limits.patterns
          else v_limits.pattern_chars end),
      format('the limits are %s expressions and %s characters in all: they cost every node; shorten them, or '
        'ask for equal labels where that is enough', v_limits.patterns, v_limits.pattern_chars));
  end if;
end
$$;

-- Whether expressions ask about other leases.
create or replace function hwqueue.asks_others(p_exprs jsonb) returns boolean
language sql immutable parallel safe
as $$
  select jsonb_path_exists(p_exprs,
    'strict $.** ? (exists(@.leases) || exists(@.service) || exists(@.lease))', '{}', true)
$$;

-- Returns how many regexp, version and semver expressions a placement or expressions have, at any depth, and
-- how long those that are let in are in all, the bounds of regexps written out. A comparison of two labels
-- holds no pattern, and one that is refused (normalise_label_expr) counts for nothing.
create or replace function hwqueue.count_patterns(p_exprs jsonb, out patterns int, out chars int)
language plpgsql immutable
as $$ begin
  select count(*)::int, coalesce(sum(case when r.danger is null then greatest(r.size, length(p.pattern)) end)
    filter (where e.ordinality <= (hwqueue.placement_limits()).patterns), 0)::int
  into patterns, chars
  from jsonb_path_query(p_exprs,
    'strict $.** ? (exists(@.label) && exists(@.values) && (@.op == "regexp" || @.op == "version" || '
    '@.op == "semver"))', '{}', true) with ordinality e(value, ordinality)
  cross join lateral (select e.value #>> '{values,0}' as pattern) p
  cross join lateral hwqueue.read_regexp(case when e.value ->> 'op' = 'regexp'
    and e.ordinality <= (hwqueue.placement_limits()).patterns then p.pattern end) r;
end $$;

-- Returns a normal placement, unless it costs too much to judge: too many patterns or expressions, or
-- large patterns that every claim would judge again.
-- Raises: QHC03.
create or replace function hwqueue.check_cost(p_placement jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_limits record := hwqueue.placement_limits();
  v_count int;
  v_key text;
begin
  if p_placement - array['resources', 'isolation', 'tolerate'] = '{}' then
    return p_placement;
  end if;
  perform hwqueue.check_patterns(p_placement, p_field);
  v_count := jsonb_array_length(hwqueue.exprs_within(p_placement));
  if v_count > v_limits.exprs then
    perform hwqueue.refuse('QHC03', format('%s has %s expressions', p_field, v_count),
      jsonb_build_object('field', p_field, 'expressions', v_count, 'limit', v_limits.exprs),
      format('the limit is %s in all; give a label many values instead of many expressions', v_limits.exprs));
  end if;
  -- whose patterns are judged again: prefer, where it asks about other leases or a spread is preferred;
  -- require, where an any asks about other leases, or max_skew counts only the nodes that it allows
  v_key := case
    when (hwqueue.count_patterns(p_placement)).chars <= v_limits.repeated_chars then null
    when (hwqueue.count_patterns(p_placement -> 'prefer')).chars > v_limits.repeated_chars
      and (hwqueue.asks_others(p_placement -> 'prefer') or jsonb_path_exists(p_placement,
        'strict $.spread[*] ? (exists(@.targets) || @.when == "prefer")', '{}', true)) then 'prefer'
    when (select sum((hwqueue.count_patterns(e.value)).chars)
          from jsonb_array_elements(coalesce(p_placement -> 'require', '[]')) e
          where e.value ? 'any' and hwqueue.asks_others(e.value)) > v_limits.repeated_chars then 'require'
    when (hwqueue.count_patterns(p_placement -> 'require')).chars > v_limits.repeated_chars
      and jsonb_path_exists(p_placement,
        'lax $.spread[*] ? (exists(@.max_skew) && !(@.count_nodes.affinity == "ignore"))') then 'require' end;
  if v_key is not null then
    perform hwqueue.refuse('QHC03',
      format('%s.%s has regexp, version or semver expressions of more than %s characters beside what it '
             'asks about other leases',
        p_field, v_key, v_limits.repeated_chars),
      jsonb_build_object('field', p_field || '.' || v_key, 'limit', v_limits.repeated_chars),
      'shorten them, or put them into require, outside of any: there they are judged once for all nodes '
      'that are alike');
  end if;
  return p_placement;
end
$$;

-- The limits of a placement. patterns, pattern_chars: see count_patterns. repeated_chars: of those that every
-- claim judges again (check_cost). exprs: of all expressions, including those of selectors and inside any.
create or replace function hwqueue.placement_limits(out patterns int, out pattern_chars int,
  out repeated_chars int, out exprs int)
language plpgsql immutable parallel safe
as $$ begin patterns := 8; pattern_chars := 500; repeated_chars := 60; exprs := 200; end $$;

-- Returns all expressions of a placement, at any depth, as one list.
create or replace function hwqueue.exprs_within(p_placement jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select jsonb_path_query_array(p_placement,
    'strict $.** ? (exists(@.label) || exists(@.tags) || exists(@.node) || exists(@.rack)
    || exists(@.resource) || exists(@.trust) || exists(@.lease) || exists(@.service)
    || exists(@.leases))', '{}', true)
$$;

-- Returns the highest cost of judging a node for a placement, in plain expressions, at least 1. One character
-- of a pattern costs as much as three, most of it for compiling: Postgres caches 32 compiled patterns.
create or replace function hwqueue.placement_cost(p_placement jsonb) returns int
language sql immutable
as $$
  select case when p_placement - array['resources', 'isolation', 'tolerate'] = '{}' then 1
    else greatest(1, jsonb_array_length(hwqueue.exprs_within(p_placement))
      + 3 * (hwqueue.count_patterns(p_placement)).chars) end
$$;

-- How much one batch of judging may cost. Upkeep skips classes that cost more. A batch has at least one
-- class, whatever it costs.
create or replace function hwqueue.judge_budget() returns int
language sql immutable parallel safe
as $$ select 5000 $$;

-- Reads a pattern without compiling it. danger: why it is refused, or null. size: its length with every bound
-- written out, because a bound repeats the atom or group before it; of a refused one it means nothing.
create or replace function hwqueue.read_regexp(p_pattern text, out danger text, out size int)
language plpgsql immutable
as $$
declare
  v_position int := 1;
  v_char text;
  v_bound text[];
  v_repeats int;
  v_atom_size int := 0;  -- the size of the last atom or group
  v_has_bound boolean := false;
  v_atom_has_bound boolean := false;
  v_outer_sizes int[] := '{}'::int[];
  v_outer_bounds boolean[] := '{}'::boolean[];
begin
  size := 0;  -- of the group being read, bounds written out
  if length(p_pattern) > 200 then
    danger := 'longer than 200 characters';
  elsif p_pattern ~ '^[*][*][*]' then
    danger := 'a director (***)';
  end if;
  while danger is null and v_position <= length(p_pattern) loop
    v_char := substr(p_pattern, v_position, 1);
    v_atom_has_bound := v_atom_has_bound and v_char = '{';
    if v_char = E'\\' then
      if substr(p_pattern, v_position + 1, 1) ~ '[0-9]' then
        danger := 'a back-reference or octal escape';
      end if;
      v_atom_size := 1;
      v_position := v_position + 2;
    elsif v_char = '[' then
      v_atom_size := 1;
      -- its closing bracket comes not first, is not escaped, and belongs to no [: :], [. .] or [= =]
      v_position := v_position + length((regexp_match(substr(p_pattern, v_position),
        E'^\\[\\^?\\]?(?:\\\\.|\\[:[^:]*:\\]|\\[\\.[^.]*\\.\\]|\\[=[^=]*=\\]|[^]\\\\])*\\]'))[1]);
      if v_position is null then
        danger := 'a bracket that does not close';
      end if;
    elsif v_char = '(' then
      if substr(p_pattern, v_position + 1, 1) = '?' then
        danger := 'lookaround or another (? construct';
      end if;
      v_outer_sizes := v_outer_sizes || size;
      v_outer_bounds := v_outer_bounds || v_has_bound;
      size := 0;
      v_atom_size := 0;
      v_has_bound := false;
      v_position := v_position + 1;
      continue;
    elsif v_char = ')' and v_outer_sizes <> '{}' then
      v_atom_size := size;
      v_atom_has_bound := v_has_bound;
      size := v_outer_sizes[cardinality(v_outer_sizes)];
      v_has_bound := v_has_bound or v_outer_bounds[cardinality(v_outer_bounds)];
      v_outer_sizes := trim_array(v_outer_sizes, 1);
      v_outer_bounds := trim_array(v_outer_bounds, 1);
      v_position := v_position + 1;
    elsif v_char = '{' then
      v_bound := regexp_match(substr(p_pattern, v_position), '^([{]([0-9]{1,9})(?:(,)([0-9]{0,9}))?[}])');
      v_repeats := greatest(v_bound[2]::int, nullif(v_bound[4], '')::int)
        + case when v_bound[3] = ',' and v_bound[4] = '' then 1 else 0 end;
      if v_bound is null then
        danger := 'a { that is no bound';
      elsif v_repeats > 32 then
        danger := 'a bound above 32';
      elsif v_atom_has_bound then
        danger := 'a bound inside a bounded group';
      end if;
      v_atom_size := v_atom_size * greatest(v_repeats - 1, 0);
      v_has_bound := true;
      v_position := v_position + length(v_bound[1]);
    else
      v_atom_size := 1;
      v_position := v_position + 1;
    end if;
    size := size + v_atom_size;
    if size > 500 then
      danger := 'more than 500 characters with its bounds written out';
    end if;
  end loop;
end
$$;
