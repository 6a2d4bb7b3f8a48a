-- Task defaults: spawn options that the leases of a task have, unless the spawn has others.
--
-- A bad default is refused by set_task, not at each spawn. Spawns add defaults to their options
-- (with_defaults), and write what they got into the lease and its class: claims never read defaults.

-- Returns the defaults of a task without those that are null. It refuses what a spawn would refuse.
-- Raises: QHA01, QHC03, QHC04, naming the field.
create or replace function hwqueue.check_defaults(p_task text, p_defaults jsonb) returns jsonb
language plpgsql stable
as $$
declare
  v_read jsonb := hwqueue.read_object(p_defaults, 'task', 'defaults');
  v_defaults jsonb := hwqueue.without_nulls(p_defaults);
begin
  perform hwqueue.check_payload(v_defaults, 'defaults', 65536);
  -- the class that such leases would have
  perform hwqueue.draft_class(
    row(null, p_task, '', null, coalesce(v_read -> 'labels', '{}'),
      hwqueue.spawn_placement(v_defaults, 'defaults'), make_interval(secs => (v_read -> 'patience')::float8),
      null, make_interval(secs => (v_read -> 'max_run')::float8), false),
    '{}');
  return v_defaults;
end
$$;

-- Returns defaults in normal form, so that equal ones are the same JSON: 300 and "5 min" are one
-- patience.
-- Raises: QHA01, QHC03, QHC04, naming the field.
create or replace function hwqueue.normal_defaults(p_defaults jsonb, p_field text) returns jsonb
language sql stable
as $$
  select hwqueue.without_nulls(p_defaults) || hwqueue.read_object(p_defaults, 'task', p_field)
    || case when p_defaults -> 'placement' <> 'null' then jsonb_build_object('placement',
         hwqueue.normalise_placement(p_defaults -> 'placement', p_field || '.placement')) else '{}' end
$$;

-- Returns what tells defaults apart: equal ones in any form have the same digest.
create or replace function hwqueue.defaults_digest(p_defaults jsonb) returns bytea
language sql stable
as $$
  select sha256(convert_to(hwqueue.normal_value(hwqueue.normal_defaults(p_defaults, ''))::text, 'UTF8'))
$$;
