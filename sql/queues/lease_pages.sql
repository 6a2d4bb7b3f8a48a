-- Pages of the leases that a filter means, for calls that change many (api/bulk).
--
-- Example: requeue_leases with {"queue": "renders", "state": "failed", "labels": {"film": "7"}} reads 1,000
-- failed leases of the queue in the order of outcome_finished, keeps those with the label, and locks them.
-- The cursor that it returns says where the next call goes on.
--
-- A page is read in the order of an index of the table that holds the state, so a call reads p_limit rows
-- of each state, however few of them the filter means. Entries written after the first call are not met:
-- the cursor holds the last position and the time of that call. Otherwise a lease that fails again would
-- be requeued for ever.
--
-- Scheduled entries are read in the order of available_at, which update_leases may set. A call that sets
-- it begins with the cursor {"only_at": that time}. Then it reads first the entries that have that time
-- already, and after them those that have another, so that it does not meet again what it has moved.

-- Reads one page of the leases in one of p_states that meet a filter, and where the next begins. It goes
-- from state to state until it finds some, or has read p_limit rows of one state.
-- For a caller limited to some tenants a page is what list_leases would return, so that no cursor names a
-- lease of another tenant. It then reads the many to find the few, as list_leases does.
-- Raises: QHA01, QHA03, QHQ01.
create or replace function hwqueue.read_page(p_filter jsonb, p_states text[], p_limit int, p_cursor jsonb)
returns hwqueue.lease_page
language plpgsql volatile
as $$
declare
  v_filter hwqueue.lease_filter := hwqueue.read_lease_filter(p_filter);
  v_states text[] := p_states;
  v_cursor jsonb := nullif(p_cursor, 'null');
  v_after jsonb := nullif(p_cursor -> 'after', 'null');
  v_wanted hwqueue.lease_filter;
  v_ids uuid[];
  v_page hwqueue.lease_page;
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'go on with p_cursor');
  if v_filter.queue_id is null then
    perform hwqueue.refuse_field('QHA01', 'filter.queue', 'is missing',
      'name the queue: a call for many leases is about one queue');
  elsif v_filter.state is not null then
    perform hwqueue.json_choice(p_filter -> 'state', 'filter.state', p_states);
    v_states := array[v_filter.state];
  end if;
  perform hwqueue.check_object(coalesce(v_cursor, '{}'), array['state', 'until', 'position', 'after',
    'only_at', 'except_at'], 'cursor');
  if v_cursor is null or v_cursor ? 'only_at' and not v_cursor ? 'state' then
    v_cursor := jsonb_strip_nulls(jsonb_build_object('only_at', v_cursor -> 'only_at'))
      || jsonb_build_object('state', v_states[1], 'until', hwqueue.clock(),
        'position', case when hwqueue.my_tenants() is null
          then (select s.last_value from hwqueue.ready_position_seq s) else 0 end);
  elsif v_cursor ->> 'state' = any (v_states) is not true
    or num_nulls((v_cursor ->> 'until')::timestamptz, (v_cursor ->> 'position')::bigint) > 0
    or v_after is not null and 0 < (case
      when hwqueue.my_tenants() is not null or v_cursor ->> 'state' = 'claimed'
        then num_nulls((v_after ->> 0)::uuid)
      when v_cursor ->> 'state' = 'pending' then num_nulls((v_after ->> 0)::smallint,
        (v_after ->> 1)::bigint, (v_after ->> 2)::bigint)
      else num_nulls((v_after ->> 0)::timestamptz, (v_after ->> 1)::uuid) end) then
    raise data_exception;
  end if;
  if v_states[1] <> 'scheduled' or v_filter.lease_ids is not null or hwqueue.my_tenants() is not null then
    v_cursor := v_cursor - 'only_at';  -- these pages are not read in the order of available_at
  end if;
  loop
    v_ids := null;
    v_wanted := v_filter;
    v_wanted.state := v_cursor ->> 'state';
    if v_filter.lease_ids is not null then
      v_page.lease_ids := hwqueue.list_lease_ids(v_wanted, p_limit, null, null);
    elsif hwqueue.my_tenants() is not null then
      v_ids := hwqueue.list_lease_ids(v_wanted, p_limit, null, (v_cursor #>> '{after,0}')::uuid);
      v_after := jsonb_build_array(v_ids[cardinality(v_ids)]);
      v_page.lease_ids := v_ids;
    else
      select array_agg(s.lease_id order by s.number), (array_agg(s.key order by s.number desc))[1]
      into v_ids, v_after
      from hwqueue.page_source(v_wanted, v_cursor, p_limit) with ordinality s(lease_id, key, number);
      v_wanted.lease_ids := coalesce(v_ids, '{}');
      v_wanted.state := null;  -- they are in it, and ended as the filter wants it
      v_wanted.error_type := null;
      v_wanted.finished_from := null;
      v_wanted.finished_before := null;
      v_page.lease_ids := hwqueue.list_lease_ids(v_wanted, p_limit, null, null);
    end if;
    v_page.state := v_cursor ->> 'state';
    v_page.next_cursor := case when cardinality(v_ids) = p_limit
      then v_cursor || jsonb_build_object('after', v_after) end;
    exit when v_page.next_cursor is not null;
    if v_cursor ->> 'only_at' is not null then
      v_cursor := v_cursor - array['after', 'only_at']
        || jsonb_build_object('except_at', v_cursor -> 'only_at');
    else
      v_cursor := v_cursor - array['after', 'except_at']
        || jsonb_build_object('state', v_states[array_position(v_states, v_page.state) + 1]);
    end if;
    exit when v_cursor ->> 'state' is null;
    v_page.next_cursor := v_cursor;
    exit when v_page.lease_ids <> '{}';
  end loop;
  return v_page;
exception when data_exception then  -- as somebody may have written it by hand
  perform hwqueue.refuse_field('QHA01', 'cursor', 'does not belong to this call',
    'pass next_cursor of the call before as it is, with the same filter');
end
$$;

-- The next rows of the table that holds a state, with the key to go on from. lease_id is null where the
-- lease has not ended as the filter wants it.
create or replace function hwqueue.page_source(p_filter hwqueue.lease_filter, p_cursor jsonb, p_limit int)
returns table (lease_id uuid, key jsonb)
language plpgsql volatile
as $$
declare
  v_after jsonb := p_cursor -> 'after';
  v_until timestamptz := (p_cursor ->> 'until')::timestamptz;
  v_only_at timestamptz := p_cursor ->> 'only_at';
  v_first uuid := '00000000-0000-0000-0000-000000000000';
begin
  if p_filter.state in ('pending', 'scheduled', 'claimed')
    and num_nonnulls(p_filter.finished_from, p_filter.finished_before, p_filter.error_type) > 0 then
    return;
  elsif p_filter.state = 'pending' then
    return query
      select r.lease_id, jsonb_build_array(r.tier, r.rank, r.position)
      from hwqueue.ready r
      where r.queue_id = p_filter.queue_id
        and (r.tier, r.rank, r.position) > (coalesce((v_after ->> 0)::smallint, '-32768'),
          coalesce((v_after ->> 1)::bigint, -9223372036854775808), coalesce((v_after ->> 2)::bigint, -1))
        and r.position <= (p_cursor ->> 'position')::bigint
      order by r.tier, r.rank, r.position limit p_limit;
  elsif p_filter.state = 'scheduled' then
    return query
      select s.lease_id, jsonb_build_array(s.available_at, s.lease_id)
      from hwqueue.scheduled s
      where s.queue_id = p_filter.queue_id
        and s.available_at between coalesce(v_only_at, '-infinity') and coalesce(v_only_at, 'infinity')
        and s.available_at is distinct from (p_cursor ->> 'except_at')::timestamptz
        and (s.available_at, s.lease_id) > (coalesce((v_after ->> 0)::timestamptz, '-infinity'),
          coalesce((v_after ->> 1)::uuid, v_first))
      order by s.available_at, s.lease_id limit p_limit;
  elsif p_filter.state = 'claimed' then
    return query
      select c.lease_id, jsonb_build_array(c.lease_id)
      from hwqueue.claim c
      where c.lease_id > coalesce((v_after ->> 0)::uuid, v_first) and c.claimed_at <= v_until
      order by c.lease_id limit p_limit;
  else
    return query
      select case when o.finished_at < coalesce(p_filter.finished_before, 'infinity')
          and o.finished_at >= coalesce(p_filter.finished_from, '-infinity')
          and (p_filter.error_type is null or o.error ->> 'type' = p_filter.error_type) then o.lease_id end,
        jsonb_build_array(o.finished_at, o.lease_id)
      from hwqueue.outcome o
      where o.queue_id = p_filter.queue_id and o.state = p_filter.state
        and o.finished_at <= least(p_filter.finished_before, v_until)
        and (o.finished_at, o.lease_id) > (
          coalesce((v_after ->> 0)::timestamptz, p_filter.finished_from, '-infinity'),
          coalesce((v_after ->> 1)::uuid, v_first))
      order by o.finished_at, o.lease_id limit p_limit;
  end if;
end
$$;

-- Reads a page and locks its leases. changed: those that still are in the state of the page and that no other
-- session holds, for the caller to change. skipped: the others.
-- Locks: entries, claims or outcomes in the order of lease ids, skip locked. Raises: as read_page.
create or replace function hwqueue.lock_page(p_filter jsonb, p_states text[], p_limit int, p_cursor jsonb,
  out state text, out changed uuid[], out skipped uuid[], out next_cursor jsonb)
language plpgsql volatile
as $$
declare
  v_page hwqueue.lease_page := hwqueue.read_page(p_filter, p_states, p_limit, p_cursor);
  v_leases uuid[] := array(select u from unnest(v_page.lease_ids) u order by u);
begin
  perform hwqueue.require_right('operate');
  state := v_page.state;
  next_cursor := v_page.next_cursor;
  -- laterals: lease for lease by key, whatever the statistics say; the queue may have been empty then
  if state = 'pending' then
    changed := array(
      select x.lease_id from unnest(v_leases) i(lease_id)
      cross join lateral (
        select * from hwqueue.lease y where y.lease_id = i.lease_id offset 0) l
      cross join lateral (
        select r.lease_id from hwqueue.ready r
        where r.queue_id = l.queue_id and r.tier = l.tier and r.rank = l.rank
          and r.position between l.position and l.position and r.lease_id = l.lease_id
        order by r.position limit 1 for update skip locked) x);
  elsif state = 'scheduled' then
    changed := array(
      select x.lease_id from unnest(v_leases) i(lease_id)
      cross join lateral (
        select * from hwqueue.lease y where y.lease_id = i.lease_id offset 0) l
      cross join lateral (
        select s.lease_id from hwqueue.scheduled s
        where s.queue_id = l.queue_id and s.available_at = l.available_at
          and s.lease_id = l.lease_id for update skip locked) x);
  elsif state = 'claimed' then
    changed := array(
      select x.lease_id from unnest(v_leases) i(lease_id)
      cross join lateral (
        select c.lease_id from hwqueue.claim c where c.lease_id = i.lease_id for update skip locked) x);
  else
    changed := array(
      select x.lease_id from unnest(v_leases) i(lease_id)
      cross join lateral (
        select o.lease_id from hwqueue.outcome o
        where o.lease_id = i.lease_id and (o.state = lock_page.state) is true
        for update skip locked) x);
  end if;
  skipped := array(select i from unnest(v_page.lease_ids) i where i <> all (changed));
end
$$;
