-- The requirements themselves, unless no node can meet them, whatever it is: caught on spawn, not found out by waiting.
-- Looks at the ANDed list only; a branch of any that contradicts itself just never holds. Raises: QHC04.
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
    -- several lists toward: their intersection, less what is to be kept away from, must not be empty; a node
    -- has many resources, so there only the very same one toward and away collides
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
    v_why := hwqueue.label_contradiction(p_required);
  end if;
  if v_why is null and jsonb_path_exists(p_required, '$[*] ? (exists(@.lease) || exists(@.service) || exists(@.leases))') then
    v_why := hwqueue.lease_contradiction(p_required);
  end if;
  if v_why is not null then
    perform hwqueue.refuse('QHC04', format('%s contradicts itself: %s', p_field, v_why),
      jsonb_build_object('field', p_field), 'no node could ever meet all of it: drop one of the terms');
  end if;
  return p_required;
end
$$;

-- A label demanded to be two things at once; null when there is none.
create or replace function hwqueue.label_contradiction(p_required jsonb) returns text
language plpgsql immutable
as $$
begin
  return (
  with term as (
    select e.value ->> 'label' as label, e.value ->> 'op' as op, e.value -> 'values' as alternatives
    from jsonb_array_elements(p_required) e
    where e.value ? 'label' and not e.value ? 'other_label'
  )
  select coalesce(
    (select format('label %s must exist and must not', to_json(a.label)) from term a join term b using (label)
     where a.op = 'does_not_exist' and b.op not in ('does_not_exist', 'not_in') limit 1),
    (select format('label %s has no value left', to_json(a.label)) from term a
     where a.op = 'in' and not exists (
       select 1 from jsonb_array_elements(a.alternatives) v
       where not exists (
         select 1 from term b where b.label = a.label
           and (b.op = 'in' and not b.alternatives @> jsonb_build_array(v.value)
                or b.op = 'not_in' and b.alternatives @> jsonb_build_array(v.value)))) limit 1),
    (select format('label %s must be above %s and below %s', to_json(a.label), a.alternatives -> 0, b.alternatives -> 0)
     from term a join term b using (label)
     where a.op in ('gt', 'gte') and b.op in ('lt', 'lte')
       and ((a.alternatives ->> 0)::numeric > (b.alternatives ->> 0)::numeric
            or (a.alternatives ->> 0)::numeric = (b.alternatives ->> 0)::numeric and not (a.op = 'gte' and b.op = 'lte')) limit 1)));
end
$$;

-- Other leases to be with and to keep away from; null when there are none. Who shares their node shares every domain with them.
create or replace function hwqueue.lease_contradiction(p_required jsonb) returns text
language sql immutable
as $$
  with term as (
    select e.value - array['domain', 'away', 'unknown'] as target, e.value ->> 'domain' as domain, e.value ? 'away' as away
    from jsonb_array_elements(p_required) e
    where e.value ?| array['lease', 'service', 'leases']
  )
  select format('toward and away from %s', t.target) from term t join term a using (target)
  where not t.away and a.away and (t.domain = 'node' or t.domain is not distinct from a.domain) limit 1
$$;
