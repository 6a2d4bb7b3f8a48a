-- All views in one statement, as they may be built on each other; no cascade, as a view of the
-- user's own on top of ours must stop the upgrade and not vanish.
-- `execute`: the names are only known now.
do $$
declare
  v_views text;
begin
  select string_agg(c.oid::regclass::text, ', ') into v_views
  from pg_class c
  where c.relnamespace = 'hwqueue'::regnamespace and c.relkind = 'v';
  if v_views is not null then
    execute 'drop view ' || v_views;
  end if;
end
$$;
