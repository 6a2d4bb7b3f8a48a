-- Reads spawns: checks the options of each lease, and finds its placement class. It writes no row but
-- new classes. Options are of two kinds: those that every lease has for itself (own_options), and those that
-- make its class. A batch usually has few kinds of leases. So read_spawns finds the class once per kind, and
-- reads the own options of all elements in one statement. It therefore knows that an element is at fault but
-- not which, and then reads them one by one. Begin with read_single_spawn, spawn_class and read_spawn.

-- Returns what an element of a batch shares with others: all but its params and own options. An element
-- that is no object stays as it is.
create or replace function hwqueue.spawn_kind(p_element jsonb) returns jsonb
language sql immutable
as $$
  select case
    when jsonb_typeof(p_element) <> 'object' then p_element
    when p_element -> 'options' ?| hwqueue.own_options()
      then jsonb_set(p_element - 'params', '{options}', hwqueue.class_options(p_element -> 'options'))
    else p_element - 'params' end
$$;

-- Returns the labels of a lease, checked; null: none. Most are let in by one expression; it is inlined.
-- Raises: QHA01.
create or replace function hwqueue.own_labels(p_labels jsonb) returns jsonb
language sql immutable
as $$
  select case when p_labels @? 'strict $ ? (@.type() == "object")' and p_labels <> '{}' and not p_labels ? ''
      and not p_labels @? 'strict $.* ? (@.type() != "string")' and length(p_labels::text) < 254
    then p_labels else nullif(hwqueue.check_labels(p_labels, 'options.labels'), '{}') end
$$;

-- Returns a batch in which labels have null for a value that its class need not show (class_labels). So
-- elements that differ in such values are of one kind. Some may stay: spawn_class looks again for each kind.
create or replace function hwqueue.hide_in_batch(p_asked jsonb) returns jsonb
language plpgsql volatile
as $$
declare
  v_options jsonb;
  v_shown jsonb;  -- of each key true or null
begin
  if not p_asked @? 'lax $[*].options.labels' then
    return p_asked;
  end if;
  perform pg_current_xact_id();  -- before terms are looked up
  v_options := jsonb_path_query_array(p_asked, 'lax $[*].options ? (@.type() == "object")') || (
    select coalesce(jsonb_agg(t.defaults), '[]') from hwqueue.task t
    where t.name in (
      select n #>> '{}' from jsonb_path_query(p_asked, 'lax $[*].task ? (@.type() == "string")') n));
  v_shown := hwqueue.class_labels((
      select coalesce(jsonb_object_agg(k, true), '{}')
      from jsonb_path_query(v_options, 'lax $[*].labels ? (@.type() == "object")') l, jsonb_object_keys(l) k),
    array(select distinct n #>> '{}' from jsonb_path_query(v_options,
        'lax $[*].tenant ? (@.type() == "string")') n) || array['', hwqueue.with_tenant(null) ->> 'tenant'],
    (select jsonb_agg(o - 'labels') from jsonb_array_elements(v_options) o));
  return (
    select jsonb_agg(case jsonb_typeof(e.value #> '{options,labels}') when 'object'
      then jsonb_set(e.value, '{options,labels}', (
        select coalesce(jsonb_object_agg(l.key,
                 case when v_shown -> l.key = 'true' then l.value else 'null' end), '{}')
        from jsonb_each(e.value #> '{options,labels}') l))
      else e.value end order by e.ordinality)
    from jsonb_array_elements(p_asked) with ordinality e);
end
$$;

-- Returns the labels of each element of a batch, checked, with those of the defaults of its task. Null: none
-- has any. Raises: QHA01.
create or replace function hwqueue.labels_of_batch(p_asked jsonb, p_tasks text[], p_defaults jsonb)
returns jsonb[]
language plpgsql immutable
as $$ begin
  return case when p_asked @? 'lax $[*].options.labels' or p_defaults @? 'strict $.*.labels' then array(
    select hwqueue.own_labels(case when e.value -> 'options' ? 'labels' then e.value #> '{options,labels}'
      else p_defaults #> array[p_tasks[e.ordinality], 'labels'] end)
    from jsonb_array_elements(p_asked) with ordinality e) end;
end $$;

-- Reads and checks a batch, in its order: a list, or {"kinds", "each", "of"} as spawn_leases lets it in. Each
-- kind is checked, and the defaults of its task and its class found, once. p_index: of the first element.
-- Locks: new classes. Raises: QHA01, QHC03, QHC04, QHW01, QHM01, QHM03, QHT03, with the index of the first
-- at fault.
create or replace function hwqueue.read_spawns(p_queue hwqueue.queue, p_leases jsonb, p_now timestamptz,
  p_index int default 0) returns hwqueue.spawn_request[]
language plpgsql volatile
as $$
declare
  v_is_list boolean := jsonb_typeof(p_leases) = 'array';
  v_each jsonb := case when v_is_list then p_leases else p_leases -> 'each' end;
  v_asked jsonb := case when v_is_list then p_leases else p_leases -> 'kinds' end;
  v_lease_ids uuid[] := hwqueue.new_ids(jsonb_array_length(v_each));
  v_of int[] := case  -- which one of v_asked each is of, from 1
    when v_is_list then array(select generate_series(1, cardinality(v_lease_ids)))
    when p_leases ? 'of' then array(
      select o::numeric::int + 1 from jsonb_array_elements_text(p_leases -> 'of') o)
    else array_fill(1, array[cardinality(v_lease_ids)]) end;
  v_class_ids bigint[];  -- of v_asked
  v_tasks text[];
  v_tiers smallint[];
  v_have_slots boolean[];
  v_lanes hwqueue.spawn_own[];
  v_labels jsonb[];
  v_defaults jsonb;  -- by task; null: none of them has any
  v_has_own boolean;  -- one has options that read_spawn reads
  v_has_limits boolean;
  v_one jsonb;
  v_code text;
  v_message text;
  v_detail text;
  v_hint text;
begin
  select array_agg(c.class_id), array_agg(c.task), bool_or(c.has_own),
         case when count(c.tenant) > 0 then array_agg((c.tenant).tier) end,
         array_agg((c.tenant).spec ? 'slots'), bool_or(c.has_limits or (c.tenant).spec ? 'slots'),
         jsonb_object_agg(c.task, c.defaults) filter (where c.defaults <> '{}')
  into v_class_ids, v_tasks, v_has_own, v_tiers, v_have_slots, v_has_limits, v_defaults
  from (  -- in the order of the elements, once for all lists
    select g.class_id, g.task, g.has_own, g.has_limits, g.defaults, r.tenant from (
      select k.numbers, k.has_own, k.has_limits, n.task, t.defaults, o.options ->> 'tenant' as tenant,
             case when k.kind is not null
               then hwqueue.spawn_class(p_queue.queue_id, hwqueue.json_text(hwqueue.check_object(k.kind,
                   array['task', 'params', 'options'], 'lease') -> 'task', 'task', 200),
                 hwqueue.class_options(o.options), true) end as class_id
      from (select case when v_is_list or a.ordinality = any (v_of)  -- what no element has is not read
                     then hwqueue.spawn_kind(a.value) end as kind, array_agg(a.ordinality) as numbers,
                   bool_or(a.value -> 'options' ?| hwqueue.spawn_options()) as has_own,
                   bool_or(a.value -> 'options' ? 'limits') as has_limits
            from jsonb_array_elements(hwqueue.hide_in_batch(v_asked)) with ordinality a
            group by 1 order by min(a.ordinality)) k
      cross join lateral (  -- of text only: the text of other values may be too long for the server
        select case jsonb_typeof(k.kind -> 'task') when 'string' then k.kind ->> 'task' end as task) n
      cross join lateral (  -- fences (offset 0): each is found once, not wherever it is used
        select case when n.task is not null then hwqueue.with_tenant(d.defaults) end as defaults
        from (select (select t.defaults from hwqueue.task t where t.name = n.task) as defaults offset 0) d
        offset 0) t
      cross join lateral (
        select hwqueue.with_defaults(coalesce(nullif(k.kind -> 'options', 'null'), '{}'), t.defaults)
          as options offset 0) o
    offset 0) g
    cross join lateral (
      select case when g.tenant is not null then hwqueue.admit_tenant(g.tenant, g.class_id, p_now,
        '{pending,classes,spawns}', v_asked, g.numbers, case when v_is_list then cardinality(g.numbers) else (
          select sum(cardinality(array_positions(v_of, n::int)))::int from unnest(g.numbers) n) end)
        end as tenant offset 0) r
    cross join unnest(g.numbers) n(number) order by n.number) c;
  v_labels := hwqueue.labels_of_batch(v_asked, v_tasks, v_defaults);
  if v_has_limits or p_queue.limits <> '{}' then
    v_lanes := array(
      select row(l.lanes, null, null)::hwqueue.spawn_own
      from jsonb_array_elements(v_asked) with ordinality a
      cross join lateral (  -- a fence: Postgres remembers what it has found for the same options
        select case when v_is_list or a.ordinality = any (v_of) then a.value -> 'options' end as options,
               v_have_slots[a.ordinality] as has_slots
        offset 0) o
      cross join lateral hwqueue.read_limits(o.options -> 'limits',
        hwqueue.limits_of(p_queue.limits, o.has_slots),
        coalesce(o.options ->> 'tenant', hwqueue.with_tenant(null) ->> 'tenant', '')) l);
  end if;
  if v_has_own or v_defaults is not null then
    return array(
      select hwqueue.read_spawn(e.ordinal, v_lease_ids[e.ordinal], v_class_ids[e.number], v_tasks[e.number],
        hwqueue.check_payload(coalesce(e.params, '{}'), 'params', p_queue.max_params_bytes), e.options,
        row(v_lanes[e.number].lanes, v_tiers[e.number], v_labels[e.number])::hwqueue.spawn_own, p_now)
      from (
        select i.ordinality::int as ordinal, n.number,
          case when v_is_list then i.value -> 'params' else i.value end as params,
          case when v_defaults is not null then hwqueue.with_defaults(nullif(n.options, 'null'),
                 v_defaults -> v_tasks[n.number])
               when n.options ?| hwqueue.spawn_options() then n.options end as options
        from jsonb_array_elements(v_each) with ordinality i
        cross join lateral (
          select v_of[i.ordinality],
                 case when v_is_list then i.value else v_asked -> v_of[i.ordinality] - 1 end -> 'options'
          offset 0) n(number, options)
        offset 0) e);  -- fences: each value is extracted once, not wherever it is used
  end if;
  return array(  -- with a constant null, as read_single_spawn
    select hwqueue.read_spawn(i.ordinality::int, v_lease_ids[i.ordinality], v_class_ids[v_of[i.ordinality]],
      v_tasks[v_of[i.ordinality]], hwqueue.check_payload(coalesce(
        case when v_is_list then i.value -> 'params' else i.value end, '{}'), 'params',
        p_queue.max_params_bytes), null,
      row(case when v_lanes is not null then v_lanes[v_of[i.ordinality]].lanes end,
        v_tiers[v_of[i.ordinality]], v_labels[v_of[i.ordinality]])::hwqueue.spawn_own, p_now)
    from jsonb_array_elements(v_each) with ordinality i);
exception when others then
  get stacked diagnostics v_code = returned_sqlstate, v_message = message_text,
    v_detail = pg_exception_detail, v_hint = pg_exception_hint;
  if v_code not like 'QH%' then
    raise;  -- no fault of an element
  elsif cardinality(v_lease_ids) > 1 then
    for v_index in 0 .. cardinality(v_lease_ids) - 1 loop
      v_one := v_asked -> v_of[v_index + 1] - 1;
      perform hwqueue.read_spawns(p_queue, jsonb_build_array(case
          when v_is_list or jsonb_typeof(v_one) <> 'object' then v_one
          else v_one || jsonb_build_object('params', v_each -> v_index) end), p_now, v_index);
    end loop;
    raise;
  end if;
  perform hwqueue.refuse(v_code, format('leases[%s]: %s', p_index, v_message),
    v_detail::jsonb || jsonb_build_object('index', p_index), v_hint);
end
$$;

-- Returns the time from which a spawn is claimable, for options that name one, or say that none lets it.
-- Raises: QHA01.
create or replace function hwqueue.spawn_time(p_options jsonb, p_now timestamptz) returns timestamptz
language plpgsql stable
as $$
declare
  v_delay interval := hwqueue.json_interval(p_options -> 'delay', 'options.delay');
  v_at timestamptz := hwqueue.json_moment(p_options -> 'available_at', 'options.available_at', p_now);
begin
  if v_delay is not null and v_at is not null then
    perform hwqueue.refuse('QHA01', 'options has both delay and available_at',
      jsonb_build_object('field', 'options.delay'), 'give one of them');
  end if;
  return case when p_options ->> 'replaces' is not null then 'infinity'
    else coalesce(v_at, p_now + v_delay, p_now) end;
end
$$;

-- Returns the key of the option unique, {"key", "while", "on_conflict"}, all of which it checks. Null for
-- an option that is null.
-- Raises: QHA01.
create or replace function hwqueue.unique_key(p_options jsonb) returns text
language plpgsql immutable
as $$
declare
  v_unique jsonb := p_options -> 'unique';
begin
  if jsonb_typeof(v_unique) = 'null' then
    return hwqueue.json_text(p_options -> 'idempotency_key', 'options.idempotency_key', 255);
  end if;
  perform hwqueue.check_object(v_unique, array['key', 'while', 'on_conflict'], 'options.unique');
  perform hwqueue.json_choice(v_unique -> 'on_conflict', 'options.unique.on_conflict',
    array['keep', 'replace', 'raise']);
  if v_unique ->> 'key' is null or p_options ->> 'idempotency_key' is not null then
    perform hwqueue.refuse('QHA01', case when v_unique ->> 'key' is null then 'options.unique.key is missing'
        else 'options has both unique and idempotency_key' end,
      jsonb_build_object('field', 'options.unique.key'),
      'for example {"key": "report-7", "while": "open", "on_conflict": "keep"}, and no idempotency_key');
  end if;
  return hwqueue.json_text(v_unique -> 'key', 'options.unique.key', 255);
end
$$;

-- Returns one spawn, read and checked, but for its class, params, lanes and tier, which its caller has
-- checked. It draws the position of the lease.
-- A single expression, so that Postgres inlines it: one statement reads a whole batch.
-- Raises: QHA01, naming the field; QHM03.
create or replace function hwqueue.read_spawn(p_ordinal int, p_lease_id uuid, p_class_id bigint, p_task text,
  p_params jsonb, p_options jsonb, p_own hwqueue.spawn_own, p_now timestamptz)
returns hwqueue.spawn_request
language sql volatile
as $$
  select row(
    p_ordinal,
    coalesce(hwqueue.json_uuid(p_options -> 'lease_id', 'options.lease_id'), p_lease_id),
    jsonb_typeof(p_options -> 'lease_id') = 'string',
    nextval('hwqueue.ready_position_seq'),
    p_class_id,
    p_task,
    p_params,
    case when p_options ? 'headers'
      then hwqueue.check_payload(
        hwqueue.json_object(p_options -> 'headers', 'options.headers'), 'options.headers', 16384) end,
    coalesce(hwqueue.json_integer(p_options -> 'priority', 'options.priority', -32768, 32767), 0),
    hwqueue.json_integer(p_options -> 'max_attempts', 'options.max_attempts', 1, 1000),
    case when p_options ? 'retry' then hwqueue.normalise_retry(p_options -> 'retry', 'options.retry') end,
    hwqueue.json_interval(p_options -> 'claim_timeout', 'options.claim_timeout', '1 second', '30 days'),
    hwqueue.json_moment(p_options -> 'deadline', 'options.deadline', p_now),
    case when p_options ?| array['delay', 'available_at', 'replaces']
      then hwqueue.spawn_time(p_options, p_now) else p_now end,
    case when p_options ? 'unique' then hwqueue.unique_key(p_options)
      else hwqueue.json_text(p_options -> 'idempotency_key', 'options.idempotency_key', 255) end,
    null,
    coalesce(hwqueue.json_boolean(p_options -> 'notify', 'options.notify'), true),
    case when p_options ? 'wire' then hwqueue.wire_blob(p_options -> 'wire', 'options.wire') end,
    case when coalesce(p_options -> 'unique', 'null') = 'null' then null
      when coalesce(p_options #>> '{unique,while}', 'open') = 'open' then 'infinity'  -- as long as it is open
      else p_now + hwqueue.json_interval(p_options #> '{unique,while}', 'options.unique.while',
        '1 second', '366 days') end,
    case when p_options ? 'unique' then p_options #>> '{unique,on_conflict}' end,
    null, null, null, null,
    case when p_options ? 'one_of' then hwqueue.choice_of(p_options) end,
    case when p_options ? 'replaces' then hwqueue.replaces_of(p_options) end,
    null,
    case when p_options ?| array['one_of', 'replaces'] then hwqueue.refuse_lanes((p_own).lanes, case
        when p_options ->> 'one_of' is not null then 'an alternative (one_of)'
        when p_options ->> 'replaces' is not null then 'a lease that replaces another one (replaces)' end)
      else (p_own).lanes end,
    coalesce((p_own).tier, 0),
    (p_own).labels
  )::hwqueue.spawn_request
$$;

-- Returns the row that says what a tenant may have, and refuses spawns of one that has all of it: leases that
-- wait, unless each of these has a key that another lease holds, and, of a class that is new, placement
-- classes. What reap counted more than ten seconds ago, or before a clock was set back, does not count. Where
-- the tenant's spawns are bounded in time, these are noted. p_what: what they add to. p_asked: the options of
-- one; with p_numbers a batch, of which these elements are meant. p_spawned: how many they are. Volatile: it
-- sees the class that the same statement has written.
-- Raises: QHT03.
create or replace function hwqueue.admit_tenant(p_tenant text, p_class_id bigint, p_now timestamptz,
  p_what text[] default '{pending,classes,spawns}', p_asked jsonb default null,
  p_numbers bigint[] default null, p_spawned int default 1) returns hwqueue.tenant
language plpgsql volatile
as $$
declare
  v_row hwqueue.tenant := hwqueue.find_tenant(p_tenant);
  v_used jsonb := v_row.usage -> p_tenant;
  v_rate jsonb := v_row.spec -> 'spawns';
begin
  if v_rate is not null and 'spawns' = any (p_what) then
    insert into hwqueue.spawn_count (tenant, spawned) values (p_tenant, p_spawned);
    v_used := coalesce(v_used, '{}') || jsonb_build_object('spawns', ceil(hwqueue.spawns_left(
      (v_used -> 'spawns')::float8, v_rate, p_now - v_row.counted_at)));
  end if;
  if ((v_used -> 'pending')::bigint >= (v_row.spec -> 'pending')::bigint
      or (v_used -> 'classes')::bigint >= (v_row.spec -> 'classes')::bigint
      or (v_used -> 'spawns')::bigint >= (v_rate -> 'burst')::bigint)
    and v_row.counted_at between p_now - interval '10 seconds' and p_now + interval '10 seconds' then
    perform hwqueue.refuse('QHT03', format('tenant %s has %s %s, and may have %s', to_json(p_tenant), u.used,
        case u.what when 'pending' then 'leases that wait' when 'classes' then 'placement classes'
          else 'spawns that count' end, u.most),
      jsonb_build_object('tenant', p_tenant, 'what', u.what, 'used', u.used, 'limit', u.most,
        'counted_at', v_row.counted_at), case u.what when 'spawns'
        then format('wait %s s', ceil((u.used - u.most + 1) * (v_rate -> 'per')::float8
          / (v_rate -> 'count')::float8))
        else 'wait for some to end' end || '; an admin may allow more: hwqueue tenant set')
    from (select k.what, (v_used -> k.what)::bigint as used,
                 coalesce(v_row.spec #> array[k.what, 'burst'], v_row.spec -> k.what)::bigint as most
          from unnest(p_what) k(what)) u
    where u.used >= u.most and case when u.what <> 'classes' then exists (
        select from unnest(coalesce(p_numbers, '{0}')) n
        cross join lateral (
          select case when n > 0 then p_asked -> n::int - 1 -> 'options' else p_asked end) o(options)
        where not exists (
          select from hwqueue.placement_class c
          join hwqueue.idempotency i on (i.tenant, i.queue_id, i.idempotency_key) = (p_tenant, c.queue_id,
            coalesce(o.options #>> '{unique,key}', o.options ->> 'idempotency_key'))
          where c.class_id = p_class_id and hwqueue.holds_key(i, p_now)))
      else exists (
        select from hwqueue.placement_class c
        where c.class_id = p_class_id and c.created_xid = pg_current_xact_id_if_assigned()) end;
  end if;
  return v_row;
end
$$;

-- Returns how many of a tenant's spawns count still, p_since later, where it may spawn p_rate: a leaky
-- bucket. A span below zero, as of a clock that was set back, is none.
create or replace function hwqueue.spawns_left(p_spawned float8, p_rate jsonb, p_since interval)
returns float8
language sql immutable
as $$
  select greatest(0, p_spawned - greatest(0, extract(epoch from p_since)::float8)
    * (p_rate -> 'count')::float8 / (p_rate -> 'per')::float8)
$$;

-- Reads and checks a spawn outside a batch. p_options has the defaults of the task already. p_what: as
-- admit_tenant; '{}': nothing is spawned now. p_hides: as spawn_class.
-- Locks: a new class. Raises: QHA01, QHC03, QHC04, QHW01, naming the field; QHM01, QHM03, QHT03.
create or replace function hwqueue.read_single_spawn(p_queue hwqueue.queue, p_task text, p_params jsonb,
  p_options jsonb, p_now timestamptz, p_what text[] default '{pending,classes,spawns}',
  p_hides boolean default true) returns hwqueue.spawn_request
language plpgsql volatile
as $$
declare
  v_class_id bigint := hwqueue.spawn_class(p_queue.queue_id, p_task, hwqueue.class_options(p_options),
    p_hides);
  v_labels jsonb;
  v_tier smallint;  -- scalars: rows cost each spawn more
  v_has_slots boolean;
  v_lanes hwqueue.lane_ref[];
begin
  if p_options ? 'labels' then
    v_labels := hwqueue.own_labels(p_options -> 'labels');
  end if;
  if p_options ? 'tenant' then
    select t.tier, t.spec ? 'slots' into v_tier, v_has_slots
    from hwqueue.admit_tenant(p_options ->> 'tenant', v_class_id, p_now, p_what, p_options) t;
  end if;
  if p_queue.limits <> '{}' or p_options ? 'limits' or v_has_slots then
    v_lanes := (select l.lanes from hwqueue.read_limits(p_options -> 'limits',
      hwqueue.limits_of(p_queue.limits, v_has_slots), coalesce(p_options ->> 'tenant', '')) l);
  end if;
  if p_options ?| hwqueue.spawn_options() then
    return hwqueue.read_spawn(1, hwqueue.new_id(), v_class_id, p_task, hwqueue.check_payload(
      coalesce(p_params, '{}'), 'params', p_queue.max_params_bytes), p_options,
      row(v_lanes, v_tier, v_labels)::hwqueue.spawn_own, p_now);
  end if;
  -- with a constant null Postgres drops every part of the expression that reads options
  return hwqueue.read_spawn(1, hwqueue.new_id(), v_class_id, p_task, hwqueue.check_payload(
    coalesce(p_params, '{}'), 'params', p_queue.max_params_bytes), null,
    row(v_lanes, v_tier, v_labels)::hwqueue.spawn_own, p_now);
end
$$;

-- The options that every lease has for itself; the others make its class.
create or replace function hwqueue.own_options() returns text[]
language sql immutable parallel safe
as $$
  select array['lease_id', 'priority', 'available_at', 'delay', 'max_attempts', 'retry', 'claim_timeout',
    'deadline', 'idempotency_key', 'unique', 'headers', 'notify', 'one_of', 'replaces', 'limits']
$$;

-- The options that read_spawn reads: a lease's own, but for its limits, and the params blob, which is stored
-- as it was sent.
create or replace function hwqueue.spawn_options() returns text[]
language sql immutable parallel safe
as $$ select array_remove(hwqueue.own_options(), 'limits') || 'wire'::text $$;

-- Returns the options that make the class, with {"one_of": true} for an alternative of any choice. A value
-- that is no object stays as it is, so that spawn_class refuses it.
create or replace function hwqueue.class_options(p_options jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when jsonb_typeof(p_options) is distinct from 'object' then coalesce(p_options, '{}')
    when p_options ->> 'one_of' is null then p_options - hwqueue.own_options()
    else (p_options - hwqueue.own_options()) || '{"one_of": true}' end
$$;

-- Returns a spawn's options with the defaults of its task. An option that is given replaces the default of
-- its name as a whole; null, too. Options that are no object stay as they are. Postgres inlines it.
create or replace function hwqueue.with_defaults(p_options jsonb, p_defaults jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_defaults is null then p_options
    when jsonb_typeof(p_options) = 'object' then p_defaults || p_options
    else coalesce(p_options, p_defaults) end
$$;

-- Returns the class of a spawn, and writes it if it is new. The words of an earlier spawn are not read again.
-- p_hides: it may hide labels; not where leases that come later have the same class.
-- Locks: the new row. Raises: QHA01, QHC03, QHC04, QHW01, naming the field.
create or replace function hwqueue.spawn_class(p_queue_id int, p_task text, p_options jsonb, p_hides boolean)
returns bigint
language plpgsql volatile
as $$
declare
  v_asked bytea;
  v_class_id bigint;
begin
  perform hwqueue.check_name(p_task, 'task', 200);
  if p_hides and jsonb_typeof(p_options -> 'labels') = 'object' then
    perform pg_current_xact_id();  -- before terms are looked up
    p_options := p_options || jsonb_build_object('labels', hwqueue.class_labels(p_options -> 'labels',
      array[case jsonb_typeof(p_options -> 'tenant') when 'string' then p_options ->> 'tenant' else '' end],
      p_options - 'labels'));
  end if;
  if p_options = '{}' then
    return hwqueue.find_class(row(p_queue_id, p_task, '', null, '{}', '{}', null, null, null, false));
  elsif not hwqueue.may_be_long(p_options) then
    v_asked := sha256(convert_to(jsonb_build_array(p_queue_id, p_task, p_options)::text, 'UTF8'));
    v_class_id := hwqueue.find_class(null, v_asked);
  end if;
  return coalesce(v_class_id,
    hwqueue.find_class(hwqueue.spawn_content(p_queue_id, p_task, p_options), v_asked));
end
$$;

-- Returns the content of the class of a spawn. p_options comes from class_options, p_task was checked.
-- Raises: QHA01, QHC03, QHC04, QHW01, naming the field.
create or replace function hwqueue.spawn_content(p_queue_id int, p_task text, p_options jsonb)
returns hwqueue.class_content
language plpgsql stable
as $$
declare
  v_class_options text[] := array['placement', 'affinity_tags', 'affinity_with', 'anti_affinity_with', 'wire',
    'tenant', 'service_id', 'labels', 'patience', 'max_run'];
begin
  perform hwqueue.check_object(p_options, v_class_options || hwqueue.own_options(), 'options'),
    hwqueue.check_labels(case jsonb_typeof(p_options -> 'labels')  -- null: hidden, read_spawn checks it
      when 'object' then jsonb_strip_nulls(p_options -> 'labels') else p_options -> 'labels' end,
      'options.labels');
  return row(p_queue_id, p_task,
    coalesce(hwqueue.json_text(p_options -> 'tenant', 'options.tenant', 100), ''),
    hwqueue.json_uuid(p_options -> 'service_id', 'options.service_id'),
    coalesce(nullif(p_options -> 'labels', 'null'), '{}'),
    hwqueue.spawn_placement(p_options, 'options'),
    hwqueue.json_interval(p_options -> 'patience', 'options.patience'), null,
    hwqueue.json_interval(p_options -> 'max_run', 'options.max_run', '1 second', '366 days'),
    p_options ? 'one_of')::hwqueue.class_content;
end
$$;

-- Refuses a payload that check_payload found too large, or without p_max_bytes nested too deep.
-- Raises: QHA01.
create or replace function hwqueue.refuse_payload(p_value jsonb, p_field text, p_max_bytes int) returns jsonb
language plpgsql stable
as $$
declare
  v_bytes int;
begin
  if p_max_bytes is null then
    perform hwqueue.refuse('QHA01', format('%s is nested more than 6000 deep', p_field),
      jsonb_build_object('field', p_field, 'limit', 6000), 'flatten it, or pass it as text');
  end if;
  v_bytes := hwqueue.text_bytes(p_value, p_max_bytes);
  perform hwqueue.refuse('QHA01', format('%s has %s bytes, the limit is %s', p_field, v_bytes, p_max_bytes),
    jsonb_build_object('field', p_field, 'bytes', v_bytes, 'limit', p_max_bytes),
    'store large data elsewhere and pass a reference, or raise the queue policy');
  return null;
end
$$;

-- Returns the value, unless its text is longer than p_max_bytes, or it is nested more than 6,000 deep: a step
-- may take it into its params in a stranger's settlement, where text_bytes would run out of stack. What has
-- 4,096 bytes is less deep. It calls format because Postgres would evaluate a cast at plan time.
-- Raises: QHA01.
create or replace function hwqueue.check_payload(p_value jsonb, p_field text, p_max_bytes int) returns jsonb
language sql stable
as $$
  select case
    when hwqueue.may_be_long(p_value) and jsonb_path_exists(p_value, 'strict $.**{6001}', '{}', true)
      then hwqueue.refuse_payload(p_value, p_field, null)
    when case when hwqueue.may_be_long(p_value) then hwqueue.text_bytes(p_value, p_max_bytes)
      else octet_length(format('%s', p_value)) end > p_max_bytes
    then hwqueue.refuse_payload(p_value, p_field, p_max_bytes)
    else p_value end
$$;

-- Refuses changes of a lease with a key that update_lease does not know.
-- Raises: QHA01.
create or replace function hwqueue.check_changes(p_changes jsonb) returns jsonb
language sql immutable
as $$
  select hwqueue.check_object(p_changes, array['placement', 'wire', 'labels', 'priority', 'available_at',
    'deadline', 'queue'], 'changes')
$$;

-- Returns the rank of a lease. Lower runs first. With an ageing step, each step of waiting counts as one
-- priority. Postgres inlines it; stable only because extract is.
create or replace function hwqueue.lease_rank(p_step interval, p_eligible_at timestamptz, p_priority int)
returns bigint
language sql stable
as $$
  select case when p_step > interval '0'
    then floor(extract(epoch from p_eligible_at) / extract(epoch from p_step))::bigint else 0 end - p_priority
$$;

-- Returns the placement that a spawn's options ask for, in normal form: `placement` ANDed with the shorthands
-- and the params blob. affinity_with and anti_affinity_with: prefer that node, or to be away from it.
-- Raises: QHA01, QHC03, QHC04, QHW01.
create or replace function hwqueue.spawn_placement(p_options jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_placement jsonb := hwqueue.normalise_placement(p_options -> 'placement', p_field || '.placement');
  v_required jsonb := hwqueue.normalise_tags(p_options -> 'affinity_tags', p_field || '.affinity_tags');
  v_with uuid := hwqueue.json_uuid(p_options -> 'affinity_with', p_field || '.affinity_with', 'QHC03');
  v_away uuid := hwqueue.json_uuid(p_options -> 'anti_affinity_with', p_field || '.anti_affinity_with',
    'QHC03');
  v_blob bytea := hwqueue.wire_blob(p_options -> 'wire', p_field || '.wire');
begin
  if v_required <> '[]' or v_with is not null or v_away is not null then
    v_placement := hwqueue.check_cost(hwqueue.merge_placements(v_placement, jsonb_build_object(
      'require', v_required, 'prefer', hwqueue.normalise_preferences((
        select coalesce(jsonb_agg(jsonb_build_object('when', n.near)), '[]')
        from (values (v_with, jsonb_build_object('node', v_with)),
          (v_away, jsonb_build_object('node', v_away, 'away', true))) n(id, near)
        where n.id is not null), p_field)), p_field), p_field);
  end if;
  if v_blob is not null then
    -- normalised like any placement, so that a blob cannot ask for what the grammar refuses
    v_placement := hwqueue.check_cost(hwqueue.merge_placements(v_placement, hwqueue.normalise_placement(
      hwqueue.wire_placement(hwqueue.parse_wire(v_blob, p_field || '.wire')), p_field || '.wire'), p_field),
      p_field);
  end if;
  return v_placement;
end
$$;
