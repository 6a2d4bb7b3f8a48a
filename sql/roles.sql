-- Makes the six roles that are granted to logins; owner.sql makes the seventh, hwqueue_owner, which owns
-- the schema. Roles belong to the whole server, so the upgrade of
-- another database may have made them already. Applied before the tables; it may run again and again.
-- Needs CREATEROLE the first time. `hwqueue db upgrade --no-roles` leaves it out.
do $$
declare
  v_role text;
begin
  foreach v_role in array array['hwqueue_producer', 'hwqueue_worker', 'hwqueue_planner',
      'hwqueue_operator', 'hwqueue_admin', 'hwqueue_tenants'] loop
    begin
      if not exists (select 1 from pg_catalog.pg_roles r where r.rolname = v_role) then
        execute format('create role %I nologin', v_role);  -- a name cannot be a parameter of create role
      end if;
    exception when duplicate_object or unique_violation then
      null;  -- roles belong to the whole server: another upgrade made it first
    end;
  end loop;
end
$$;
