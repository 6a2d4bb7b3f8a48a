-- What it costs to judge a placement, and how much of it is allowed. Judging happens inside claims and upkeep
-- of everybody, so what one producer may ask is bounded; the limits are in docs/reference/placement.md.

-- The limits of a placement. patterns: its regexp, version and semver expressions. pattern_chars: what these
-- have in all, the bounds of regexps written out. repeated_chars: the same, where every claim judges them
-- again (repeated_pattern). exprs: its expressions in all, those of selectors and inside any included.
create or replace function hwqueue.placement_limits(out patterns int, out pattern_chars int, out repeated_chars int, out exprs int)
language sql immutable parallel safe
as $$ select 8, 500, 60, 200 $$;

-- The expressions of a placement, wherever they are, as one list.
create or replace function hwqueue.exprs_within(p_placement jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select jsonb_path_query_array(p_placement, 'strict $.** ? (exists(@.label) || exists(@.tags) || exists(@.node) || exists(@.rack)
    || exists(@.resource) || exists(@.trust) || exists(@.lease) || exists(@.service) || exists(@.leases))', '{}', true)
$$;

-- The regexp, version and semver expressions among them. Comparisons of two labels are none: they hold no
-- pattern.
create or replace function hwqueue.patterns_within(p_placement jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select jsonb_path_query_array(p_placement,
    'strict $.** ? (exists(@.label) && exists(@.values) && (@.op == "regexp" || @.op == "version" || @.op == "semver"))', '{}', true)
$$;

-- What it costs at most to judge a node for a placement, in plain expressions: a character of a pattern costs
-- as much as three of them (most of it for compiling: Postgres keeps 32 compiled patterns). At least 1.
create or replace function hwqueue.placement_cost(p_placement jsonb) returns int
language sql immutable
as $$
  select case when p_placement - array['resources', 'isolation', 'tolerate'] = '{}' then 1 else (
    select greatest(1, jsonb_array_length(hwqueue.exprs_within(p_placement))
                       + 3 * coalesce(sum(hwqueue.pattern_size(e.value)), 0))::int
    from jsonb_array_elements(hwqueue.patterns_within(p_placement)) e) end
$$;

-- How much of that one batch of judging may cost; upkeep leaves classes that cost more alone. A batch has at
-- least one class, however much that costs: only classes that are older than the limits cost more than a
-- batch.
create or replace function hwqueue.judge_budget() returns int
language sql immutable parallel safe
as $$ select 5000 $$;
