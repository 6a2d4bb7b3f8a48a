-- Not `create schema if not exists`: that asks for the right to create schemas even where there is nothing to create.
do $$
begin
  if pg_catalog.to_regnamespace('hwqueue') is null then
    create schema hwqueue;
  end if;
end
$$;
