-- Not `create schema if not exists`: that asks for the right to create schemas even where there is nothing to create.
do $$
begin
  if pg_catalog.to_regnamespace('hwqueue') is null then
    create schema hwqueue;
  elsif not exists (select from pg_catalog.pg_class c where c.relnamespace = 'hwqueue'::regnamespace and c.relname = 'schema_info')
      and (exists (select from pg_catalog.pg_proc p where p.pronamespace = 'hwqueue'::regnamespace)
           or exists (select from pg_catalog.pg_class c where c.relnamespace = 'hwqueue'::regnamespace)) then
    raise exception 'schema hwqueue exists, and what is in it is not hwqueue'
      using errcode = 'duplicate_schema', hint = 'it would run during the upgrade: drop it, or choose another database';
  end if;
end
$$;
