-- Public: tenants, in which order their leases run, how much of what they may have, and the logins that are
-- bound to them.
--
-- Admins write tenants; spawns read their rows (spawn/read admit_tenant), lanes of limits by tenant have
-- their weights and slots (queues/limits lane_weight), and reap counts the rest (upkeep/lanes count_usage).
-- Example: a lease of tenant lab, a scavenger, runs where no lease of an earlier tier wants the room. A
-- tenant needs no row: without one it is guaranteed, and nothing bounds it.
-- A bound login is a member of hwqueue_tenants, and calls for the tenants that it was granted (base/rights).
-- It may call nothing else: with the membership it loses every function, so a grant that outlives the login
-- opens nothing.
--
-- Read set_tenant first.

-- Changes the keys of a tenant that p_changes has, null: resets them, and returns all of it; one without a
-- row gets it. tier: guaranteed, before best_effort, before scavenger, strictly: a priority never crosses
-- tiers. It is that of leases spawned from now on. weight: its share in fair limits by tenant that have no
-- weights. slots: how many of its leases may run at once, of those spawned while it has slots. pending,
-- classes: how many may wait, and how many placement classes it may have; spawns: {count, per, burst}, how
-- many it may spawn in a time; reap counts, and spawns of more are refused (QHT03). shared_with: tenants
-- whose leases may ask about its leases in their selectors. p_name '*': all tenants without a row, each for
-- itself; leases of no tenant are guaranteed.
-- Locks: its row, limits by tenant. Raises: QHA01, QHA03.
create or replace function hwqueue.set_tenant(p_name text, p_changes jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_old jsonb;
  v_new jsonb;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.json_text(to_jsonb(coalesce(p_name, '')), 'p_name', 100);  -- as a spawn names it
  insert into hwqueue.tenant as t (name, spec, created_at) values (p_name, '{}', hwqueue.clock())
  on conflict (name) do update set spec = t.spec  -- locks what another session has just written
  returning t.spec into v_old;
  v_new := hwqueue.read_object(v_old || hwqueue.json_object(p_changes, 'changes'), 'tenant', 'changes');
  if v_new ? 'spawns' then
    perform hwqueue.refuse_field('QHA01', 'changes.spawns', 'must have count and per',
      'for example {"count": 100, "per": "1 s"}') where not v_new -> 'spawns' ?& array['count', 'per'];
    v_new := jsonb_set(v_new, '{spawns,burst}',
      coalesce(v_new #> '{spawns,burst}', v_new #> '{spawns,count}'));
  end if;
  update hwqueue.tenant t set spec = v_new where t.name = p_name;
  perform hwqueue.weigh_tenant(v_old, v_new);
  perform hwqueue.note_event('tenant_set', format('tenant %s is of tier %s', p_name, v_new ->> 'tier'),
    hwqueue.present('from', nullif(v_old, '{}')) || jsonb_build_object('name', p_name, 'spec', v_new))
  where v_new is distinct from v_old;
  return v_new;
end
$$;

-- Drops the row of a tenant and what logins were granted of it, and returns whether there was any. Its leases
-- that wait keep their tier, and go on by what the row '*' says.
-- Locks: its rows; as set_tenant. Raises: QHA03. Idempotent.
create or replace function hwqueue.drop_tenant(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_spec jsonb;
  v_logins text[];
begin
  perform hwqueue.require_all_tenants();
  delete from hwqueue.tenant t where t.name = p_name returning t.spec into v_spec;
  perform hwqueue.weigh_tenant(v_spec, null) where v_spec is not null;
  with gone as (
    delete from hwqueue.tenant_login l where l.tenant = p_name returning l.login
  )
  select array_agg(g.login order by g.login) into v_logins from gone g;
  if v_spec is null and v_logins is null then
    return false;
  end if;
  perform hwqueue.note_event('tenant_dropped', format('tenant %s', p_name), jsonb_strip_nulls(
    jsonb_build_object('name', p_name, 'spec', v_spec, 'logins', v_logins)));
  return true;
end
$$;

-- Grants a bound login a tenant, and returns its rights there, which replace earlier ones: read, and of spawn
-- and operate those that p_rights has. spawn: leases, gangs, everywhere tasks and runs. operate: change,
-- cancel, requeue, signal and delete them. A call that needs a right needs it for each tenant that the login
-- calls for, which it narrows with hwqueue.tenant.
-- Locks: its row. Raises: QHA01 for '*' and for a login that may call other things, too; QHA03. Idempotent.
create or replace function hwqueue.grant_tenant(p_login text, p_tenant text, p_rights text[] default '{read}')
returns text[]
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_rights text[];
begin
  perform hwqueue.require_all_tenants(),
    hwqueue.json_text(to_jsonb(coalesce(p_tenant, '')), 'p_tenant', 100);
  perform hwqueue.refuse_field('QHA01', 'p_tenant', 'must be one tenant, got "*"', 'grant each by its name')
  where p_tenant = '*';
  perform hwqueue.json_choice(to_jsonb(r), 'p_rights', array['read', 'spawn', 'operate'])
  from unnest(p_rights) r;
  if not exists (
    select from pg_catalog.pg_roles r
    where r.rolname = p_login and pg_has_role(r.oid, to_regrole('hwqueue_tenants'), 'member')
      and not has_function_privilege(r.oid, 'hwqueue.reap(int, interval)', 'execute')) then
    perform hwqueue.refuse_field('QHA01', 'p_login', format('must be a login with role hwqueue_tenants, and '
      'without hwqueue_worker, hwqueue_operator and hwqueue_admin, got %s', to_json(p_login)),
      'first: create role NAME login in role hwqueue_tenants');
  end if;
  v_rights := array(select r from unnest(array['read', 'spawn', 'operate']) with ordinality w(r, n)
                    where r = 'read' or r = any (p_rights) order by n);
  insert into hwqueue.tenant_login as l (login, tenant, rights, granted_at)
  values (p_login, p_tenant, v_rights, hwqueue.clock())
  on conflict (login, tenant) do update set rights = excluded.rights, granted_at = excluded.granted_at
  where l.rights <> excluded.rights;
  if found then
    perform hwqueue.note_event('tenant_granted',
      format('login %s may %s for tenant %s', p_login, array_to_string(v_rights, ', '), p_tenant),
      jsonb_build_object('name', p_tenant, 'login', p_login, 'rights', v_rights));
  end if;
  return v_rights;
end
$$;

-- Takes a tenant from a login, and returns whether it had it. One that has none left sees and does nothing.
-- Locks: its row. Raises: QHA03. Idempotent.
create or replace function hwqueue.revoke_tenant(p_login text, p_tenant text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  delete from hwqueue.tenant_login l where l.login = p_login and l.tenant = p_tenant;
  if found then
    perform hwqueue.note_event('tenant_revoked', format('login %s, tenant %s', p_login, p_tenant),
      jsonb_build_object('name', p_tenant, 'login', p_login));
  end if;
  return found;
end
$$;

-- Returns the tenants that have a row or a login, by name, or the one that p_name names. Without a row there
-- are no more than its logins. usage: {name: {"pending", "classes", "spawns"}}, of one with such a quota what
-- it had at counted_at; of '*' of those without a row that have all they may, or have spawned. logins:
-- {"login": [its rights]}. p_after: the last name of the page before.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_tenants(p_after text default null, p_limit int default 100,
  p_name text default null)
returns table (name text, tier text, created_at timestamptz, spec jsonb, usage jsonb, counted_at timestamptz,
  logins jsonb)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants(),
    hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_after');
  select n.name, t.spec ->> 'tier', t.created_at, coalesce(t.spec, '{}'), coalesce(t.usage, '{}'),
         t.counted_at, (
      select coalesce(jsonb_object_agg(l.login, l.rights), '{}')
      from hwqueue.tenant_login l where l.tenant = n.name)
  from (select x.name from hwqueue.tenant x union select y.tenant from hwqueue.tenant_login y) n
  left join hwqueue.tenant t on t.name = n.name
  where (p_after is null or n.name > p_after) and (p_name is null or n.name = p_name)
  order by n.name limit p_limit
$$;

-- Returns what tenants use, the busiest first; tenant '': leases of none. spec: what binds it, its own row or
-- that of '*'. pending: what waits, parked: of that what waits for a slot. started: claims that began in the
-- last hour, or, where more ended, in the minutes that have the last 20,000 of them; of leases that are kept.
-- share: of what started of its tier; due: its weight as a part of those of the tenants of its tier that
-- started some or wait. It reads all that waits and runs.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.tenant_usage(p_name text default null, p_limit int default 100)
returns table (tenant text, tier text, spec jsonb, pending bigint, parked bigint, running bigint,
  classes bigint, started bigint, since timestamptz, share double precision, due double precision)
language sql volatile security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set jit = off set plan_cache_mode = force_custom_plan
as $$
  select hwqueue.require_all_tenants(), hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'ask for fewer');
  with mark as materialized (
    select coalesce(min(t.minute) filter (where t.total <= 20000), max(t.minute)) as since
    from (select m.minute, sum(m.claims) over (order by m.minute desc) as total
          from hwqueue.throughput() m) t
  )
  select * from (
    select c.tenant, c.tier, c.spec, c.pending, c.parked, c.running, c.classes, c.started, m.since,
           c.started / nullif(sum(c.started) over p, 0)::double precision,
           w.weight / nullif(sum(w.weight) over p, 0)
    from mark m
    cross join lateral hwqueue.tenant_counts(m.since) c
    cross join lateral (
      select coalesce((c.spec -> 'weight')::double precision, 1) * sign(c.started + c.pending)) w(weight)
    window p as (partition by c.tier)) r
  where p_name is null or r.tenant = p_name
  order by r.running + r.pending desc, r.tenant limit p_limit
$$;

-- Returns which claims were asked to stop for leases of earlier tiers, the newest first, of one lease or one
-- tenant on either side, of the last 10,000 that were asked for any reason. Nulls: the lease or gang is gone.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.list_preemptions(p_lease uuid default null, p_tenant text default null,
  p_limit int default 100)
returns table (at timestamptz, stop_by timestamptz, node_id uuid, lease_id uuid, tenant text, tier text,
  for_lease uuid, for_gang uuid, for_tenant text, for_tier text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off  -- leases by key
as $$
  select hwqueue.require_all_tenants(), hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'ask for fewer');
  select e.at, (e.detail ->> 'stop_by')::timestamptz, e.node_id, e.lease_id, c.tenant,
         hwqueue.tier_name(l.tier), w.lease_id, w.gang_id, coalesce(k.tenant, g.tenant),
         hwqueue.tier_name(coalesce(f.tier, g.tier))
  from hwqueue.event_page(null, null, 'claim_stop_requested', jsonb_populate_record(null::hwqueue.event,
    jsonb_build_object('lease_id', p_lease)), null, null, 10000) e
  left join hwqueue.lease l on l.lease_id = e.lease_id
  left join hwqueue.placement_class c on c.class_id = l.class_id
  cross join lateral (
    select (e.detail ->> 'lease_id')::uuid as lease_id, (e.detail ->> 'gang_id')::uuid as gang_id) w
  left join hwqueue.lease f on f.lease_id = w.lease_id
  left join hwqueue.placement_class k on k.class_id = f.class_id
  left join hwqueue.gang g on g.gang_id = w.gang_id
  where e.detail ->> 'reason' = 'tier_preempted'
    and (p_tenant is null or p_tenant in (c.tenant, k.tenant, g.tenant))
  order by e.event_id desc limit p_limit
$$;
