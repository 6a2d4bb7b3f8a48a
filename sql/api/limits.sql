-- Public: limits, which say how many leases run at once, how many start in a time, or whose turn it is.
--
-- Admins write limits; spawns and policies of queues name them. Operators look at lanes and close them;
-- workers close the one whose service has answered that it has had enough.
--
-- Read create_limit first. queues/limits reads specifications, claim/lanes lets leases through.

-- Creates a limit, and returns true; false if it is there with the same specification. p_spec: one of
-- {"slots": how many run at once}, {"rate": {"count", "per", "burst"}}: count start in each per, after a
-- pause up to burst at once; and {"fair": true}: each key has its turn, in proportion to "weights", {key:
-- weight}, with "*" for the others. "by": key, which leases name, or tenant: a lane for each, else for all.
-- "turn", of slots: after that long, 10 s, a lease that no node takes lets one of another placement go first.
-- Locks: its name. Raises: QHM02, QHM03, QHA01, QHA03.
create or replace function hwqueue.create_limit(p_name text, p_spec jsonb) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_read hwqueue.limit_rule;
  v_row hwqueue.limit_rule;
begin
  perform hwqueue.require_all_tenants();
  v_read := hwqueue.read_limit(p_name, p_spec);
  v_read.limit_id := nextval('hwqueue.limit_rule_limit_id_seq');
  v_read.created_at := hwqueue.clock();
  insert into hwqueue.limit_rule overriding system value select v_read.* on conflict do nothing;
  if found then
    perform hwqueue.note_event('limit_set', format('limit %s is new', p_name),
      jsonb_build_object('limit', p_name, 'spec', v_read.spec));
    return true;
  end if;
  v_row := hwqueue.find_limit(p_name);
  if v_row.spec <> v_read.spec then
    perform hwqueue.refuse('QHM02', format('limit %s exists with another specification', p_name),
      jsonb_build_object('limit', p_name, 'spec', v_row.spec),
      'change it with set_limit, or choose another name');
  end if;
  return false;
end
$$;

-- Changes the keys of a specification that p_changes has, null: resets them, and returns all of it. Of
-- weights those that are given change. Its kind and "by" stay: leases know their lanes by them. Those that
-- run stay when slots become fewer.
-- Locks: its row; with weights its lanes, skip locked: reap does the others. Raises: QHM01, and as
-- create_limit.
create or replace function hwqueue.set_limit(p_name text, p_changes jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_old hwqueue.limit_rule;
  v_new hwqueue.limit_rule;
begin
  perform hwqueue.require_all_tenants();
  perform 1 from hwqueue.limit_rule r where r.name = p_name and r.dropped_at is null for no key update;
  v_old := hwqueue.find_limit(p_name);
  v_new := hwqueue.read_limit(p_name, v_old.spec || hwqueue.json_object(p_changes, 'changes', 'QHM03')
    || case when jsonb_typeof(p_changes -> 'weights') = 'object' then jsonb_build_object('weights',
         coalesce(v_old.spec -> 'weights', '{}') || (p_changes -> 'weights')) else '{}' end);
  if (v_new.kind, v_new.spec ->> 'by') is distinct from (v_old.kind, v_old.spec ->> 'by') then
    perform hwqueue.refuse_field('QHM03', 'changes', 'would make another kind of limit of it',
      'create one with another name, and drop this one');
  end if;
  update hwqueue.limit_rule r
  set spec = v_new.spec, most = v_new.most, per = v_new.per, turn = v_new.turn,
    changed_from = -9223372036854775808  -- reap looks at its lanes
  where r.limit_id = v_old.limit_id;
  perform hwqueue.weigh_lanes(array(select l.lane_id from hwqueue.lane l where l.limit_id = v_old.limit_id))
  where v_new.spec -> 'weights' is distinct from v_old.spec -> 'weights';
  perform hwqueue.note_event('limit_set', format('limit %s is changed', p_name),
    jsonb_build_object('limit', p_name, 'spec', v_new.spec, 'from', v_old.spec))
  where v_new.spec <> v_old.spec;
  return v_new.spec;
end
$$;

-- Drops a limit and returns whether it was there. What waits in its lanes goes on without it.
-- Locks: its row. Raises: QHM03 while a queue names it, or for that of tenants' slots, QHA03. Idempotent.
create or replace function hwqueue.drop_limit(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_spec jsonb;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.refuse('QHM03', format('limit %s is in the policy of queue %s', p_name, q.name),
    jsonb_build_object('limit', p_name, 'queue', q.name), 'take it out of there: set_queue_policy')
  from hwqueue.queue q where p_name = any (q.limits) and q.dropped_at is null order by q.name;
  perform hwqueue.refuse_field('QHM03', 'p_name', 'is of the slots of tenants', 'take those: set_tenant')
  where p_name = 'tenant slots';
  update hwqueue.limit_rule r set dropped_at = hwqueue.clock(), changed_from = -9223372036854775808
  where r.name = p_name and r.dropped_at is null returning r.spec into v_spec;
  perform hwqueue.note_event('limit_dropped', format('limit %s', p_name),
    jsonb_build_object('limit', p_name, 'spec', v_spec)) where found;
  return v_spec is not null;
end
$$;

-- Closes the lane of a key of a limit, or its one lane, and returns until when: nothing passes it before,
-- but what has passed may still start. It is closed no shorter than it was; with neither p_until nor
-- p_retry_after operators open it. Of a limit by tenant either of p_key and p_tenant says which. p_lease: the
-- lane in which that lease stands, instead of both.
-- Locks: the lane. Raises: QHM01, QHM03 for a key too many or none, QHL04, QHA01, QHA03.
create or replace function hwqueue.throttle_limit(p_name text, p_key text default null,
  p_until timestamptz default null, p_retry_after interval default null, p_tenant text default '',
  p_lease uuid default null) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_rule hwqueue.limit_rule;
  v_now timestamptz := hwqueue.clock();
  v_until timestamptz := least(p_until, case when p_retry_after is not null
    then v_now + least(p_retry_after, interval '4000 days') end);
  v_lane_id bigint;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.refuse_field(r.code, r.field, r.words, r.hint)
  from (values
    (p_retry_after < '0' or v_until not between 'epoch' and v_now + interval '3650 days', 'QHA01', 'p_until',
      'must be a time of the next ten years', 'with neither p_until nor p_retry_after it is opened'),
    (v_until is null and not (hwqueue.has_login('hwqueue_operator') or hwqueue.has_login('hwqueue_admin')),
      'QHA01', 'p_until', 'is missing: only operators open a lane', 'give it, or p_retry_after'),
    (length(p_key) > 200, 'QHM03', 'p_key', 'has more than 200 characters', 'no lease has such a key')
  ) r(is_bad, code, field, words, hint)
  where r.is_bad;
  v_rule := hwqueue.find_limit(p_name);
  p_tenant := coalesce(hwqueue.json_text(to_jsonb(nullif(p_tenant, '')), 'p_tenant', 100), '');
  if v_rule.spec ->> 'by' <> 'key' then
    p_key := coalesce(p_key, nullif(p_tenant, ''));
    p_tenant := p_key;
  end if;
  if p_lease is not null then
    perform hwqueue.check_lease_of_node(p_lease);
    select i.lane_id, i.key, c.tenant into v_lane_id, p_key, p_tenant
    from hwqueue.find_lease(p_lease) l
    cross join unnest(l.lanes) i
    join hwqueue.placement_class c on c.class_id = l.class_id
    where i.limit_id = v_rule.limit_id;
  elsif (p_key is not null) = (v_rule.spec ? 'by') then
    v_lane_id := hwqueue.lane_id(v_rule, p_tenant, coalesce(p_key, ''));
  end if;
  if v_lane_id is null then
    perform hwqueue.refuse_field('QHM03', case when p_lease is null then 'p_key' else 'p_lease' end, case
      when p_lease is not null then 'has no limit ' || p_name
      when v_rule.spec ? 'by' then 'is missing: the limit has a lane for each'
      else 'must be null: the limit has one lane' end, 'hwqueue limit show NAME has its lanes');
  end if;
  perform pg_advisory_xact_lock(v_lane_id);  -- who makes the row leaves it to the other
  insert into hwqueue.lane as l (lane_id, limit_id, tenant, key, weight, closed_until)
  values (v_lane_id, v_rule.limit_id, case when v_rule.spec ? 'by' then p_tenant end, coalesce(p_key, ''),
    hwqueue.lane_weight(v_rule, coalesce(p_key, '')), v_until)
  on conflict (lane_id) do update
  set closed_until = case when v_until is not null then greatest(l.closed_until, v_until) end
  returning closed_until into v_until;
  insert into hwqueue.lane_change (lane_id, delta) values (v_lane_id, 0);
  perform hwqueue.note_event('limit_throttled', format('limit %s is %s', p_name, coalesce('closed until '
      || to_char(v_until at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'open again')),
    jsonb_strip_nulls(jsonb_build_object('limit', p_name, 'key', p_key, 'tenant', nullif(p_tenant, ''),
      'until', v_until, 'lease_id', p_lease)));
  return v_until;
end
$$;

-- Returns the limits by name. lanes: keys that are in use, or were lately, counted to 10,001; of one with
-- more the other figures are of these alone. used: what is through and has not ended, for kind fair what
-- stands in line. parked: what waits, counted to 10,001. oldest_at: of the leases that are first in line in
-- their lanes, when the first one was spawned. closed_until: of the lane that is closed longest. opens_at: of
-- a rate, when the next one that waits may start, at the earliest. queues: whose policy names it.
-- Raises: QHA03.
create or replace function hwqueue.list_limits()
returns table (name text, kind text, spec jsonb, lanes bigint, used bigint, parked bigint,
  oldest_at timestamptz, closed_until timestamptz, opens_at timestamptz, queues text[],
  created_at timestamptz)
language sql volatile security definer set search_path = pg_catalog, pg_temp
  -- generic plans by index: a table that is small now may be large before the session ends
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
  select hwqueue.require_all_tenants();
  select r.name, r.kind::text, r.spec, u.lanes, u.used, (
      select count(*) from (
        select from unnest(u.waiting) w(lane_id)
        cross join lateral (select from hwqueue.scheduled s where s.lane_id = w.lane_id offset 0) p
        limit 10001) c),
    u.oldest_at, u.closed_until, case when r.kind = 'rate' then u.opens_at end, array(
      select q.name from hwqueue.queue q where r.name = any (q.limits) and q.dropped_at is null order by 1),
    r.created_at
  from (select hwqueue.clock() as now) n
  cross join hwqueue.limit_rule r
  cross join lateral (
    select count(*) as lanes, coalesce(sum(hwqueue.lane_used(l.lane)), 0)::bigint as used,
      min(f.created_at) as oldest_at, max((l.lane).closed_until) filter (
        where (l.lane).closed_until > n.now) as closed_until,
      min(greatest((l.lane).tat, (l.lane).closed_until, n.now)) filter (
        where f.lease_id is not null) as opens_at,
      array_agg((l.lane).lane_id) filter (where f.lease_id is not null) as waiting
    from (select x as lane from hwqueue.lane x where x.limit_id = r.limit_id order by x.lane_id limit 10001) l
    left join lateral (
      select s.lease_id, (select x.created_at from hwqueue.lease x where x.lease_id = s.lease_id)
      from hwqueue.scheduled s
      where s.lane_id = (l.lane).lane_id order by s.tier, s.rank, s.turn limit 1) f on true) u
  where r.dropped_at is null order by r.name
$$;

-- Returns lanes of a limit, of the first 10,001: those with most parked leases first (p_order parked), or
-- where the first was parked first (wait); without pages, as that changes. parked: counted to 10,001, or to
-- 1 + 100,000 / p_limit; of lanes with more those come first whose first was parked first. most: what used
-- may be.
-- lease_id: the first in line; since: when it was spawned. opens_at: of a rate, when the next may start.
-- Raises: QHM01, QHA01, QHA03.
create or replace function hwqueue.limit_lanes(p_name text, p_order text default 'parked',
  p_limit int default 100)
returns table (tenant text, key text, weight double precision, used bigint, most int, parked bigint,
  lease_id uuid, since timestamptz, closed_until timestamptz, opens_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  -- generic plans by index: a table that is small now may be large before the session ends
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_rule hwqueue.limit_rule;
  v_now timestamptz := hwqueue.clock();
  v_most bigint;
begin
  perform hwqueue.require_all_tenants(), hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'ask for fewer'),
    hwqueue.json_choice(to_jsonb(p_order), 'p_order', array['parked', 'wait']);
  v_rule := hwqueue.find_limit(p_name);
  v_most := 100000 / greatest(10, (
    select count(*) from (select from hwqueue.lane x where x.limit_id = v_rule.limit_id limit 10001) c));
  return query
    select coalesce((l.lane).tenant, ''), (l.lane).key, (l.lane).weight::text::float8,
      hwqueue.lane_used(l.lane), hwqueue.lane_most(v_rule, l.lane), p.parked, f.lease_id, f.created_at,
      case when (l.lane).closed_until > v_now then (l.lane).closed_until end,
      case when v_rule.kind = 'rate' then greatest((l.lane).tat, (l.lane).closed_until, v_now) end
    from (
      select k.lane, w.*
      from (select x as lane from hwqueue.lane x
            where x.limit_id = v_rule.limit_id order by x.lane_id limit 10001) k
      cross join lateral (
        select case when p_order = 'parked' then count(*) end as parked, (array_agg(c.turn))[1] as first
        from (select s.turn from hwqueue.scheduled s where s.lane_id = (k.lane).lane_id
              order by s.tier, s.rank, s.turn limit case p_order when 'wait' then 1 else v_most end) c) w
      order by w.parked desc, w.first limit p_limit) l
    cross join lateral (
      select count(*) as parked
      from (select from hwqueue.scheduled s where s.lane_id = (l.lane).lane_id
            limit 1 + 100000 / greatest(10, p_limit)) c) p
    left join lateral (
      select h.lease_id, (select x.created_at from hwqueue.lease x where x.lease_id = h.lease_id)
      from (select s.lease_id from hwqueue.scheduled s where s.lane_id = (l.lane).lane_id
            order by s.tier, s.rank, s.turn limit 1) h) f on true
    order by case when p_order = 'parked' then p.parked end desc, l.first;
end
$$;
