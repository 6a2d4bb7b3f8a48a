-- A clock that tests can freeze and move, for all sessions at once. Never part of an upgrade; `hwqueue db check` reports it.
create table if not exists hwqueue.test_clock (
  singleton boolean primary key default true check (singleton),
  offset_by interval not null default '0',
  frozen_at timestamptz
);
-- The clock runs with the rights of the schema's owner, which may be another than who installs it.
-- `execute`: the name of a role cannot be a parameter.
do $$
begin
  execute pg_catalog.format('alter table hwqueue.test_clock owner to %I', (
    select pg_catalog.pg_get_userbyid(n.nspowner) from pg_catalog.pg_namespace n where n.nspname operator(pg_catalog.=) 'hwqueue'));
end
$$;

insert into hwqueue.test_clock default values on conflict do nothing;

create or replace function hwqueue.clock() returns timestamptz
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select coalesce(t.frozen_at, clock_timestamp()) + t.offset_by from hwqueue.test_clock t $$;
