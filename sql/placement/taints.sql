-- Taints of nodes and tolerations of leases, with the meaning that they have in Kubernetes. Those with a key
-- tenant:NAME are different: set_node_tenants puts them there, any one admits that tenant, and no toleration
-- matches them.
-- Eligibility asks barring_taints, scores ask untolerated for prefer_no_schedule, and reap asks first_stop_at
-- which running leases have to stop. A missing value counts as "". Read tolerates first.

-- Reads one taint {"key", "value"?, "effect"} into normal form. An empty value is left out. Keys tenant:NAME
-- are refused.
-- Raises: QHA01, naming the field.
create or replace function hwqueue.parse_taint(p_taint jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_taint jsonb := hwqueue.check_object(p_taint, array['key', 'value', 'effect'], p_field);
begin
  v_taint := jsonb_strip_nulls(jsonb_build_object(
    'key', hwqueue.json_text(v_taint -> 'key', p_field || '.key', 253),
    'value', hwqueue.json_text(nullif(v_taint -> 'value', '""'), p_field || '.value', 253),
    'effect', hwqueue.taint_effect(v_taint -> 'effect', p_field || '.effect')));
  if not v_taint ?& array['key', 'effect'] then
    perform hwqueue.refuse('QHA01', format('%s needs a key and an effect', p_field),
      jsonb_build_object('field', p_field || case when v_taint ? 'key' then '.effect' else '.key' end),
      'a taint looks like {"key": "dedicated", "value": "film", "effect": "no_schedule"}');
  elsif starts_with(v_taint ->> 'key', 'tenant:') then
    perform hwqueue.refuse_field('QHA01', p_field || '.key', 'is kept for the tenants of a node',
      'operators say which these are: set_node_tenants');
  end if;
  return v_taint;
end
$$;

-- Reads the effect of a taint.
-- Raises: QHA01.
create or replace function hwqueue.taint_effect(p_effect jsonb, p_field text) returns text
language sql stable
as $$
  select hwqueue.json_choice(p_effect, p_field, array['no_schedule', 'prefer_no_schedule', 'no_execute'],
    p_hint => 'no_execute also asks what runs there to stop')
$$;

-- Returns taints with the time since which they apply. Taints that p_before already had keep their time.
create or replace function hwqueue.date_taints(p_taints jsonb, p_before jsonb, p_now timestamptz)
returns jsonb
language plpgsql stable
as $$ begin return (
  select coalesce(jsonb_agg(coalesce(
    (select b from jsonb_array_elements(p_before) b where b - 'since' = t.value),
    t.value || jsonb_build_object('since', p_now)) order by t.ordinality), '[]')
  from jsonb_array_elements(p_taints) with ordinality t
); end $$;

-- Returns distinct taints without their times.
create or replace function hwqueue.undated_taints(p_taints jsonb) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return
  hwqueue.normal_set((select jsonb_agg(t - 'since') from jsonb_array_elements(p_taints) t));
end $$;

-- Returns taints as a tenant meets them: without those of tenants if one names it, else with one
-- {"tenants", "effect"} for all of these.
create or replace function hwqueue.taints_for(p_taints jsonb, p_tenant text) returns jsonb
language plpgsql immutable parallel safe
as $$
declare
  v_tenants jsonb := jsonb_path_query_array(p_taints, '$[*] ? (@.key starts with "tenant:")');
begin
  if v_tenants = '[]' then
    return p_taints;
  end if;
  return jsonb_path_query_array(p_taints, '$[*] ? (!(@.key starts with "tenant:"))')
    || case when v_tenants @> jsonb_build_array(jsonb_build_object('key', 'tenant:' || p_tenant)) then '[]'
      else jsonb_build_array((v_tenants -> 0) - 'key' || jsonb_build_object('tenants', (
        select jsonb_agg(substr(t ->> 'key', 8) order by t ->> 'key')
        from jsonb_array_elements(v_tenants) t))) end;
end
$$;

-- Returns all taints of a node, its own and those of operators. Without a subquery: the planner inlines it.
create or replace function hwqueue.node_taints(p_node hwqueue.node) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_node.taints = '[]' and p_node.operator_taints = '[]' then '[]'
    else hwqueue.undated_taints(p_node.taints || p_node.operator_taints) end
$$;

-- Whether a node has a no_execute taint, which asks running leases to stop.
create or replace function hwqueue.has_no_execute(p_node hwqueue.node) returns boolean
language sql immutable parallel safe
as $$ select p_node.taints || p_node.operator_taints @> '[{"effect": "no_execute"}]' $$;

-- Returns one {"key", "op", "value", "effect", "seconds"}. The defaults are any key (with op exists), op
-- equal, value "", any effect, for ever. gt and lt compare with an integer that is written as text.
-- Raises: QHC03.
create or replace function hwqueue.normalise_toleration(p_toleration jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_read jsonb := hwqueue.read_object(p_toleration, 'toleration', p_field, 'QHC03');
  v_op text := coalesce(v_read ->> 'op', 'equal');
  v_value jsonb := nullif(p_toleration -> 'value', 'null');
begin
  if not v_read ? 'key' and v_op <> 'exists' then
    perform hwqueue.refuse('QHC03', format('%s: op %s needs a key', p_field, v_op),
      jsonb_build_object('field', p_field || '.key'),
      'name the key of the taint; only op "exists" without a key tolerates every one');
  elsif v_read ? 'seconds' and v_read ->> 'effect' is distinct from 'no_execute' then
    perform hwqueue.refuse_field('QHC03', p_field || '.seconds', 'goes with effect no_execute only',
      'it is how long the lease may go on running beside such a taint');
  elsif v_op = 'exists' and v_value is not null then
    perform hwqueue.refuse('QHC03', format('%s: op exists takes no value', p_field),
      jsonb_build_object('field', p_field || '.value'), 'drop it');
  elsif v_op = 'equal' and v_value is not null and not hwqueue.is_label_text(v_value) then
    perform hwqueue.refuse_field('QHC03', p_field || '.value', 'must be text of at most 1024 characters',
      'values of taints are text: write "1", not 1');
  elsif v_op in ('gt', 'lt') then
    if jsonb_typeof(v_value) = 'string' and v_value #>> '{}' ~ '^-?[0-9]{1,19}$' then
      v_value := to_jsonb((v_value #>> '{}')::numeric);
    end if;
    v_value := to_jsonb(hwqueue.json_integer(coalesce(v_value, '""'), p_field || '.value',
      -9223372036854775808, 9223372036854775807, 'QHC03')::text);
  end if;
  return v_read || jsonb_build_object('op', v_op) || hwqueue.present('value', nullif(v_value, '""'));
end
$$;

-- Whether a toleration matches a taint: by key and effect if it names them, then by its operator; never that
-- of tenants (taints_for). gt and
-- lt compare the taint's value with the toleration's, as integers of 64 bits: no sign but a minus, no leading
-- zeros.
create or replace function hwqueue.tolerates(p_toleration jsonb, p_taint jsonb) returns boolean
language sql immutable parallel safe
as $$
  select p_taint ? 'key' and coalesce(p_toleration ->> 'effect' = p_taint ->> 'effect', true)
    and coalesce(p_toleration ->> 'key' = p_taint ->> 'key', true)
    and coalesce(case
      when p_toleration ->> 'op' = 'exists' then true
      when p_toleration ->> 'op' = 'equal'
        then coalesce(p_toleration ->> 'value', '') = coalesce(p_taint ->> 'value', '')
      when p_taint ->> 'value' ~ '^(0|-?[1-9][0-9]{0,18})$' then
        (p_taint ->> 'value')::numeric between -9223372036854775808 and 9223372036854775807
        and sign((p_taint ->> 'value')::numeric - (p_toleration ->> 'value')::numeric)
          = case p_toleration ->> 'op' when 'gt' then 1 else -1 end
      end, false)
$$;

-- Returns the taints with one of these effects that no toleration matches.
create or replace function hwqueue.untolerated(p_taints jsonb, p_tolerate jsonb, p_effects text[])
returns jsonb
language plpgsql immutable parallel safe
as $$ begin return (
  select coalesce(jsonb_agg(t.value order by t.ordinality), '[]')
  from jsonb_array_elements(p_taints) with ordinality t
  where t.value ->> 'effect' = any (p_effects)
    and not exists (
      select 1 from jsonb_array_elements(p_tolerate) l where hwqueue.tolerates(l.value, t.value))
); end $$;

-- Returns the taints that keep leases of a class of a tenant off a node.
create or replace function hwqueue.barring_taints(p_taints jsonb, p_tolerate jsonb, p_tenant text)
returns jsonb
language sql immutable parallel safe
as $$
  select hwqueue.untolerated(hwqueue.taints_for(p_taints, p_tenant), p_tolerate,
    array['no_schedule', 'no_execute'])
$$;

-- Returns the reason that a taint is which bars a class.
create or replace function hwqueue.taint_code(p_taint jsonb) returns text
language sql immutable parallel safe
as $$ select case when p_taint ? 'tenants' then 'tenant_not_admitted' else 'untolerated_taint' end $$;

-- Returns a taint as text: key=value:effect.
create or replace function hwqueue.taint_text(p_taint jsonb) returns text
language sql immutable parallel safe
as $$
  select coalesce(p_taint ->> 'key', 'tenant:' || replace(btrim(p_taint ->> 'tenants', '[]'), '"', ''))
    || coalesce('=' || (p_taint ->> 'value'), '') || ':' || (p_taint ->> 'effect')
$$;

-- Returns when a lease that runs beside these taints has to stop, and because of which taint; null: never.
-- It stops at once for a no_execute taint that it does not tolerate, and when the fewest seconds are over for
-- which it tolerates one. They count from when both the claim and the taint existed.
create or replace function hwqueue.first_stop_at(p_taints jsonb, p_tolerate jsonb, p_claimed_at timestamptz,
  out stop_at timestamptz, out taint jsonb)
language plpgsql stable parallel safe
as $$ begin
  select greatest(p_claimed_at, (t.value ->> 'since')::timestamptz)
      + make_interval(secs => coalesce(m.seconds, 0)), t.value - 'since'
  into stop_at, taint
  from jsonb_array_elements(p_taints) t
  cross join lateral (
    select count(*) as tolerations, min((l.value ->> 'seconds')::bigint) as seconds
    from jsonb_array_elements(p_tolerate) l where hwqueue.tolerates(l.value, t.value)) m
  where t.value ->> 'effect' = 'no_execute' and (m.tolerations = 0 or m.seconds is not null)
  order by 1, 2 limit 1;
end $$;
