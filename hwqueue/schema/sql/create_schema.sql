-- Not `create schema if not exists`: that asks for the right to create schemas even where there is nothing to create.
-- Whoever owns the schema becomes a member of hwqueue_owner, and what is in it runs. So it is the user's own, a superuser's, of
-- hwqueue_owner, or of who is trusted by name. Asked here, as it may have been made a moment ago.
do $$
declare
  v_owner name;
begin
  if pg_catalog.to_regnamespace('hwqueue') is null then
    create schema hwqueue;
  elsif not exists (select from pg_catalog.pg_class c where c.relnamespace = 'hwqueue'::regnamespace and c.relname = 'schema_info')
      and (exists (select from pg_catalog.pg_proc p where p.pronamespace = 'hwqueue'::regnamespace)
           or exists (select from pg_catalog.pg_class c where c.relnamespace = 'hwqueue'::regnamespace)) then
    raise exception 'schema hwqueue exists, and what is in it is not hwqueue'
      using errcode = 'duplicate_schema', hint = 'it would run during the upgrade: drop it, or choose another database';
  end if;
  select r.rolname into v_owner
  from pg_catalog.pg_namespace n join pg_catalog.pg_roles r on r.oid = n.nspowner
  where n.nspname = 'hwqueue' and not r.rolsuper and r.rolname not in (current_user, 'hwqueue_owner');
  if v_owner <> coalesce({from_owner}::text, '') then
    raise exception 'schema hwqueue belongs to %: what % has put into it would run as %', v_owner, v_owner, current_user
      using errcode = 'duplicate_schema', hint = 'install as that user, or let that user drop it';
  end if;
end
$$;
