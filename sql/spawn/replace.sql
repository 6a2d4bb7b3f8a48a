-- Spawning a lease that takes the place of another one: the option replaces.
--
-- Example: a new version of a service is spawned with {"replaces": {"lease": A}}. It waits, scheduled and
-- held by that place, until upkeep has booked room for it on the node of A (gangs/replace).
--
-- Invariant: a lease that is to take a place has a row in replacement as long as no claim may find it.

-- Returns the option replaces, {"lease" or "service", "then", "overlap"}, all of which it checks; null: it is
-- not given.
-- Raises: QHA01.
create or replace function hwqueue.replaces_of(p_options jsonb) returns jsonb
language plpgsql immutable
as $$
declare
  v_given jsonb := nullif(p_options -> 'replaces', 'null');
  v_lease uuid;
  v_service uuid;
  v_other text := (
    select o.name from unnest(array['unique', 'one_of', 'delay', 'available_at']) o(name)
    where coalesce(p_options -> o.name, 'null') <> 'null' limit 1);
begin
  if v_given is null then
    return null;
  end if;
  perform hwqueue.check_object(v_given, array['lease', 'service', 'then', 'overlap'], 'options.replaces');
  v_lease := hwqueue.json_uuid(v_given -> 'lease', 'options.replaces.lease');
  v_service := hwqueue.json_uuid(v_given -> 'service', 'options.replaces.service');
  if (v_lease is null) = (v_service is null) then
    perform hwqueue.refuse('QHA01', 'options.replaces names a lease or a service, one of them',
      jsonb_build_object('field', 'options.replaces'),
      'for example {"lease": "0197f3a2-7c1e-7000-8000-000000000007", "then": "cancel"}');
  elsif v_other is not null then
    perform hwqueue.refuse('QHA01', format('options has both replaces and %s', v_other),
      jsonb_build_object('field', 'options.replaces'),
      format('the lease waits for the place of another one: leave %s out', v_other));
  end if;
  return jsonb_build_object('lease', v_lease, 'service', v_service,
    'then', coalesce(hwqueue.json_choice(v_given -> 'then', 'options.replaces.then',
      array['cancel', 'requeue']), 'cancel'),
    'overlap', coalesce(hwqueue.json_boolean(v_given -> 'overlap', 'options.replaces.overlap'), false));
end
$$;

-- Writes which leases the new ones of a batch replace. The caller has inserted them.
-- Locks: new rows. Raises: QHL04 for a lease that does not exist or is another tenant's, QHA01 for one that
-- is replaced already, is a member of a gang or a step of a run, and for a circle.
create or replace function hwqueue.write_replacements(p_spawns hwqueue.spawn_request[], p_now timestamptz)
returns void
language plpgsql volatile
as $$
declare
  v_wrong record;
begin
  insert into hwqueue.replacement (lease_id, old_lease, service_id, old_goes, is_overlapping, next_try_at)
  select s.lease_id, (s.replaces ->> 'lease')::uuid, (s.replaces ->> 'service')::uuid, s.replaces ->> 'then',
         (s.replaces ->> 'overlap')::boolean, p_now
  from unnest(p_spawns) s where s.replaces is not null;
  select r.old_lease as lease, o.lease_id is null as is_unknown, w.problem into v_wrong
  from unnest(p_spawns) s
  join hwqueue.replacement r on r.lease_id = s.lease_id and r.old_lease is not null
  join hwqueue.placement_class c on c.class_id = s.class_id
  left join (hwqueue.lease o join hwqueue.placement_class k on k.class_id = o.class_id)
    on o.lease_id = r.old_lease and k.tenant = c.tenant
  cross join lateral (
    select case when s.lease_id in (
          with recursive chain as (
            select r.old_lease as lease_id
            union
            select n.old_lease from chain i join hwqueue.replacement n on n.lease_id = i.lease_id
          )
          select i.lease_id from chain i) then 'waits for its place itself: a circle'
        when o.team_id is not null then 'is a member of a gang'
        when o.run_id is not null then 'is a step of a run'
        when exists (
          select from hwqueue.replacement x where x.old_lease = r.old_lease and x.lease_id <> s.lease_id)
          then 'is being replaced already' end as problem) w
  where o.lease_id is null or w.problem is not null
  order by s.ordinal limit 1;
  if v_wrong.is_unknown then
    perform hwqueue.refuse('QHL04', format('lease %s does not exist', v_wrong.lease),
      jsonb_build_object('lease_id', v_wrong.lease, 'field', 'options.replaces.lease'),
      'check the id; a lease replaces one of its own tenant');
  elsif found then
    perform hwqueue.refuse('QHA01',
      format('lease %s cannot be replaced: it %s', v_wrong.lease, v_wrong.problem),
      jsonb_build_object('lease_id', v_wrong.lease, 'field', 'options.replaces.lease'),
      'replace a lease that stands alone, once');
  end if;
end
$$;
