-- Makes hwqueue_owner, the role that owns everything in the schema and with whose rights the functions run.
-- It is no superuser and cannot log in. Applied after roles.sql and before the tables, which this role then
-- creates. It may run again and again: it hands over what the role does not own yet. The installing role and
-- the previous owner of the schema become members, so that they keep the rights they had.
do $$
declare
  v_to_join text;
begin
  begin
    if not exists (select 1 from pg_catalog.pg_roles r where r.rolname = 'hwqueue_owner') then
      create role hwqueue_owner nologin nosuperuser nocreatedb nocreaterole nobypassrls noreplication;
    end if;
  exception when duplicate_object or unique_violation then
    null;  -- roles belong to the whole server: another upgrade made it first
  end;
  if exists (select 1 from pg_catalog.pg_roles r where r.rolname = 'hwqueue_owner'
             and (r.rolcanlogin or r.rolsuper or r.rolcreatedb or r.rolcreaterole or r.rolbypassrls
                  or r.rolreplication)) then
    raise exception 'role hwqueue_owner may do more than own the queue'
      using errcode = 'invalid_role_specification',
            hint = 'alter role hwqueue_owner nologin nosuperuser nocreatedb nocreaterole nobypassrls '
                   'noreplication';
  end if;
  for v_to_join in
    select r.rolname from pg_catalog.pg_roles r
    where not r.rolsuper and r.rolname <> 'hwqueue_owner'
      and (r.rolname = current_user
           or r.oid = (select n.nspowner from pg_catalog.pg_namespace n where n.nspname = 'hwqueue'))
      and not exists (
        select 1 from pg_catalog.pg_auth_members m
        where m.member = r.oid
          and m.roleid = (select o.oid from pg_catalog.pg_roles o where o.rolname = 'hwqueue_owner')
          -- before Postgres 16 there is no such option, and every member may set the role
          and coalesce((to_jsonb(m) ->> 'set_option')::boolean, true))
  loop
    execute format('grant hwqueue_owner to %I', v_to_join);  -- a name cannot be a parameter of grant
  end loop;
  begin
    if not pg_has_role('hwqueue_owner', 'pg_read_all_stats', 'member') then
      grant pg_read_all_stats to hwqueue_owner;  -- for the age of open transactions in explanations
    end if;
  exception when insufficient_privilege then
    null;  -- explanations leave the age out
  end;
end
$$;

-- The schema changes its owner last, because until then the installer must see what is in it. Indexes, row
-- types and sequences of columns change with their tables.
do $$
declare
  v_owner oid := (select r.oid from pg_catalog.pg_roles r where r.rolname = 'hwqueue_owner');
  v_command text;
begin
  if exists (select 1 from pg_catalog.pg_namespace n
             where n.nspname = 'hwqueue' and n.nspowner <> v_owner) then
    grant all on schema hwqueue to hwqueue_owner;
  end if;
  for v_command in
    select format('alter %s %s owner to hwqueue_owner',
                  case c.relkind when 'S' then 'sequence' when 'v' then 'view'
                    when 'm' then 'materialized view' when 'c' then 'type'
                    when 'f' then 'foreign table' else 'table' end, c.oid::regclass)
    from pg_catalog.pg_class c
    where c.relnamespace = 'hwqueue'::regnamespace and c.relowner <> v_owner
      and c.relkind in ('r', 'p', 'S', 'v', 'm', 'c', 'f')
      and not exists (
        select 1 from pg_catalog.pg_depend d
        where c.relkind = 'S' and d.classid = 'pg_class'::regclass and d.objid = c.oid
          and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i'))
    union all
    select format('alter routine %s owner to hwqueue_owner', p.oid::regprocedure)
    from pg_catalog.pg_proc p where p.pronamespace = 'hwqueue'::regnamespace and p.proowner <> v_owner
    union all
    select format('alter type %s owner to hwqueue_owner', t.oid::regtype)
    from pg_catalog.pg_type t
    where t.typnamespace = 'hwqueue'::regnamespace and t.typowner <> v_owner and t.typtype in ('d', 'e')
  loop
    execute v_command;  -- the names are known at run time only
  end loop;
  if exists (select 1 from pg_catalog.pg_namespace n
             where n.nspname = 'hwqueue' and n.nspowner <> v_owner) then
    alter schema hwqueue owner to hwqueue_owner;
  end if;
end
$$;
