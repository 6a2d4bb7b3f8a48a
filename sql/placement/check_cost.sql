-- The limits of a placement (placement_limits), held wherever one enters: spawns, updates, dry runs.

-- Refuses patterns by their number and their size, before any is compiled. The placement need not be normal.
-- Raises: QHC03.
create or replace function hwqueue.check_patterns(p_placement jsonb, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_limits record := hwqueue.placement_limits();
  v_patterns jsonb := hwqueue.patterns_within(p_placement);
  v_size int;
begin
  if v_patterns = '[]' then
    return;
  end if;
  if jsonb_array_length(v_patterns) > v_limits.patterns then
    perform hwqueue.refuse('QHC03',
      format('%s has %s regexp, version and semver expressions', p_field, jsonb_array_length(v_patterns)),
      jsonb_build_object('field', p_field, 'patterns', jsonb_array_length(v_patterns), 'limit', v_limits.patterns),
      format('the limit is %s: they cost every node; ask for equal labels where that is enough', v_limits.patterns));
  end if;
  v_size := (select sum(hwqueue.pattern_size(e.value)) from jsonb_array_elements(v_patterns) e);
  if v_size > v_limits.pattern_chars then
    perform hwqueue.refuse('QHC03',
      format('%s has regexp, version and semver expressions of %s characters with their bounds written out', p_field, v_size),
      jsonb_build_object('field', p_field, 'pattern_chars', v_size, 'limit', v_limits.pattern_chars),
      format('the limit is %s in all: shorten them, or ask for equal labels where that is enough', v_limits.pattern_chars));
  end if;
end
$$;

-- Whether expressions ask about other leases.
create or replace function hwqueue.asks_others(p_exprs jsonb) returns boolean
language sql immutable parallel safe
as $$ select jsonb_path_exists(p_exprs, 'strict $.** ? (exists(@.leases) || exists(@.service) || exists(@.lease))', '{}', true) $$;

-- The characters that the patterns of some expressions have in all, bounds written out.
create or replace function hwqueue.pattern_chars(p_exprs jsonb) returns int
language sql immutable
as $$ select coalesce(sum(hwqueue.pattern_size(e.value)), 0)::int from jsonb_array_elements(hwqueue.patterns_within(p_exprs)) e $$;

-- The part of a normal placement in which every claim would judge large patterns again; null: none. Those are:
-- prefer, where it asks about other leases or a spread is preferred; an any in require that asks about other
-- leases; require, where max_skew counts the nodes that it allows.
create or replace function hwqueue.repeated_pattern(p_placement jsonb) returns text
language sql immutable
as $$
  select case
    when hwqueue.pattern_chars(p_placement) <= l.repeated_chars then null
    when hwqueue.pattern_chars(p_placement -> 'prefer') > l.repeated_chars
         and (hwqueue.asks_others(p_placement -> 'prefer')
              or jsonb_path_exists(p_placement, 'strict $.spread[*] ? (exists(@.targets) || @.when == "prefer")', '{}', true)) then 'prefer'
    when (select sum(hwqueue.pattern_chars(e.value)) from jsonb_array_elements(coalesce(p_placement -> 'require', '[]')) e
          where e.value ? 'any' and hwqueue.asks_others(e.value)) > l.repeated_chars then 'require'
    when hwqueue.pattern_chars(p_placement -> 'require') > l.repeated_chars
         and jsonb_path_exists(p_placement, 'lax $.spread[*] ? (exists(@.max_skew) && !(@.count_nodes.affinity == "ignore"))')
      then 'require' end
  from hwqueue.placement_limits() l
$$;

-- Refuses a normal placement that would cost too much: patterns, expressions in all, and large patterns where
-- claims would judge them again and again, because other leases decide about the same part. Raises: QHC03.
create or replace function hwqueue.check_cost(p_placement jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_limits record := hwqueue.placement_limits();
  v_count int;
  v_bad text;
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
  v_bad := hwqueue.repeated_pattern(p_placement);
  if v_bad is not null then
    perform hwqueue.refuse('QHC03',
      format('%s.%s has regexp, version or semver expressions of more than %s characters beside what it asks about other leases',
        p_field, v_bad, v_limits.repeated_chars),
      jsonb_build_object('field', p_field || '.' || v_bad, 'limit', v_limits.repeated_chars),
      'shorten them, or put them into require, outside of any: there they are judged once for all nodes that are alike');
  end if;
  return p_placement;
end
$$;
