-- Task defaults: spawn options that the leases of a task have, unless the spawn has others.
--
-- Example: task train has the defaults {"placement": {"resources": {"gpu": 1}}, "max_attempts": 1}. A
-- spawn of train with the options {"max_attempts": 3} asks for a GPU and has three attempts.
--
-- set_task calls check_defaults, so that a bad default is refused there and not at each spawn. Dry runs
-- call default_placement. Spawns add defaults to their options with with_defaults (spawn/read), and write
-- what they got into the lease and its class. Claims never read defaults. compare_tasks compares
-- normal_defaults, sync_tasks their digests.
--
-- Read check_defaults first.

-- Returns the options that a task may have defaults for: what makes sense for all its leases.
create or replace function hwqueue.default_options() returns text[]
language sql immutable parallel safe
as $$
  select array['placement', 'affinity_tags', 'labels', 'patience', 'priority', 'max_attempts', 'retry',
    'claim_timeout', 'max_run']
$$;

-- Returns the defaults of a task without those that are null. It refuses what a spawn would refuse.
-- Raises: QHA01, QHC03, QHC04, naming the field.
create or replace function hwqueue.check_defaults(p_task text, p_defaults jsonb) returns jsonb
language plpgsql stable
as $$
declare
  v_defaults jsonb := (
    select coalesce(jsonb_object_agg(d.key, d.value) filter (where d.value <> 'null'), '{}')
    from jsonb_each(hwqueue.check_object(p_defaults, hwqueue.default_options(), 'defaults')) d);
begin
  perform hwqueue.check_payload(v_defaults, 'defaults', 65536),
    hwqueue.json_integer(v_defaults -> 'priority', 'defaults.priority', -32768, 32767),
    hwqueue.json_integer(v_defaults -> 'max_attempts', 'defaults.max_attempts', 1, 1000),
    hwqueue.normalise_retry(v_defaults -> 'retry', 'defaults.retry'),
    hwqueue.json_short_interval(v_defaults -> 'claim_timeout', 'defaults.claim_timeout', '1 second',
      '30 days');
  -- the class that such leases would have
  perform hwqueue.draft_class(
    row(null, p_task, '', null, hwqueue.check_labels(v_defaults -> 'labels', 'defaults.labels'),
      hwqueue.spawn_placement(v_defaults, 'defaults'),
      hwqueue.json_interval(v_defaults -> 'patience', 'defaults.patience'), null,
      hwqueue.read_max_run(v_defaults, 'defaults'), false),
    '{}');
  return v_defaults;
end
$$;

-- Returns the placement of a dry run in normal form: the one given, null for what the task's defaults ask.
-- A given one is all that is asked, so that a lease that exists can be asked about.
-- Raises: QHC03, QHC04.
create or replace function hwqueue.default_placement(p_placement jsonb, p_defaults jsonb) returns jsonb
language sql stable
as $$
  select case when p_defaults is null or nullif(p_placement, 'null') is not null
    then hwqueue.normalise_placement(p_placement, 'placement')
    else hwqueue.spawn_placement(p_defaults, 'defaults') end
$$;

-- Returns defaults in normal form, so that equal ones are the same JSON: 300 and "5 min" are one
-- patience.
-- Raises: QHA01, QHC03, QHC04, naming the field.
create or replace function hwqueue.normal_defaults(p_defaults jsonb, p_field text) returns jsonb
language sql stable
as $$
  select coalesce(jsonb_object_agg(d.key, case
      when d.key = 'placement' then hwqueue.normalise_placement(d.value, f.field)
      when d.key = 'retry' then hwqueue.normalise_retry(d.value, f.field)
      when d.key in ('patience', 'claim_timeout', 'max_run')
        then to_jsonb(extract(epoch from hwqueue.json_interval(d.value, f.field)))
      else d.value end), '{}')
  from jsonb_each(hwqueue.check_object(p_defaults, hwqueue.default_options(), p_field)) d
  cross join lateral (select p_field || '.' || d.key as field) f
  where d.value <> 'null'
$$;

-- Returns what tells defaults apart: equal ones in any form have the same digest.
create or replace function hwqueue.defaults_digest(p_defaults jsonb) returns bytea
language sql stable
as $$
  select sha256(convert_to(hwqueue.normal_value(hwqueue.normal_defaults(p_defaults, ''))::text, 'UTF8'))
$$;
