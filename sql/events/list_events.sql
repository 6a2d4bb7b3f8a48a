-- Who did what. Without p_after the newest first; with it what follows that event, oldest first: a follower passes the highest id it has
-- seen (0 at the very start) and misses nothing, however transactions overlap. For that it is shown only what nothing can come before any
-- more: events of transactions that began before the oldest one that is still open anywhere on the server.
-- p_filter: {"code": text or list, "queue", "node", "lease", "class", "actor", "since", "until", "before", "final"}. before: an event's id, for
-- the next page of the newest; final: true leaves out what a follower is not shown yet, so that following can go on from the first row.
-- A filter by a subject, code or actor reads what it finds; since and until read the days between them (the order is by id), 15 at most.
-- Locks: none. Raises: QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.list_events(p_after bigint default null, p_filter jsonb default '{}', p_limit int default 100, p_shard int default 0)
returns table (event_id bigint, at timestamptz, code text, lease_id uuid, node_id uuid, queue text, class_id bigint, actor text, message text,
               detail jsonb, shard_id int, login text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_filter hwqueue.event;
  v_codes text[];
  v_since timestamptz;
  v_until timestamptz;
  v_below bigint;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_object(p_filter, array['code', 'queue', 'node', 'lease', 'class', 'actor', 'since', 'until', 'before', 'final'], 'filter');
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_after, or "before"');
  v_codes := hwqueue.event_codes(p_filter -> 'code');
  v_filter.queue := hwqueue.json_text(p_filter -> 'queue', 'filter.queue', 100);
  v_filter.node_id := hwqueue.json_uuid(p_filter -> 'node', 'filter.node');
  v_filter.lease_id := hwqueue.json_uuid(p_filter -> 'lease', 'filter.lease');
  v_filter.class_id := hwqueue.json_integer(p_filter -> 'class', 'filter.class', 0, 9223372036854775807);
  v_filter.actor := hwqueue.json_text(p_filter -> 'actor', 'filter.actor', 200);
  v_since := hwqueue.json_time(p_filter -> 'since', 'filter.since');
  v_until := hwqueue.json_time(p_filter -> 'until', 'filter.until');
  v_below := hwqueue.json_integer(p_filter -> 'before', 'filter.before', 0, 9223372036854775807);
  if p_after is not null or coalesce(hwqueue.json_boolean(p_filter -> 'final', 'filter.final'), false) then
    -- least passes over a null
    v_below := least(v_below, (
      select s.event_base + (pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 20) from hwqueue.shard s where s.shard_id = p_shard));
  end if;
  if p_after is not null then  -- followers ask often, and mostly there is nothing: a look that need not be planned each time
    perform 1 from hwqueue.event e where e.shard_id = p_shard and e.event_id > p_after order by e.event_id limit 1;
    if not found then
      return;
    end if;
  end if;
  return query
    select e.event_id, e.at, e.code, e.lease_id, e.node_id, e.queue, e.class_id, e.actor, e.message, e.detail, e.shard_id, e.login
    from unnest(v_codes) c(code)
    cross join lateral hwqueue.event_page(p_after, v_below, c.code, v_filter, v_since, v_until, p_limit, p_shard) e
    order by case when p_after is null then -e.event_id else e.event_id end limit p_limit;
end
$$;

-- The codes to look for, each once; one null: any. Raises: QHA01.
create or replace function hwqueue.event_codes(p_codes jsonb) returns text[]
language plpgsql immutable
as $$
begin
  if jsonb_typeof(p_codes) is distinct from 'array' then
    return array[hwqueue.json_text(p_codes, 'filter.code', 100)];
  end if;
  if jsonb_array_length(p_codes) not between 1 and 100 then
    perform hwqueue.refuse_value(p_codes, 'filter.code', 'text, or a list of 1 to 100 texts', 'leave it out for all codes', 'QHA01');
  end if;
  return array(
    select distinct coalesce(hwqueue.json_text(c.value, format('filter.code[%s]', c.ordinality - 1), 100), '')
    from jsonb_array_elements(p_codes) with ordinality c);
end
$$;

-- Events of one code (null: any) in p_after's direction. Planned for the filter at hand: what is not asked for is then not there, and every
-- other column has an index that is in order.
create or replace function hwqueue.event_page(p_after bigint, p_below bigint, p_code text, p_filter hwqueue.event, p_since timestamptz,
                                              p_until timestamptz, p_limit int, p_shard int) returns setof hwqueue.event
language plpgsql volatile set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_slots smallint[] := hwqueue.event_slots(p_since, p_until, hwqueue.clock());
begin
  if p_after is not null then
    return query
      select e.* from hwqueue.event e
      where e.shard_id = p_shard and e.event_id > p_after and e.event_id < p_below
        and (p_code is null or e.code = p_code) and (p_filter.queue is null or e.queue = p_filter.queue)
        and (p_filter.node_id is null or e.node_id = p_filter.node_id) and (p_filter.lease_id is null or e.lease_id = p_filter.lease_id)
        and (p_filter.class_id is null or e.class_id = p_filter.class_id) and (p_filter.actor is null or e.actor = p_filter.actor)
        and (p_since is null or e.at >= p_since) and (p_until is null or e.at < p_until) and (v_slots is null or e.slot = any (v_slots))
      order by e.event_id limit p_limit;
  else
    return query
      select e.* from hwqueue.event e
      where e.shard_id = p_shard and (p_below is null or e.event_id < p_below)
        and (p_code is null or e.code = p_code) and (p_filter.queue is null or e.queue = p_filter.queue)
        and (p_filter.node_id is null or e.node_id = p_filter.node_id) and (p_filter.lease_id is null or e.lease_id = p_filter.lease_id)
        and (p_filter.class_id is null or e.class_id = p_filter.class_id) and (p_filter.actor is null or e.actor = p_filter.actor)
        and (p_since is null or e.at >= p_since) and (p_until is null or e.at < p_until) and (v_slots is null or e.slot = any (v_slots))
      order by e.event_id desc limit p_limit;
  end if;
end
$$;

-- The partitions that hold the days between two times, of those that the ring holds at all; null: any may.
create or replace function hwqueue.event_slots(p_since timestamptz, p_until timestamptz, p_now timestamptz) returns smallint[]
language sql stable
as $$
  select case when p_since is not null or p_until is not null then array(
    select distinct (d & 15)::smallint
    from generate_series(hwqueue.event_day(greatest(p_since, p_now - interval '15 days')), hwqueue.event_day(least(p_until, p_now))) d) end
$$;
