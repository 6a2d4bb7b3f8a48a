-- Public: tenants, and in which order their leases run.
--
-- Admins write tenants; spawns read the tier (spawn/read). Example: a lease of tenant lab, a scavenger, runs
-- where no lease of an earlier tier wants the room. A tenant needs no row: without one it is guaranteed.
--
-- Read set_tenant first.

-- Changes the keys of a tenant that p_changes has, null: resets them, and returns all of it; one without a
-- row gets it. tier: guaranteed, before best_effort, before scavenger, strictly: a priority never crosses
-- tiers. It is that of leases spawned from now on. p_name '*': all tenants without a row; leases of no tenant
-- are guaranteed.
-- Locks: its row. Raises: QHA01, QHA03.
create or replace function hwqueue.set_tenant(p_name text, p_changes jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_old jsonb;
  v_new jsonb;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.json_text(to_jsonb(coalesce(p_name, '')), 'p_name', 100);  -- as a spawn names it
  select t.spec into v_old from hwqueue.tenant t where t.name = p_name for no key update;
  v_new := hwqueue.read_object(coalesce(v_old, '{}') || hwqueue.json_object(p_changes, 'changes'), 'tenant',
    'changes');
  insert into hwqueue.tenant (name, spec, created_at) values (p_name, v_new, hwqueue.clock())
  on conflict (name) do update set spec = excluded.spec;
  perform hwqueue.note_event('tenant_set', format('tenant %s is %s', p_name, v_new ->> 'tier'),
    hwqueue.present('from', v_old) || jsonb_build_object('name', p_name, 'spec', v_new))
  where v_new is distinct from v_old;
  return v_new;
end
$$;

-- Drops the row of a tenant and returns whether it was there. Its leases that wait keep their tier.
-- Locks: its row. Raises: QHA03. Idempotent.
create or replace function hwqueue.drop_tenant(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_spec jsonb;
begin
  perform hwqueue.require_all_tenants();
  delete from hwqueue.tenant t where t.name = p_name returning t.spec into v_spec;
  perform hwqueue.note_event('tenant_dropped', format('tenant %s', p_name),
    jsonb_build_object('name', p_name, 'spec', v_spec)) where v_spec is not null;
  return v_spec is not null;
end
$$;

-- Returns the tenants that have a row, by name, or the one that p_name names. p_after: the last name of the
-- page before.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_tenants(p_after text default null, p_limit int default 100,
  p_name text default null)
returns table (name text, tier text, created_at timestamptz)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants(),
    hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_after');
  select t.name, t.spec ->> 'tier', t.created_at from hwqueue.tenant t
  where (p_after is null or t.name > p_after) and (p_name is null or t.name = p_name)
  order by t.name limit p_limit
$$;
