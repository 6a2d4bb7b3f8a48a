-- What the user may do about roles, and whose the schema is (null: there is none). {set}: the right to SET ROLE, which has a
-- name of its own since Postgres 16; {any_creator}: before that, whoever may create roles may grant them, too.
-- SET ROLE asks for the session's user, ALTER ... OWNER for the current one.
select
  (select pg_catalog.count(*) from pg_catalog.pg_roles r where r.rolname = any ({roles}::name[]))
    = pg_catalog.cardinality({roles}::name[]) as roles_exist,
  u.rolsuper or u.rolcreaterole as may_create_roles,
  o.oid is not null as owner_exists,
  coalesce(pg_catalog.pg_has_role(current_user, o.oid, {set}) and pg_catalog.pg_has_role(session_user, o.oid, {set}), false)
    as may_be_owner,
  coalesce(pg_catalog.pg_has_role(current_user, o.oid, 'MEMBER WITH ADMIN OPTION') or {any_creator} and u.rolcreaterole, false)
    as may_join_owner,
  (select pg_catalog.pg_get_userbyid(n.nspowner)::text from pg_catalog.pg_namespace n where n.nspname = 'hwqueue') as schema_owner,
  coalesce((
    select r.rolsuper or r.rolname in (current_user, {owner})
    from pg_catalog.pg_namespace n join pg_catalog.pg_roles r on r.oid = n.nspowner
    where n.nspname = 'hwqueue'), true) as trusts_schema,
  current_user::text as installer
from pg_catalog.pg_roles u
left join pg_catalog.pg_roles o on o.rolname = {owner}
where u.rolname = current_user
