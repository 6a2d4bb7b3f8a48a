-- What a caller of one tenant may name when it spawns, changes or tries a lease: its own tenant, its own services, its own leases. The one
-- place for it: all that a placement, a params blob or a service's policy asks about other leases is in the terms of the class.

-- The tenant that used a service first, as far as there are classes of it; null: nobody uses it.
create or replace function hwqueue.service_tenant(p_service uuid, p_shard int) returns text
language sql stable
as $$
  select c.tenant from hwqueue.placement_class c
  where c.shard_id = p_shard and c.service_id = p_service order by c.class_id limit 1
$$;

-- Whether a lease is one of these tenants'; one that does not exist is nobody's.
create or replace function hwqueue.is_own_lease(p_lease uuid, p_tenants text[], p_shard int) returns boolean
language sql stable
as $$
  select exists (
    select 1 from hwqueue.lease l
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = l.class_id
    where l.shard_id = p_shard and l.lease_id = p_lease and c.tenant = any (p_tenants))
$$;

-- Whether a service is the caller's: to somebody for all tenants every one is.
create or replace function hwqueue.is_own_service(p_service uuid, p_shard int) returns boolean
language sql stable
as $$
  select hwqueue.my_tenants() is null or coalesce(hwqueue.service_tenant(p_service, p_shard) = any (hwqueue.my_tenants()), false)
$$;

-- Refuses a class that names what is not its caller's. p_field: of what the class was made of; p_index: see refuse_foreign.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.check_own_class(p_class hwqueue.placement_class, p_field text, p_index int, p_shard int) returns void
language plpgsql stable
as $$
declare
  v_tenants text[] := hwqueue.my_tenants();
  v_item jsonb;
begin
  if v_tenants is null then
    return;
  end if;
  if p_class.tenant <> all (v_tenants) then
    perform hwqueue.refuse_foreign(format('%s.tenant is %s', p_field, to_json(p_class.tenant)), p_field || '.tenant',
      'name the tenant that the caller is for', p_index);
  elsif hwqueue.service_tenant(p_class.service_id, p_shard) <> all (v_tenants) then
    perform hwqueue.refuse_foreign(format('%s.service_id %s is not its', p_field, p_class.service_id), p_field || '.service_id',
      'a service is the tenant''s that used it first: choose an id of your own', p_index);
  end if;
  for v_item in select i.value from jsonb_path_query(p_class.terms, 'strict $[*].spec.all[*]') i(value) loop
    if v_item ? 'lease' and not hwqueue.is_own_lease((v_item ->> 'lease')::uuid, v_tenants, p_shard) then
      perform hwqueue.refuse_foreign(format('%s asks about lease %s, which is not its', p_field, v_item ->> 'lease'), p_field || '.placement',
        'name leases of the tenant that exist already', p_index);
    elsif v_item ? 'service' and v_item ->> 'service' is distinct from p_class.service_id::text
          and (v_item ->> 'service')::uuid <> all (p_class.away_from)  -- operators said so
          and not hwqueue.is_own_service((v_item ->> 'service')::uuid, p_shard) then
      perform hwqueue.refuse_foreign(format('%s asks about service %s, which is not its', p_field, v_item ->> 'service'), p_field || '.placement',
        'name services that leases of the tenant have', p_index);
    elsif v_item ?| array['exprs', 'task'] and not hwqueue.are_own(v_item -> 'tenants') then
      perform hwqueue.refuse_foreign(format('%s asks about leases of tenants %s', p_field, v_item -> 'tenants'), p_field || '.placement',
        'leave out tenants: they are the lease''s own', p_index);
    end if;
  end loop;
end
$$;

-- Whether the tenants that a selector names are all the caller's; one that names none means the lease's own.
create or replace function hwqueue.are_own(p_tenants jsonb) returns boolean
language sql stable
as $$
  select case
    when hwqueue.my_tenants() is null or p_tenants is null or jsonb_typeof(p_tenants) = 'null' then true
    when jsonb_typeof(p_tenants) = 'array' then p_tenants <@ to_jsonb(hwqueue.my_tenants())
    else false end
$$;

-- Refuses spawns of classes that name what is not the caller's. After they are written, so that leases of a batch may name each other.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.check_own_spawns(p_spawns hwqueue.spawn_request[], p_is_batch boolean, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_found record;
begin
  for v_found in
    select c as class, s.ordinal
    from (select u.class_id, min(u.ordinal) as ordinal from unnest(p_spawns) u where u.stands_for is null group by u.class_id) s
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = s.class_id
    order by s.ordinal
  loop
    perform hwqueue.check_own_class(v_found.class, 'options', case when p_is_batch then v_found.ordinal - 1 end, p_shard);
  end loop;
end
$$;
