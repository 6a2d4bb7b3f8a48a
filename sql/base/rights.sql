-- Tenants, logins and trust domains: what a caller may see and change.

-- Whether the caller has a role of another name; a role that does not exist is nobody's but a superuser's.
create or replace function hwqueue.has_login(p_login text) returns boolean
language plpgsql stable
as $$
begin
  return exists (select from pg_catalog.pg_roles r where r.rolname = session_user and r.rolsuper)
      or exists (select from pg_catalog.pg_roles r where r.rolname = p_login
          and pg_has_role(session_user, r.oid, 'member'));
end
$$;

-- Whether the caller may act for what belongs to a role: it is that role, has it, or nobody is noted.
-- Functions run with their owner's rights, so the caller is the session's user. An expression, so that
-- Postgres puts it in place of the call.
create or replace function hwqueue.is_own(p_login text) returns boolean
language sql stable
as $$ select p_login = session_user or p_login is null or hwqueue.has_login(p_login) $$;

-- What helps a caller that may not act for a role: with the role gone only an operator does.
create or replace function hwqueue.login_hint(p_login text) returns text
language sql stable
as $$
  select case when exists (select from pg_catalog.pg_roles r where r.rolname = p_login)
      then format('log in as %s or as a member of it, or let an operator hand the node over: hand_over_node',
          to_json(p_login))
    else format('role %s does not exist on this server: let an operator hand the node over: hand_over_node',
        to_json(p_login)) end
$$;

-- Refuses a caller that may not act for a node.
-- Raises: QHN04.
create or replace function hwqueue.check_login(p_node uuid, p_login text, p_shard int) returns void
language plpgsql stable
as $$
begin
  if not hwqueue.is_own(p_login) then
    perform hwqueue.refuse('QHN04', format('node %s belongs to login %s, this call comes from %s', p_node,
        to_json(p_login),
        to_json(session_user::text)),
      jsonb_build_object('node_id', p_node, 'shard_id', p_shard, 'login', p_login, 'given_login',
          session_user),
      hwqueue.login_hint(p_login));
  end if;
end
$$;

-- Refuses what can be no trust domain. Raises: QHA01.
create or replace function hwqueue.check_trust_domain(p_domain text) returns void
language plpgsql immutable
as $$
begin
  if (octet_length(convert_to(p_domain, 'UTF8')) between 1 and 255) is not true then
    perform hwqueue.refuse('QHA01', 'p_domain must be text of 1 to 255 bytes',
        jsonb_build_object('field', 'p_domain'),
      'give the name that leases require with {"trust": ...}');
  end if;
end
$$;

-- What a caller of one tenant may name when it spawns, changes or tries a lease: its own tenant, its own
-- services, its own leases. The one place for it: all that a placement, a params blob or a service's
-- policy asks about other leases is in the terms of the class.

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
  select hwqueue.my_tenants() is null or coalesce(hwqueue.service_tenant(p_service,
         p_shard) = any (hwqueue.my_tenants()), false)
$$;

-- Refuses a class that names what is not its caller's. p_field: of what the class was made of; p_index:
-- see refuse_foreign.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.check_own_class(p_class hwqueue.placement_class, p_field text,
  p_index int, p_shard int) returns void
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
    perform hwqueue.refuse_foreign(format('%s.tenant is %s', p_field, to_json(p_class.tenant)),
        p_field || '.tenant',
      'name the tenant that the caller is for', p_index);
  elsif hwqueue.service_tenant(p_class.service_id, p_shard) <> all (v_tenants) then
    perform hwqueue.refuse_foreign(format('%s.service_id %s is not its', p_field, p_class.service_id),
        p_field || '.service_id',
      'a service is the tenant''s that used it first: choose an id of your own', p_index);
  end if;
  for v_item in select i.value from jsonb_path_query(p_class.terms, 'strict $[*].spec.all[*]') i(value) loop
    if v_item ? 'lease' and not hwqueue.is_own_lease((v_item ->> 'lease')::uuid, v_tenants, p_shard) then
      perform hwqueue.refuse_foreign(format('%s asks about lease %s, which is not its', p_field,
          v_item ->> 'lease'), p_field || '.placement',
        'name leases of the tenant that exist already', p_index);
    elsif v_item ? 'service' and v_item ->> 'service' is distinct from p_class.service_id::text
          and (v_item ->> 'service')::uuid <> all (p_class.away_from)  -- operators said so
          and not hwqueue.is_own_service((v_item ->> 'service')::uuid, p_shard) then
      perform hwqueue.refuse_foreign(format('%s asks about service %s, which is not its', p_field,
          v_item ->> 'service'), p_field || '.placement',
        'name services that leases of the tenant have', p_index);
    elsif v_item ?| array['exprs', 'task'] and not hwqueue.are_own(v_item -> 'tenants') then
      perform hwqueue.refuse_foreign(format('%s asks about leases of tenants %s', p_field,
          v_item -> 'tenants'), p_field || '.placement',
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

-- Refuses spawns of classes that name what is not the caller's. After they are written, so that leases
-- of a batch may name each other.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.check_own_spawns(p_spawns hwqueue.spawn_request[], p_is_batch boolean,
  p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_found record;
begin
  for v_found in
    select c as class, s.ordinal
    from (select u.class_id, min(u.ordinal) as ordinal from unnest(p_spawns) u where u.stands_for is null
        group by u.class_id) s
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = s.class_id
    order by s.ordinal
  loop
    perform hwqueue.check_own_class(v_found.class, 'options', case when p_is_batch
        then v_found.ordinal - 1 end, p_shard);
  end loop;
end
$$;

-- Whose tenants' things a caller may see and name. The HTTP server says for which tenant its caller is, until
-- the end of the transaction: set_config('hwqueue.tenant', 'acme', true). That narrows a caller who is
-- trusted to say it; it is no boundary between SQL logins, as each of them may set anything. Every function
-- that may meet another tenant's things asks here.

-- The tenants that the caller is for; null: all.
create or replace function hwqueue.my_tenants() returns text[]
language sql stable parallel safe
as $$ select case when current_setting('hwqueue.tenant', true) <> ''
  then array[current_setting('hwqueue.tenant', true)] end $$;

-- Refuses what is not the caller's tenant's. What is another's and what does not exist is refused in the same
-- words. p_index: of the element of a batch; null: no batch.
-- Raises: QHA03, always.
create or replace function hwqueue.refuse_foreign(p_what text, p_field text, p_hint text,
  p_index int default null) returns void
language plpgsql volatile
as $$
begin
  perform hwqueue.refuse('QHA03', format('%s%s, and the caller is for tenant %s alone',
      'leases[' || p_index || ']: ', p_what,
      (select string_agg(to_json(t)::text, ', ') from unnest(hwqueue.my_tenants()) t)),
    jsonb_build_object('field', p_field, 'index', p_index), p_hint);
end
$$;

-- Refuses callers of single tenants where all tenants are shown, or concerned, at once. Asked before
-- anything is looked up or checked, so that the refusal is the same whatever the call names.
-- Raises: QHA03.
create or replace function hwqueue.require_all_tenants() returns void
language plpgsql stable
as $$
begin
  if hwqueue.my_tenants() is not null then
    perform hwqueue.refuse_foreign('this is about all tenants at once', null,
        'ask as somebody who may see all tenants');
  end if;
end
$$;
