-- Taints and tolerations, as Kubernetes has them. Both are in normal form; what a taint or toleration has no value for counts as "".

-- The integer that a taint's or toleration's value is, null if it is none (64 bits, no sign but a minus, no leading zeros).
create or replace function hwqueue.taint_integer(p_value text) returns numeric
language sql immutable parallel safe
as $$
  select case when p_value ~ '^(0|-?[1-9][0-9]{0,18})$' and p_value::numeric between -9223372036854775808 and 9223372036854775807
              then p_value::numeric end
$$;

-- Whether a toleration matches a taint: key and effect if it names them, then the value by its operator; gt and lt compare the
-- taint's value with that of the toleration.
create or replace function hwqueue.tolerates(p_toleration jsonb, p_taint jsonb) returns boolean
language sql immutable parallel safe
as $$
  select coalesce(p_toleration ->> 'effect' = p_taint ->> 'effect', true) and coalesce(p_toleration ->> 'key' = p_taint ->> 'key', true)
    and coalesce(case p_toleration ->> 'op'
      when 'exists' then true
      when 'equal' then coalesce(p_toleration ->> 'value', '') = coalesce(p_taint ->> 'value', '')
      when 'gt' then hwqueue.taint_integer(p_taint ->> 'value') > hwqueue.taint_integer(p_toleration ->> 'value')
      when 'lt' then hwqueue.taint_integer(p_taint ->> 'value') < hwqueue.taint_integer(p_toleration ->> 'value') end, false)
$$;

-- Of the taints with one of these effects, those that no toleration matches.
create or replace function hwqueue.untolerated(p_taints jsonb, p_tolerate jsonb, p_effects text[]) returns jsonb
language sql immutable parallel safe
as $$
  select coalesce(jsonb_agg(t.value order by t.ordinality), '[]')
  from jsonb_array_elements(p_taints) with ordinality t
  where t.value ->> 'effect' = any (p_effects)
    and not exists (select 1 from jsonb_array_elements(p_tolerate) l where hwqueue.tolerates(l.value, t.value))
$$;

-- The taints that keep leases of a class off a node.
create or replace function hwqueue.barring_taints(p_taints jsonb, p_tolerate jsonb) returns jsonb
language sql immutable parallel safe
as $$ select hwqueue.untolerated(p_taints, p_tolerate, array['no_schedule', 'no_execute']) $$;

-- A taint in words: key=value:effect.
create or replace function hwqueue.taint_text(p_taint jsonb) returns text
language sql immutable parallel safe
as $$ select (p_taint ->> 'key') || coalesce('=' || (p_taint ->> 'value'), '') || ':' || (p_taint ->> 'effect') $$;

-- When a lease that runs beside these taints has to stop, and for which of them (null: never). One that does not tolerate a no_execute
-- taint at once; one that tolerates it for some seconds when they are over, the fewest seconds if several tolerations match. The
-- time runs from when both were there.
create or replace function hwqueue.first_stop(p_taints jsonb, p_tolerate jsonb, p_claimed_at timestamptz, out stop_at timestamptz, out taint jsonb)
language sql stable parallel safe
as $$
  select greatest(p_claimed_at, (t.value ->> 'since')::timestamptz) + make_interval(secs => coalesce(m.seconds, 0)), t.value - 'since'
  from jsonb_array_elements(p_taints) t
  cross join lateral (
    select count(*) as tolerations, min((l.value ->> 'seconds')::bigint) as seconds
    from jsonb_array_elements(p_tolerate) l where hwqueue.tolerates(l.value, t.value)) m
  where t.value ->> 'effect' = 'no_execute' and (m.tolerations = 0 or m.seconds is not null)
  order by 1, 2 limit 1
$$;
