-- Public: gangs, leases that start together or not at all.
--
-- Producers spawn, read and cancel gangs; the handler of a member asks gang_status until all are there. An
-- example: spawn_gang('train', '[{"task": "train", "count": 4, "options": {"placement": {"resources":
-- {"gpu": 8}}}}]', '{"together": "rack"}') waits until a rack has four nodes with 8 free GPUs, and reserves
-- all four. Each worker gets its member with its next claim. The handler begins once all four have.
--
-- Invariant: no member is granted before there is room for all, or for min_size of them. Members are leases
-- like others: they are listed, explained, cancelled and settled as such.

-- Spawns a gang, and returns its members in their order. p_members: [{"task", "params", "options", "count"}],
-- 2 to 1,000 in all; options as of spawn_lease, but for keys and times. p_options: gang_id; min_size, how
-- many must start together (default: all): where there is no room for all, the first min_size start, and the
-- others join them when there is room (it goes with no deadline); together, a domain ("node", "rack" or
-- "label:KEY") or a list of them, of which the first that has room is taken: all members run in one place of
-- it, and with "fleet" as the last of several anywhere, if none has room; same, node labels whose values all
-- have in common; on_lost, what happens when a running member waits again and fewer than min_size are left:
-- "stop" (default), the others stop and start again with it, or "replace", it is placed again beside them; or
-- "continue": a member that runs and does not complete has failed, and the others go on, until fewer than
-- min_size, or none, are left; hold, how long nodes have for fetching their members (30 seconds); one_of, the
-- choice that it is an alternative of, as for a lease: reserving room for it takes the choice; and options of
-- spawn_lease that all members have by default. With a deadline the gang fails if it has not started by then,
-- or has to start again after it. The headers of members have gang_id, gang_rank (from 0) and gang_size.
-- Locks: new rows, ids that the producer chose, its choice. Raises: QHQ01, QHA01, QHC03, QHC04, QHW01, QHG02,
-- QHL06, QHM03, QHA03. Not idempotent: with an own gang_id a second call raises QHG02.
create or replace function hwqueue.spawn_gang(p_queue text, p_members jsonb, p_options jsonb default '{}')
returns table (ordinal int, lease_id uuid, gang_id uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  -- also assigns the transaction its id, as in spawn_lease
  v_queue hwqueue.queue := (hwqueue.find_spawn_queue(p_queue, null)).queue;
  v_now timestamptz := hwqueue.clock();
  v_read record := hwqueue.read_gang(p_members, coalesce(nullif(p_options, 'null'), '{}'), v_now);
  v_gang hwqueue.gang := v_read.gang;
  v_spawns hwqueue.spawn_request[];
begin
  v_spawns := hwqueue.read_spawns(v_queue, v_read.elements, v_now);
  perform hwqueue.refuse_lanes(s.lanes, 'a member of a gang') from unnest(v_spawns) s;
  if hwqueue.my_tenants() is not null then
    perform hwqueue.check_own_spawns(v_spawns, true);
  end if;
  for v_index in 1 .. cardinality(v_spawns) loop
    v_spawns[v_index].available_at := 'infinity';
    v_spawns[v_index].team_id := v_gang.gang_id;
  end loop;
  v_gang.size := cardinality(v_spawns);
  begin
    v_gang := hwqueue.insert_gang(v_gang, array(
        select s.lease_id from unnest(v_spawns) s order by s.ordinal), v_queue, v_spawns[1].tier,
      v_spawns[1].priority, v_now);
  exception when unique_violation then
    perform hwqueue.refuse('QHG02', format('gang %s exists already', v_gang.gang_id),
      jsonb_build_object('field', 'options.gang_id', 'gang_id', v_gang.gang_id),
      'use a fresh id; the same id never makes a second gang');
  end;
  if v_gang.choice_id is not null then
    perform hwqueue.join_choice(v_gang.choice_id, v_gang.tenant, v_gang.gang_id, v_now);
  end if;
  perform hwqueue.write_spawns(v_spawns, v_queue, v_now);
  return query
    select m.ordinality::int - 1, m.lease_id, v_gang.gang_id
    from unnest(v_gang.members) with ordinality m(lease_id, ordinality);
end
$$;

-- Returns a gang: its state, why it was not reserved at the last try (reason), where it is, and its members
-- [{"ordinal", "lease_id", "state", "node_id", "node", "reserved_until", "earmarked"}]. state is one of
-- waiting, earmarked, reserved, running, stopping, cancelling, completed, failed and cancelled. An earmarked
-- gang has room of its own, parts of which others still use; it is reserved once they have ended, which is by
-- starts_by at the latest; null: not known. missing: how many members wait to join the others; reason is then
-- why they could not at the last try. run_id and step: the step of a run that it is, null for others.
-- Raises: QHG01.
create or replace function hwqueue.get_gang(p_gang uuid)
returns table (gang_id uuid, queue text, tenant text, state text, reason text, size int,
  together text[], same text[], on_lost text, hold interval, place text, tries int, losses int,
  next_try_at timestamptz, created_at timestamptz, started_at timestamptz, finished_at timestamptz,
  members jsonb, starts_by timestamptz, min_size int, missing int, run_id uuid, step text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_gang hwqueue.gang := hwqueue.seen_gang(hwqueue.find_gang(p_gang));
begin
  return query
    select v_gang.gang_id, q.name, v_gang.tenant, v_gang.state, v_gang.reason, v_gang.size,
           v_gang.together, v_gang.same, v_gang.on_lost, v_gang.hold, v_gang.place, v_gang.tries,
           v_gang.losses, case when v_gang.state = 'waiting' then v_gang.next_try_at end, v_gang.created_at,
           v_gang.started_at, v_gang.finished_at, hwqueue.gang_roster(p_gang),
           case when v_gang.state = 'earmarked' then hwqueue.earmark_start(v_gang, hwqueue.clock()) end,
           coalesce(v_gang.min_size, v_gang.size), v_gang.missing, v_gang.run_id, (
             select d.name from hwqueue.run r
             join hwqueue.workflow_step d on d.workflow_id = r.workflow_id
             where r.run_id = v_gang.run_id and d.step_no = v_gang.step_no)
    from hwqueue.queue q where q.queue_id = v_gang.queue_id;
end
$$;

-- Returns gangs, the newest first, at most p_limit; p_state: only of this state. A page goes on behind the
-- last gang of the one before: p_before is its created_at, p_before_gang its gang_id. Without p_before_gang
-- those that were spawned in one transaction with it are left out.
-- Raises: QHA01.
create or replace function hwqueue.list_gangs(p_state text default null, p_limit int default 50,
  p_before timestamptz default null, p_before_gang uuid default null)
returns table (gang_id uuid, queue text, tenant text, state text, reason text, size int,
  place text, created_at timestamptz, started_at timestamptz, finished_at timestamptz,
  starts_by timestamptz, min_size int, missing int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_tenants text[] := hwqueue.my_tenants();
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'call again with p_before for more'),
    hwqueue.json_choice(to_jsonb(p_state), 'p_state', hwqueue.gang_states());
  return query
    select g.gang_id, q.name, g.tenant, s.state, s.reason, g.size, g.place, g.created_at,
           g.started_at, s.finished_at,
           case when s.state = 'earmarked' then hwqueue.earmark_start(g, hwqueue.clock()) end,
           coalesce(g.min_size, g.size), g.missing
    from hwqueue.gang g
    join hwqueue.queue q on q.queue_id = g.queue_id
    cross join lateral (select (x).* from hwqueue.seen_gang(g) x offset 0) s
    where (p_state is null or g.state = p_state and s.state = p_state)
      and (p_before is null or g.created_at < p_before
           or g.created_at = p_before and g.gang_id < p_before_gang)
      and (v_tenants is null or g.tenant = any (v_tenants))
    order by g.created_at desc, g.gang_id desc limit p_limit;
end
$$;

-- Returns why a gang is where it is; of one that waits, where its members have room, what is in the way
-- there, and what would let it start; of one that is earmarked, what its nodes still run. Changes nothing.
--
-- headline: one sentence; code: ready when a place has room for all, a reason code, or the state; permanent:
-- no place has room even if nothing ran there; waiting: how many members wait. The rest is about these; of a
-- gang with min_size about as many of them as must start together, or about the next one that is to join.
-- kinds [{"task", "members", "words", "nodes", "room", "blocker", "code", "permanent"}]: the 10 with most
-- members, how many nodes may run each, and why none may; places [{"place", "words", "nodes", "room",
-- "emptied", "kinds", "in_the_way", "claims", "others"}]: the 20 with most room, of place_count: how many
-- members have room now and would have if its nodes were empty, the nodes that would have to be, and, of the
-- first 5, what runs there: claims as the holders of explain_lease, others: how many are of other tenants;
-- ways [{"way", "words", "place", "together", "same", "members", "claims", "until"}]: wider, anywhere,
-- without_same, without_both (so it would have room now), smaller (n members have), empty (all have, once the
-- nodes in the way are empty), stop (all have, once these claims have stopped: few, the later tier, the lower
-- priority and the younger claim first, of the caller's tenants), wait (all have by until at the latest, as
-- max_run of what runs there says, unless others take it; null: not known, and words say why). Of one that is
-- earmarked stop and wait are told. What fits is estimated as reap does before it tries: kinds of members
-- that share nodes are counted each as if it were alone, but in stop and wait. What members ask about other
-- leases does not count.
-- Raises: QHG01.
create or replace function hwqueue.explain_gang(p_gang uuid)
returns table (gang_id uuid, queue text, state text, headline text, code text,
  permanent boolean, as_of timestamptz, size int, waiting int, kinds jsonb, places jsonb, place_count bigint,
  ways jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_gang hwqueue.gang := hwqueue.seen_gang(hwqueue.find_gang(p_gang));
  v_queue hwqueue.queue;
  v_class_ids bigint[] := array(  -- of the members that wait
    select s.class_id from unnest(v_gang.members) with ordinality m(lease_id, ordinality)
    join hwqueue.scheduled s
      on (s.queue_id, s.available_at, s.lease_id) = (v_gang.queue_id, 'infinity', m.lease_id)
    order by m.ordinality);
  v_members record;
begin
  select q.* into v_queue from hwqueue.queue q where q.queue_id = v_gang.queue_id;
  waiting := cardinality(v_class_ids);
  select array_agg(c order by w.members desc, c.class_id) as classes,
         array_agg(w.members order by w.members desc, c.class_id) as members
  into v_members
  from (  -- those that must start together
    select i.class_id, count(*)::int as members
    from unnest(v_class_ids[: hwqueue.members_needed(v_gang, waiting)]) i(class_id) group by i.class_id) w
  join hwqueue.placement_class c on c.class_id = w.class_id;
  gang_id := p_gang;
  queue := v_queue.name;
  state := v_gang.state;
  as_of := hwqueue.clock();
  size := v_gang.size;
  if waiting = 0 or v_gang.state not in ('waiting', 'earmarked')
    and (v_gang.state <> 'running' or v_gang.missing = 0) then
    code := v_gang.state;
    headline := (
      select case
        when v_gang.finished_at is not null then format('%s %s ago', v_gang.state,
            hwqueue.span_words(as_of - v_gang.finished_at)) || coalesce(': ' || left(v_gang.reason, 200), '')
        when v_gang.state in ('reserved', 'running') then concat_ws(', ',
          case when m.running > 0 or m.reserved = 0 then format('%s %s%s', m.running,
            case m.running when 1 then 'member runs' else 'members run' end,
              ' in ' || hwqueue.gang_place_words(v_gang.place)) end,
          case when m.reserved > 0 then format('%s%s%s reserved%s and not fetched: the first until %s UTC',
            m.reserved, case when m.running > 0 then '' when m.reserved = 1 then ' member'
              else ' members' end, case m.reserved when 1 then ' is' else ' are' end,
            case when m.running = 0 then ' in ' || hwqueue.gang_place_words(v_gang.place) end,
            to_char(m.until at time zone 'UTC', 'HH24:MI:SS')) end,
          case when v_gang.missing > 0 then format('%s wait to join', v_gang.missing) end,
          case when v_gang.on_lost = 'continue' then (
            select case count(*) when 0 then null when 1 then '1 is lost' else count(*) || ' are lost' end
            from hwqueue.outcome o where o.lease_id = any (v_gang.members) and o.state <> 'completed') end)
        else hwqueue.gang_wait_words(v_gang) end
        || case when v_gang.finished_at is null
          then coalesce('; ' || hwqueue.postponed_words(v_gang.gang_id), '') else '' end
      from (
        select count(*) filter (where c.is_reserved) as reserved,
               count(*) filter (where c.is_reserved is not true) as running,
               min(c.expires_at) filter (where c.is_reserved) as until
        from hwqueue.claim c
        where c.lease_id = any (v_gang.members)) m);
    permanent := v_gang.finished_at is not null;
    kinds := '[]';
    select e.places, e.ways into places, ways from hwqueue.explain_earmark(v_gang, as_of) e
    where v_gang.state = 'earmarked';
    places := coalesce(places, '[]');
    ways := coalesce(ways, '[]');
    place_count := jsonb_array_length(places);
  else
    select e.* into headline, code, permanent, kinds, places, place_count, ways
    from hwqueue.explain_rooms(v_gang, v_queue, v_members.classes, v_members.members, as_of) e;
  end if;
  return next;
end
$$;

-- Returns what explain_gang would of a gang that is not spawned: whether it would start now, and if not, why.
-- The arguments are those of spawn_gang. Writes nothing; refuses what a spawn refuses, but does not read the
-- options that decide neither where nor whether members run.
-- Raises: QHQ01, QHA01, QHC03, QHC04, QHW01, QHA03.
create or replace function hwqueue.what_if_gang(p_queue text, p_members jsonb, p_options jsonb default '{}')
returns table (queue text, headline text, code text, permanent boolean, as_of timestamptz,
  size int, kinds jsonb, places jsonb, place_count bigint, ways jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_queue hwqueue.queue := hwqueue.find_queue(p_queue);
  v_now timestamptz := hwqueue.clock();
  v_read record := hwqueue.read_gang(p_members, coalesce(nullif(p_options, 'null'), '{}'), v_now);
  v_gang hwqueue.gang := v_read.gang;
  v_kind record;
  v_task text;
  v_content hwqueue.class_content;
  v_class hwqueue.placement_class;
  v_classes hwqueue.placement_class[];
  v_members int[];
begin
  for v_kind in  -- members: those that must start together, the first min_size, or all
    select k.kind, count(*) filter (where (k.ordinality <= v_gang.min_size) is not false)::int as members
    from (select hwqueue.spawn_kind(e.value) as kind, e.ordinality
          from jsonb_array_elements(v_read.elements) with ordinality e) k
    group by k.kind order by min(k.ordinality)
  loop
    v_task := hwqueue.json_text(v_kind.kind -> 'task', 'task', 200);
    perform hwqueue.check_name(v_task, 'task', 200);
    v_content := hwqueue.spawn_content(v_queue.queue_id, v_task, hwqueue.class_options(
      hwqueue.with_defaults(v_kind.kind -> 'options', (
        select t.defaults from hwqueue.task t where t.name = v_task))));
    v_class := hwqueue.draft_class(v_content, hwqueue.service_away_from(v_content.service_id));
    perform hwqueue.check_own_class(v_class, 'options', null);
    if v_kind.members > 0 then
      v_classes := v_classes || v_class;
      v_members := v_members || v_kind.members;
    end if;
  end loop;
  v_gang.gang_id := null;
  v_gang.size := jsonb_array_length(v_read.elements);
  return query
    select v_queue.name, e.headline, e.code, e.permanent, v_now, v_gang.size,
           e.kinds, e.places, e.place_count, e.ways
    from hwqueue.explain_rooms(v_gang, v_queue, v_classes, v_members, v_now) e;
end
$$;

-- Asks a gang to end, and returns its state: cancelling, or how it has ended. Members that wait are cancelled
-- within about a second, those that run are asked to stop.
-- Locks: the gang. Raises: QHG01, QHA02. Idempotent.
create or replace function hwqueue.cancel_gang(p_gang uuid, p_reason text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_gang hwqueue.gang;
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate'),
    hwqueue.check_payload(to_jsonb(p_reason), 'p_reason', 1024), hwqueue.find_gang(p_gang);
  select g.* into v_gang from hwqueue.gang g where g.gang_id = p_gang for no key update;
  if v_gang.finished_at is null and v_gang.state <> 'cancelling' then
    update hwqueue.gang g set state = 'cancelling', reason = p_reason where g.gang_id = p_gang;
    insert into hwqueue.team_change (team_id) values (p_gang);
    perform hwqueue.note_gang(v_gang, 'cancelling');
    return 'cancelling';
  end if;
  return v_gang.state;
end
$$;

-- Returns whether all members of the gang of a claimed lease are there: the barrier that a handler passes
-- before it begins, and the roster that it then needs. With min_size: whether as many are, and none of those
-- that start with them is yet to be fetched. members: those of get_gang, with the labels of their nodes; one
-- whose state is scheduled is not there. retry_after: when to ask again while they are not, the later the
-- more members there are.
-- Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHG01 for a lease of no gang.
create or replace function hwqueue.gang_status(p_lease uuid, p_token bigint)
returns table (gang_id uuid, ready boolean, size int, members jsonb, retry_after interval, min_size int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_gang_id uuid;
begin
  perform hwqueue.require_claim(p_lease, p_token);
  select g.gang_id into v_gang_id from hwqueue.claim c
  join hwqueue.gang g on g.gang_id = c.team_id
  where c.lease_id = p_lease and c.claim_token = p_token;
  if v_gang_id is null then
    perform hwqueue.refuse('QHG01', format('lease %s is of no gang', p_lease), '{"gang_id": null}',
      'check the id; a gang goes when the last of its leases has gone');
  end if;
  return query
    select g.gang_id, r.is_complete, g.size, m.members,
           case when not r.is_complete then interval '0.2 seconds' * (1 + g.size / 32) end,
           coalesce(g.min_size, g.size)
    from hwqueue.gang g
    cross join lateral (select hwqueue.gang_roster(g.gang_id) as members offset 0) m
    cross join lateral (  -- no more are absent than may be, and none is reserved that does not join later
      select count(*) filter (where a.is_reserved or a.is_waiting) <= hwqueue.may_be_missing(g)
             and (g.state = 'running' or not bool_or(a.is_reserved)) as is_complete
      from (select x ?| array['reserved_until', 'earmarked'] as is_reserved,
                   x ->> 'state' = 'scheduled' as is_waiting
            from jsonb_array_elements(m.members) x) a) r
    where g.gang_id = v_gang_id;
end
$$;
