-- Events: the record of who did what, written by the calls that cause them and read by list_events.
-- An event is written in the transaction that it describes, by note_event and its variants. Its id is
-- the transaction's own id, shifted left, plus a running number. So once every transaction below an id
-- has ended, no event below that id can appear. Followers of list_events depend on this. A plain
-- sequence would not do: a lower number may commit later.
-- Events lie in a ring of 16 partitions, one a day, which prune truncates.

-- Returns the id below which no event can appear any more. A transaction that was open when the base was
-- raised (note_server) may still write ids that follow the former one.
create or replace function hwqueue.final_below() returns bigint
language plpgsql volatile
as $$ begin return (
  select case when x.oldest <= s.event_base_xid then s.former_event_base else s.event_base end
    + (x.oldest::text::bigint << 20)
  from hwqueue.installation s
  cross join pg_snapshot_xmin(pg_current_snapshot()) x(oldest)
); end $$;

-- Returns events of one code (null: any), in ascending order after p_after, or in descending order if
-- p_after is null.
-- Planned for each filter (custom plan): absent conditions vanish, and each of the other columns has an
-- index in the order that the page needs. cpu_tuple_cost: a row is what costs, so a page is not sought among
-- events of all kinds by their order alone, which lie together on disk.
create or replace function hwqueue.event_page(p_after bigint, p_below bigint, p_code text,
  p_filter hwqueue.event, p_since timestamptz, p_until timestamptz, p_limit int) returns setof hwqueue.event
language plpgsql volatile
  set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
  set cpu_tuple_cost = 1
as $$
declare
  v_slots smallint[] := case when p_since is not null or p_until is not null then array(
    select distinct (d & 15)::smallint
    from generate_series(
      hwqueue.event_day(greatest(p_since, hwqueue.clock() - interval '15 days')),
      hwqueue.event_day(least(p_until, hwqueue.clock()))) d) end;  -- null: any partition
begin
  if p_after is not null then
    return query
      select e.* from hwqueue.event e
      where e.event_id > p_after and e.event_id < p_below
        and (p_code is null or e.code = p_code) and (p_filter.queue is null or e.queue = p_filter.queue)
        and (p_filter.node_id is null or e.node_id = p_filter.node_id)
        and (p_filter.lease_id is null or e.lease_id = p_filter.lease_id)
        and (p_filter.class_id is null or e.class_id = p_filter.class_id)
        and (p_filter.actor is null or e.actor = p_filter.actor)
        and (p_since is null or e.at >= p_since) and (p_until is null or e.at < p_until)
        and (v_slots is null or e.slot = any (v_slots))
      order by e.event_id limit p_limit;
  else
    return query
      select e.* from hwqueue.event e
      where (p_below is null or e.event_id < p_below)
        and (p_code is null or e.code = p_code) and (p_filter.queue is null or e.queue = p_filter.queue)
        and (p_filter.node_id is null or e.node_id = p_filter.node_id)
        and (p_filter.lease_id is null or e.lease_id = p_filter.lease_id)
        and (p_filter.class_id is null or e.class_id = p_filter.class_id)
        and (p_filter.actor is null or e.actor = p_filter.actor)
        and (p_since is null or e.at >= p_since) and (p_until is null or e.at < p_until)
        and (v_slots is null or e.slot = any (v_slots))
      order by e.event_id desc limit p_limit;
  end if;
end
$$;

-- Returns the id of an event that is written now. p_base is the installation's event base.
create or replace function hwqueue.new_event_id(p_base bigint) returns bigint
language sql volatile
as $$ select p_base + (pg_current_xact_id()::text::bigint << 20)
  + (nextval('hwqueue.event_number') & 1048575) $$;

-- Returns the number of a time's day (UTC). Modulo 16 it is the partition of an event.
create or replace function hwqueue.event_day(p_at timestamptz) returns bigint
language sql stable
as $$ select floor(extract(epoch from p_at) / 86400)::bigint $$;

-- Returns the actor of an event: the setting hwqueue.actor if the caller set it for this transaction,
-- else the login.
-- Events also hold session_user, which a caller cannot choose. A function that runs with its owner's
-- rights does not change it.
create or replace function hwqueue.current_actor() returns text
language sql stable
as $$ select left(coalesce(nullif(current_setting('hwqueue.actor', true), ''), session_user), 200) $$;

-- Writes one event.
-- Not idempotent.
create or replace function hwqueue.note_event(p_code text, p_message text,
  p_detail jsonb default null, p_node uuid default null, p_queue text default null,
  p_class bigint default null) returns void
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  insert into hwqueue.event (slot, event_id, at, code, node_id, queue, class_id, actor, login,
    message, detail)
  select hwqueue.event_day(v_now) & 15, hwqueue.new_event_id(s.event_base), v_now, p_code,
    p_node, p_queue, p_class, hwqueue.current_actor(), session_user, p_message, p_detail
  from hwqueue.installation s;
end
$$;

-- Writes the same event for each of some leases that exist.
-- The plan is generic, because planning would cost more than writing one event.
-- Not idempotent.
create or replace function hwqueue.note_leases(p_code text, p_leases uuid[], p_message text,
  p_detail jsonb default null, p_node uuid default null) returns void
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  insert into hwqueue.event (slot, event_id, at, code, lease_id, node_id, queue, actor, login,
    message, detail)
  select hwqueue.event_day(v_now) & 15, hwqueue.new_event_id(s.event_base), v_now, p_code,
    l.lease_id, p_node, q.name, hwqueue.current_actor(), session_user, p_message, p_detail
  from hwqueue.installation s
  cross join unnest(p_leases) i(lease_id)
  -- offset 0 is an optimisation fence: one index lookup per lease, whatever the statistics say
  cross join lateral (
    select x.lease_id, x.queue_id from hwqueue.lease x where x.lease_id = i.lease_id offset 0) l
  cross join lateral (
    select x.name from hwqueue.queue x where x.queue_id = l.queue_id offset 0) q;
end
$$;

-- Writes an event that names the changed keys of a policy with their old and new values. If no key
-- changed it writes no event.
-- Not idempotent.
create or replace function hwqueue.note_policy(p_code text, p_of text, p_from jsonb, p_to jsonb,
  p_queue text) returns void
language plpgsql volatile
as $$
declare
  v_keys text[] := array(
    select t.key from jsonb_each(p_to) t where t.value is distinct from p_from -> t.key order by t.key);
begin
  if v_keys <> '{}' then
    perform hwqueue.note_event(p_code, format('%s: %s changed', p_of, array_to_string(v_keys, ', ')),
      (select jsonb_build_object('from', jsonb_object_agg(k, p_from -> k),
         'to', jsonb_object_agg(k, p_to -> k))
       from unnest(v_keys) k), p_queue => p_queue);
  end if;
end
$$;
