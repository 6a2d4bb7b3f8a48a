-- Who may see and change what: logins of nodes, tenants of leases and services, names of trust domains.
-- A node belongs to the login that registered it. Calls for a node check that with check_login.
-- A caller may be limited to tenants. A bound login, a member of hwqueue_tenants, is for those that
-- grant_tenant has granted to it, whatever it sets. The HTTP server says for which one it calls, until the
-- end of the transaction: set_config('hwqueue.tenant', 'acme', true). That narrows any caller, and is no
-- boundary between logins that are not bound: each of them can set it. Every function that could show or
-- touch another tenant's rows calls my_tenants or a function of this module.
-- Rows of other tenants and missing rows are refused in the same words, so that a refusal reveals
-- nothing.

-- Whether the caller is a superuser, or a member of a role. Of a role that does not exist only a
-- superuser is.
create or replace function hwqueue.has_login(p_login text) returns boolean
language plpgsql stable
as $$ begin
  return exists (select from pg_catalog.pg_roles r where r.rolname = session_user and r.rolsuper)
      or exists (select from pg_catalog.pg_roles r where r.rolname = p_login
          and pg_has_role(session_user, r.oid, 'member'));
end $$;

-- Whether the caller may act for what belongs to a login: it is that login, is a member of it, or no
-- login is recorded.
-- Functions run with their owner's rights, so the caller is session_user. A single expression, so that
-- Postgres inlines it.
create or replace function hwqueue.is_own(p_login text) returns boolean
language sql stable
as $$ select p_login = session_user or p_login is null or hwqueue.has_login(p_login) $$;

-- Returns the node that enter_node has opened in this transaction; null: none. A caller that sets it itself
-- narrows what it may touch, and adds nothing.
create or replace function hwqueue.entered_node() returns uuid
language sql stable
as $$ select nullif(current_setting('hwqueue.node', true), '')::uuid $$;

-- Whether the caller may act for a claim of this login and node.
create or replace function hwqueue.is_own_claim(p_login text, p_node uuid) returns boolean
language sql stable
as $$ select hwqueue.is_own(p_login) and p_node = coalesce(hwqueue.entered_node(), p_node) $$;

-- Returns the hint for a caller that may not act for a login. If the role no longer exists, only an
-- operator can help.
create or replace function hwqueue.login_hint(p_login text) returns text
language plpgsql stable
as $$ begin return
  case when exists (select from pg_catalog.pg_roles r where r.rolname = p_login)
    then format('log in as %s or as a member of it, or let an operator hand the node over: hand_over_node',
      to_json(p_login))
    else format('role %s does not exist on this server: let an operator hand the node over: hand_over_node',
      to_json(p_login)) end;
end $$;

-- Refuses a caller that may not act for a node.
-- Raises: QHN04.
create or replace function hwqueue.check_login(p_node uuid, p_login text) returns void
language plpgsql stable
as $$
begin
  if not hwqueue.is_own(p_login) then
    perform hwqueue.refuse('QHN04',
      format('node %s belongs to login %s, this call comes from %s', p_node, to_json(p_login),
        to_json(session_user::text)),
      jsonb_build_object('node_id', p_node, 'login', p_login, 'given_login', session_user),
      hwqueue.login_hint(p_login));
  end if;
end
$$;

-- The token of role worker with this secret, if it lets somebody in.
create or replace function hwqueue.worker_token(p_secret_sha256 bytea) returns hwqueue.api_token
language plpgsql stable
as $$ begin return (
  select t from hwqueue.api_token t
  where t.secret_sha256 = p_secret_sha256 and t.role = 'worker' and t.revoked_at is null
    and coalesce(t.expires_at, 'infinity') > hwqueue.clock()
); end $$;

-- Refuses text that cannot be the name of a trust domain.
-- Raises: QHA01.
create or replace function hwqueue.check_trust_domain(p_domain text) returns void
language plpgsql immutable
as $$
begin
  if (octet_length(convert_to(p_domain, 'UTF8')) between 1 and 255) is not true then
    perform hwqueue.refuse_field('QHA01', 'p_domain', 'must be text of 1 to 255 bytes',
      'give the name that leases require with {"trust": ...}');
  end if;
end
$$;

-- Returns the tenant that used a service first, among the classes that still exist. Null means that no
-- class uses it.
create or replace function hwqueue.service_tenant(p_service uuid) returns text
language plpgsql stable
as $$ begin return (
  select c.tenant from hwqueue.placement_class c
  where c.service_id = p_service order by c.class_id limit 1
); end $$;

-- Whether a lease belongs to one of these tenants. False for a lease that does not exist.
create or replace function hwqueue.is_own_lease(p_lease uuid, p_tenants text[]) returns boolean
language plpgsql stable
as $$ begin return
  exists (
    select 1 from hwqueue.lease l
    join hwqueue.placement_class c on c.class_id = l.class_id
    where l.lease_id = p_lease and c.tenant = any (p_tenants));
end $$;

-- Whether a service belongs to the caller. Always true for a caller that sees all tenants.
create or replace function hwqueue.is_own_service(p_service uuid) returns boolean
language sql stable
as $$
  select hwqueue.my_tenants() is null
    or coalesce(hwqueue.service_tenant(p_service) = any (hwqueue.my_tenants()), false)
$$;

-- Refuses a class that names another tenant, or a lease or service of another tenant.
-- Spawns, updates and dry runs call it. All that a placement, a params blob or a service's policy says
-- about other leases is in the terms of the class, so this check is complete.
-- p_field is the argument that the class was made of. p_index is the element of a batch, or null.
-- Raises: QHA03.
create or replace function hwqueue.check_own_class(p_class hwqueue.placement_class, p_field text,
  p_index int) returns void
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
      p_field || '.tenant', 'name the tenant that the caller is for', p_index);
  elsif hwqueue.service_tenant(p_class.service_id) <> all (v_tenants) then
    perform hwqueue.refuse_foreign(format('%s.service_id %s is not its', p_field, p_class.service_id),
      p_field || '.service_id',
      'a service is the tenant''s that used it first: choose an id of your own', p_index);
  end if;
  for v_item in select i.value from jsonb_path_query(p_class.terms, 'strict $[*].spec.all[*]') i(value) loop
    if v_item ? 'lease' and not hwqueue.is_own_lease((v_item ->> 'lease')::uuid, v_tenants) then
      perform hwqueue.refuse_foreign(
        format('%s asks about lease %s, which is not its', p_field, v_item ->> 'lease'),
        p_field || '.placement', 'name leases of the tenant that exist already', p_index);
    elsif v_item ? 'service' and v_item ->> 'service' is distinct from p_class.service_id::text
      and (v_item ->> 'service')::uuid <> all (p_class.away_from)  -- an operator's policy asked for it
      and not hwqueue.is_own_service((v_item ->> 'service')::uuid) then
      perform hwqueue.refuse_foreign(
        format('%s asks about service %s, which is not its', p_field, v_item ->> 'service'),
        p_field || '.placement', 'name services that leases of the tenant have', p_index);
    elsif v_item ?| array['exprs', 'task']
      and not hwqueue.are_own_tenants(v_item -> 'tenants', array[p_class.tenant]) then
      perform hwqueue.refuse_foreign(
        format('%s asks about leases of tenants %s', p_field, v_item -> 'tenants'), p_field || '.placement',
        'leave out tenants: they are the lease''s own', p_index);
    end if;
  end loop;
end
$$;

-- Whether all tenants that a selector names are the caller's, or share their leases with one of p_with. A
-- selector that names none means the lease's own tenant.
create or replace function hwqueue.are_own_tenants(p_tenants jsonb, p_with text[]) returns boolean
language plpgsql stable
as $$ begin return
  case
    when hwqueue.my_tenants() is null or p_tenants is null or jsonb_typeof(p_tenants) = 'null' then true
    when jsonb_typeof(p_tenants) = 'array' then p_tenants <@ to_jsonb(hwqueue.my_tenants() || array(
      select t.name from hwqueue.tenant t where p_tenants ? t.name and t.spec -> 'shared_with' ?| p_with))
    else false end;
end $$;

-- Checks the right to spawn, and the classes of new spawns with check_own_class.
-- It runs after the rows are written, because leases of one batch may name each other.
-- Raises: QHA03.
create or replace function hwqueue.check_own_spawns(p_spawns hwqueue.spawn_request[], p_is_batch boolean)
returns void
language plpgsql volatile
as $$
declare
  v_found record;
begin
  perform hwqueue.require_right('spawn');
  for v_found in
    select c as class, s.ordinal
    from (select u.class_id, min(u.ordinal) as ordinal from unnest(p_spawns) u
          where u.stands_for is null group by u.class_id) s
    join hwqueue.placement_class c on c.class_id = s.class_id
    order by s.ordinal
  loop
    perform hwqueue.check_own_class(v_found.class, 'options',
      case when p_is_batch then v_found.ordinal - 1 end);
  end loop;
end
$$;

-- Whether the caller's login is bound to tenants. Reads no table, because every spawn asks. Superusers, which
-- count as members of every role, and members of the owner, with whose rights this runs, are not bound: they
-- may do anything to the tables. Since Postgres 16 who makes a role, as an installer does, is a member of it.
-- is_superuser, which nobody can set, spares most superusers both questions.
create or replace function hwqueue.is_bound() returns boolean
language sql stable
as $$
  select coalesce(current_setting('is_superuser') = 'off'
    and pg_has_role(session_user, to_regrole('hwqueue_tenants'), 'member')
    and not pg_has_role(session_user, current_user, 'member'), false)
$$;

-- Returns the tenants that the caller is limited to. Null means all, '{}' none. The setting narrows those of
-- a bound login, and adds none.
create or replace function hwqueue.my_tenants() returns text[]
language sql stable
as $$
  select case when hwqueue.is_bound() then hwqueue.bound_tenants()
    when current_setting('hwqueue.tenant', true) <> ''
      then array[current_setting('hwqueue.tenant', true)] end
$$;

-- Returns what my_tenants does for a bound login.
create or replace function hwqueue.bound_tenants() returns text[]
language plpgsql stable
as $$ begin return array(
  select l.tenant from hwqueue.tenant_login l
  where l.login = session_user::text
    and l.tenant = coalesce(nullif(current_setting('hwqueue.tenant', true), ''), l.tenant)
  order by l.tenant
); end $$;

-- Refuses a bound login that lacks a right in one of the tenants that it calls for. All may read.
-- Raises: QHA03.
create or replace function hwqueue.require_right(p_right text) returns void
language plpgsql stable
as $$
declare
  v_tenants text[];
begin
  if hwqueue.is_bound() then
    v_tenants := array(
      select l.tenant from hwqueue.tenant_login l
      where l.login = session_user::text and l.tenant = any (hwqueue.my_tenants())
        and p_right <> all (l.rights) order by l.tenant);
    if v_tenants <> '{}' then
      perform hwqueue.refuse_foreign(
        format('the call needs the right to %s, which login %s lacks for tenant %s', p_right,
          to_json(session_user::text), to_json(v_tenants[1])), null,
        'let an admin grant it (hwqueue tenant grant), or set hwqueue.tenant to one where the login has it');
    end if;
  end if;
end
$$;

-- Returns defaults of a spawn with the tenant of a caller that is for one alone.
create or replace function hwqueue.with_tenant(p_defaults jsonb) returns jsonb
language sql stable
as $$
  select case when cardinality(hwqueue.my_tenants()) = 1
    then coalesce(p_defaults, '{}') || jsonb_build_object('tenant', (hwqueue.my_tenants())[1])
    else p_defaults end
$$;

-- Refuses access to another tenant's row. p_index is the element of a batch, or null.
-- Raises: QHA03, always.
create or replace function hwqueue.refuse_foreign(p_what text, p_field text, p_hint text,
  p_index int default null) returns void
language plpgsql volatile
as $$ begin
  perform hwqueue.refuse('QHA03',
    format('%s%s, and the caller is for %s', 'leases[' || p_index || ']: ', p_what,
      coalesce('tenant ' || (select string_agg(to_json(t)::text, ', ') from unnest(hwqueue.my_tenants()) t)
        || ' alone', 'no tenant')),
    jsonb_build_object('field', p_field, 'index', p_index), p_hint);
end $$;

-- Refuses work of a tenant that has too much of it already; '': of what has no tenant; null: of all.
-- Raises: QHT03, always.
create or replace function hwqueue.refuse_more(p_what text, p_used bigint, p_limit int, p_tenant text,
  p_hint text) returns void
language sql volatile
as $$
  select hwqueue.refuse('QHT03', format('%s about %s %s, and may have %s',
      coalesce(case p_tenant when '' then 'work without a tenant' else 'tenant ' || to_json(p_tenant) end,
        'the installation') || ' has', p_used, p_what, p_limit),
    jsonb_build_object('tenant', p_tenant, 'what', p_what, 'used', p_used, 'limit', p_limit), p_hint)
$$;

-- Refuses callers that are limited to a tenant, in calls that show or change rows of all tenants.
-- It is called before any other check or lookup, so that the refusal does not depend on what the call
-- names.
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
