-- Limits: what a specification says, and the lanes that a lease of a limit stands in.
--
-- api/limits calls read_limit, spawns call read_limits. Example: {"slots": 2, "by": "key"} lets two leases of
-- each key run at once. A spawn with {"limits": {"per_user": "u42"}} gets the lane of u42, which is the line
-- of that key; claim/lanes lets leases through it. A limit without keys has one lane.
--
-- Invariant: the id of a lane is a hash of its limit, tenant and key. So a spawn looks up no lane and writes
-- none. A lane with a key is of one tenant, so no tenant stands in another one's line.

-- Returns the limit of a name.
-- Raises: QHM01.
create or replace function hwqueue.find_limit(p_name text) returns hwqueue.limit_rule
language plpgsql volatile
as $$
declare
  v_row hwqueue.limit_rule;
begin
  select r.* into v_row from hwqueue.limit_rule r where r.name = p_name and r.dropped_at is null;
  if not found then
    perform hwqueue.refuse('QHM01', format('no limit is named %s',
        coalesce(to_json(left(p_name, 100))::text, 'null')),
      jsonb_build_object('limit', left(p_name, 100)), 'list them: hwqueue limit list');
  end if;
  return v_row;
end
$$;

-- Reads a specification. The row has it in normal form, and what claims decide by; it lacks the id. weights:
-- by key, "*" of all others.
-- Raises: QHM03, QHA01.
create or replace function hwqueue.read_limit(p_name text, p_spec jsonb) returns hwqueue.limit_rule
language plpgsql stable
as $$
declare
  v_weights jsonb := hwqueue.json_object(p_spec -> 'weights', 'spec.weights', 'QHM03');  -- "*": of all others
  v_spec jsonb := hwqueue.read_object(p_spec, 'limit', 'spec', 'QHM03') || hwqueue.present('weights', (
    select jsonb_object_agg(w.key, trim_scale(hwqueue.json_number(w.value,
      'spec.weights.' || left(w.key, 100), 0.01, 1000, 'QHM03')))
    from jsonb_each(v_weights) w where w.value <> 'null'));
  v_kinds text[] := array(
    select k from unnest(array['slots', 'rate', 'fair']) k where v_spec -> k <> 'false');
  v_rate jsonb := v_spec -> 'rate';
begin
  perform hwqueue.check_name(p_name, 'p_name');
  perform hwqueue.refuse_field('QHM03', r.field, r.words, r.hint)
  from (values
    (cardinality(v_kinds) <> 1, 'spec', 'must have one of slots, rate and fair',
      'for example {"slots": 20}, {"rate": {"count": 600, "per": "1 min"}}, or {"fair": true, "by": "key"}'),
    (not v_rate ?& array['count', 'per'], 'spec.rate', 'must have count and per',
      'for example {"count": 600, "per": "1 min"}'),
    -- so that no time of a lane is out of range
    ((v_rate ->> 'burst')::numeric * (v_rate ->> 'per')::numeric > 315360000 * (v_rate ->> 'count')::numeric,
      'spec.rate.burst', 'takes more than 3650 days to come back', 'give fewer'),
    (v_kinds[1] = 'fair' and not v_spec ? 'by', 'spec.by', 'must say between whom it is fair',
      'give key: leases name theirs, or tenant'),
    ((select count(*) from jsonb_object_keys(v_weights)) > 1000, 'spec.weights', 'has more than 1000 keys',
      'name some, and "*"'),
    ((select max(length(k)) from jsonb_object_keys(v_weights) k) > 200, 'spec.weights',
      'has a key of more than 200 characters', 'no lease has such a key'),
    (v_kinds[1] <> 'fair' and v_spec ? 'weights', 'spec.weights', 'is of fair limits alone', 'leave it out'),
    (v_kinds[1] <> 'slots' and v_spec ? 'turn', 'spec.turn', 'is of limits with slots alone', 'leave it out')
  ) r(is_bad, field, words, hint)
  where r.is_bad;
  if v_rate is not null then
    v_rate := v_rate || jsonb_build_object('burst',
      coalesce((v_rate ->> 'burst')::int, greatest(2, (v_rate ->> 'count')::int / 10)));
    v_spec := v_spec || jsonb_build_object('rate', v_rate);
  end if;
  return jsonb_populate_record(null::hwqueue.limit_rule, jsonb_build_object('name', p_name,
    'kind', v_kinds[1], 'spec', v_spec, 'most', coalesce(v_spec -> 'slots', v_rate -> 'burst', '4'),
    -- rounded up: never faster
    'per', make_interval(secs => (ceil((v_rate ->> 'per')::numeric * 1000000 / (v_rate ->> 'count')::int)
      / 1000000)::float8),
    'turn', case v_kinds[1] when 'slots'
      then make_interval(secs => coalesce(v_spec -> 'turn', '10')::float8) end));
end
$$;

-- Returns the row that says what a tenant may have: its own, or that of the tenant *. Nulls: there is none.
create or replace function hwqueue.find_tenant(p_tenant text) returns hwqueue.tenant
language plpgsql stable
as $$
declare
  v_row hwqueue.tenant;
begin
  if p_tenant <> '' then
    select t.* into v_row from hwqueue.tenant t where t.name = p_tenant;
    if not found then
      select t.* into v_row from hwqueue.tenant t where t.name = '*';
    end if;
  end if;
  return v_row;
end
$$;

-- Returns the limits of a spawn that it need not name: those of its queue, and the slots of its tenant.
create or replace function hwqueue.limits_of(p_of_queue text[], p_has_slots boolean) returns text[]
language sql immutable
as $$
  select case when p_has_slots then p_of_queue || '{tenant slots}'::text[] else p_of_queue end
$$;

-- Returns the weight of a lane. Without weights of its own a limit by tenant has those of the tenants. The
-- limit of their slots (by quota) has one slot for each part of a weight, and lets through whom none bounds.
create or replace function hwqueue.lane_weight(p_rule hwqueue.limit_rule, p_key text) returns real
language plpgsql stable
as $$
declare
  v_by text := p_rule.spec ->> 'by';
begin
  if v_by = 'quota' or v_by = 'tenant' and not p_rule.spec ? 'weights' then
    return coalesce(((hwqueue.find_tenant(p_key)).spec ->> case v_by when 'quota' then 'slots' else 'weight'
      end)::real, case v_by when 'quota' then 1000000000 else 1 end);
  end if;
  return coalesce(p_rule.spec -> 'weights' -> p_key, p_rule.spec -> 'weights' -> '*', '1')::real;
end
$$;

-- Writes the weights of lanes that their limits and tenants say now. Returns the first that it could not.
-- Locks: lanes, skip locked. Idempotent.
create or replace function hwqueue.weigh_lanes(p_lanes bigint[]) returns bigint
language plpgsql volatile
as $$
begin
  update hwqueue.lane k set weight = w.weight
  from (select x.lane_id, hwqueue.lane_weight(r, x.key) as weight
        from hwqueue.lane x join hwqueue.limit_rule r on r.limit_id = x.limit_id
        where x.lane_id = any (p_lanes) and x.weight <> hwqueue.lane_weight(r, x.key)
        order by x.lane_id for no key update of x skip locked) w
  where k.lane_id = w.lane_id;
  return (
    select min(x.lane_id) from hwqueue.lane x join hwqueue.limit_rule r on r.limit_id = x.limit_id
    where x.lane_id = any (p_lanes) and x.weight <> hwqueue.lane_weight(r, x.key));
end
$$;

-- Lets upkeep do what other weights or slots of a tenant change: it looks at the lanes. Nothing is written to
-- these here, so an open call holds up nobody who closes or folds one.
-- Locks: limits.
create or replace function hwqueue.weigh_tenant(p_old jsonb, p_new jsonb) returns void
language plpgsql volatile
as $$ begin
  if (p_old -> 'slots', p_old -> 'weight') is distinct from (p_new -> 'slots', p_new -> 'weight') then
    insert into hwqueue.limit_rule (name, kind, spec, most, turn, created_at)
    select 'tenant slots', 'slots', '{"by": "quota"}', 1, '10 seconds', hwqueue.clock() where p_new ? 'slots'
    on conflict do nothing;
    update hwqueue.limit_rule r set changed_from = -9223372036854775808
    where r.spec ->> 'by' in ('quota', 'tenant') and r.dropped_at is null;
  end if;
end $$;

-- Returns the id of a lane: 62 bits of a hash, and in the low two its kind. What is hashed cannot be read in
-- two ways, so no key of a tenant makes the lane of another one.
create or replace function hwqueue.lane_id(p_rule hwqueue.limit_rule, p_tenant text, p_key text)
returns bigint
language sql stable
as $$
  select (('x' || left(encode(sha256(convert_to(concat(p_rule.limit_id, ' ', case when p_rule.spec ? 'by'
      then length(p_tenant) || ' ' || p_tenant end, p_key), 'UTF8')), 'hex'), 16))
    ::bit(64)::bigint & -4) | case p_rule.kind when 'slots' then 0 when 'fair' then 1 else 2 end
$$;

-- Returns the lanes of a lease in the order in which it passes them: that of its key, of its tenant's slots,
-- of its tenant, and the one that all share; null: it has none. p_limits: its option, a list of names or
-- {name: key}; p_of_queue: the names of those that it need not name (limits_of).
-- Inlined: one statement reads those of a batch.
-- Raises: QHM01, QHM03.
create or replace function hwqueue.read_limits(p_limits jsonb, p_of_queue text[], p_tenant text)
returns table (lanes hwqueue.lane_ref[])
language sql stable
as $$
  select array_agg(case when s.is_extra or (s.lane).key is null
      then hwqueue.refuse_limit(s.name, s.key, s.lane_by, s.of_queue) else s.lane end)
  from (
    select n.*, r.lane, r.lane_by,
           row_number() over (partition by r.lane_by order by n.of_queue, n.name) > 1 as is_extra
    from (
      select i.key as name, (p_limits ? i.key) is not true as of_queue,
             hwqueue.json_text(i.value, 'options.limits.' || left(i.key, 100), 200, 'QHM03') as key
      from (
        select p_of_queue || case when jsonb_typeof(p_limits) = 'array'
            then (jsonb_populate_record(null::hwqueue.queue, jsonb_build_object('limits',
              hwqueue.json_texts(p_limits, 'options.limits', 3, 100, 'QHM03')))).limits end as names) w
      cross join lateral jsonb_each(
        jsonb_object(w.names, array_fill(null::text, array[cardinality(w.names)]))
        || coalesce(case when jsonb_typeof(p_limits) is distinct from 'array'
          then hwqueue.json_object(p_limits, 'options.limits', 'QHM03') end, '{}')) i
      offset 0) n
    left join lateral (  -- fences (offset 0): by name, whatever the statistics say; each value once
      select x.spec ->> 'by' as lane_by, row(hwqueue.lane_id(x, p_tenant, k.key), x.limit_id, k.key,
          n.of_queue)::hwqueue.lane_ref as lane
      from hwqueue.limit_rule x
      cross join lateral (
        select case when x.spec ->> 'by' = 'key' then n.key
            when n.key is null then case when x.spec ? 'by' then p_tenant else '' end end as key
        offset 0) k
      where x.name = n.name and x.dropped_at is null offset 0) r on true
    order by r.lane_by, n.of_queue, n.name) s  -- key, quota, tenant, null
$$;

-- Refuses a limit that a lease, or all of a queue, cannot have.
-- Raises: QHM01, QHM03.
create or replace function hwqueue.refuse_limit(p_name text, p_key text, p_by text, p_of_queue boolean)
returns hwqueue.lane_ref
language plpgsql volatile
as $$
declare
  v_field text := case when p_of_queue then 'policy.limits' else 'options.limits.' || left(p_name, 100) end;
begin
  perform hwqueue.find_limit(p_name);
  if p_by = 'key' and p_key is null then
    perform hwqueue.refuse_field('QHM03', v_field, format('names %s, which has a lane for each key', p_name),
      format('give the key: {"limits": {"%s": "u42"}}', p_name));
  elsif p_key is not null and p_by is distinct from 'key' then
    perform hwqueue.refuse_field('QHM03', v_field, 'has a key, and the limit has none', 'give null');
  end if;
  perform hwqueue.refuse_field('QHM03', v_field, 'is one limit too many of its sort',
    'a lease has one by key, one by tenant and one that all share, those of its queue counted');
  return null;
end
$$;

-- Returns how many leases a lane has let through, with those that are not counted in its row yet.
create or replace function hwqueue.lane_used(p_lane hwqueue.lane) returns bigint
language plpgsql stable
as $$ begin return
  p_lane.used + coalesce((
    select sum(c.delta) from hwqueue.lane_change c where c.lane_id = p_lane.lane_id), 0);
end $$;

-- Returns how many leases a lane lets through at a time.
create or replace function hwqueue.lane_most(p_rule hwqueue.limit_rule, p_lane hwqueue.lane) returns int
language sql immutable
as $$
  select greatest(1, round(p_lane.weight * p_rule.most))::int  -- without weights: 1
$$;

-- Returns the lanes of a lease that does not wait for others than its turn, and refuses those, its own or the
-- queue's, of one that does. p_what: what it is; null: none such.
-- Raises: QHM03.
create or replace function hwqueue.refuse_lanes(p_lanes hwqueue.lane_ref[], p_what text)
returns hwqueue.lane_ref[]
language plpgsql volatile
as $$
begin
  if p_lanes is not null and p_what is not null then
    perform hwqueue.refuse_field('QHM03', case when (p_lanes[1]).of_queue then 'p_queue' else 'options.limits'
      end, format('has limits, in which %s takes no part', p_what),
      'leave limits out, or use a queue without any, and a tenant without slots; rules of spread say how '
      'many run in a place');
  end if;
  return p_lanes;
end
$$;
