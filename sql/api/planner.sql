-- Public: what `hwqueue planner` calls, as a login with hwqueue_planner.
--
-- A planner reads what waits and what is free, every second. It computes what room on a device is worth, and
-- sets that as prices; claims use them until they run out. It also chooses places for gangs that wait, and
-- nodes for single leases of short queues, and has them reserved there. Nothing waits for a planner: without
-- one, every score is what it is without prices, and reap reserves gangs where they fit tightest.
--
-- Invariant: a planner decides nothing. What a wrong or late one does is a worse order of leases that fit,
-- leases on nodes that others suit better, and gangs in places that suit them, but leave less room for
-- others. A hostile one can delay: nodes that its open transaction has locked, and leases that it reserves
-- again and again on a node that does not ask.

-- Leads the planning, or goes on leading. Returns the epoch, with which set_prices is called; null
-- while another holder leads. Any number of processes may call it: one leads, until p_ttl after its last
-- call. A new leader gets a higher epoch, which makes writes of the one before fail.
--
-- p_holder: a name of the process' own, of 1 to 200 characters. p_ttl: from 0 to one hour, of which a minute
-- counts at most: one that is lost keeps others waiting no longer. With 0 the lead ends at once.
--
-- Locks: the planner's row, skip locked: null while another session holds it. Raises: QHA01, QHA02, QHA03.
create or replace function hwqueue.lead_planner(p_holder text, p_ttl interval default '10 seconds')
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_until timestamptz;
  v_planner hwqueue.planner;
  v_epoch bigint;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  if (length(p_holder) between 1 and 200) is not true then
    perform hwqueue.refuse('QHA01', 'p_holder must be text of 1 to 200 characters',
      jsonb_build_object('field', 'p_holder'), 'give a name that no other process has');
  end if;
  perform hwqueue.check_span(p_ttl, 'p_ttl', '0', '1 hour', 'from 0 to one hour',
    'give a span such as interval ''10 seconds''');
  v_until := v_now + least(p_ttl, interval '1 minute');
  if not exists (select from hwqueue.planner p) then
    insert into hwqueue.planner (epoch, holder, round, expires_at)
    values (0, '', 0, v_now) on conflict do nothing;
  end if;
  select p.* into v_planner from hwqueue.planner p for no key update skip locked;
  update hwqueue.planner p
  set epoch = p.epoch + (p.holder <> p_holder)::int, holder = p_holder, expires_at = v_until,
      round = case p.holder when p_holder then p.round else 0 end
  where v_planner.holder = p_holder or v_planner.expires_at <= v_now
    or v_planner.expires_at > v_now + interval '2 minutes'  -- the clock was set back
  returning p.epoch into v_epoch;
  return v_epoch;
end
$$;

-- Returns a page of what a planner reads, one object a row.
--
-- p_part 'queues': the queues that are not paused, {"queue"}. 'classes': of p_queue, each placement class
-- that asks for GPUs and has leases that may be claimed, {"class_id", "ready", "cpu_milli", "memory_mib",
-- "gpus", "gpu_milli", "profiles"}; ready is counted up to p_most. 'nodes': live nodes with GPUs, in groups
-- of one profile and size, {"profile_id", "gpus", "cpu_milli", "memory_mib", "nodes", "cpu_free",
-- "memory_free", "free"}; free: how many devices have how many thousandths left, {"1000": 12, "190": 3}. The
-- same group may be on several pages. 'gangs': those that wait and hold nothing, in the order in which reap
-- tries them, {"gang_id", "queue", "rank", "together", "same", "members"}; members: by class, {"class_id",
-- "members", "gpus", "gpu_milli", "cpu_milli", "memory_mib", "is_plain"}; is_plain: nothing else is asked
-- for. 'matches': of p_queue, all classes that wait there, if it is short: at most p_most leases of p_limit
-- classes, and nodes that suit some of them better than others, {"class_id", "patience", "best", "worst",
-- "leases", "nodes"}; else none. leases: in order, [id, tier, rank, seconds waited]; nodes: those with room,
-- [id, affinity, for how many leases]; best, worst: the affinity of any live node.
--
-- p_limit: queues, classes, nodes or gangs to look at. A last row without item says in `next` what to pass as
-- p_after for the page after; without such a row there is none.
--
-- Raises: QHA01, QHA03, QHQ01. Takes no locks, at any isolation level.
create or replace function hwqueue.planner_view(p_part text, p_queue text default null,
  p_after text default null, p_limit int default 1000, p_most int default 10000)
returns table (item jsonb, next text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off set extra_float_digits = 1
as $$
declare
  v_items jsonb[];
  v_next text;
  v_queue_id int;
  v_ids bigint[];
  v_from hwqueue.scan_starts;
  v_gangs hwqueue.gang[];
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'ask for the pages one after another'),
    hwqueue.check_range(p_most, 'p_most', 1, 1000000, 'leases of a class beyond its room change nothing');
  if p_part = 'classes' and p_after !~ '^[0-9]{1,18}$'
    or p_part = 'gangs' and p_after !~ '^[0-9]{1,4} -?[0-9]{1,18} [0-9]{1,18}$' then
    perform hwqueue.refuse_field('QHA01', 'p_after', format('is of no page of %s', p_part),
      'pass what the last row of the page before says in next');
  end if;
  case p_part
    when 'queues' then
      select array_agg(jsonb_build_object('queue', q.name) order by q.name),
             case when count(*) >= p_limit then max(q.name) end
      into v_items, v_next
      from (
        select o.name collate "C" as name from hwqueue.queue o
        where o.dropped_at is null and o.paused_at is null
          and (p_after is null or o.name collate "C" > p_after)
        order by 1 limit p_limit) q;
    when 'classes' then
      v_queue_id := (hwqueue.find_queue(p_queue)).queue_id;
      v_ids := array(
        select c.class_id from hwqueue.placement_class c
        where c.queue_id = v_queue_id and c.class_id > coalesce(p_after::bigint, 0)
        order by c.class_id limit p_limit);
      v_from := hwqueue.queue_scan_starts(array[v_queue_id], cardinality(v_ids));
      v_next := case when v_from.queue_ids is not null then v_ids[p_limit] end;
      v_items := array(  -- those past their deadline count until reap ends them
        select jsonb_build_object('class_id', c.class_id, 'ready', n.ready, 'cpu_milli', c.cpu_milli,
          'memory_mib', c.memory_mib, 'gpus', c.gpu_count, 'gpu_milli', c.gpu_milli, 'profiles', (
            select coalesce(jsonb_agg(e.profile_id), '[]') from hwqueue.eligibility e
            where e.class_id = c.class_id and e.profile_id is not null))
        from unnest(v_ids) with ordinality k(class_id, turn)
        join hwqueue.placement_class c on c.class_id = k.class_id and c.gpu_count > 0
        cross join lateral hwqueue.class_start(k.class_id, v_from) s
        cross join lateral (
          select count(*) as ready
          from (
            select 1 from hwqueue.ready r
            where r.class_id = k.class_id and (r.tier, r.rank, r.position) >= (s.tier, s.rank, s.position)
            order by r.tier, r.rank, r.position limit p_most) x) n
        where v_from.queue_ids is not null and n.ready > 0
        order by k.turn);
    when 'nodes' then
      select f.items, f.next into v_items, v_next
      from hwqueue.free_devices(hwqueue.json_uuid(to_jsonb(p_after), 'p_after'), p_limit, v_now) f;
    when 'gangs' then
      v_gangs := array(
        select g from hwqueue.gang g
        where g.state = 'waiting' and (g.tier, g.rank, g.position) > (
            coalesce(split_part(p_after, ' ', 1)::smallint, -1),
            coalesce(split_part(p_after, ' ', 2)::bigint, 0),
            coalesce(split_part(p_after, ' ', 3)::bigint, 0))
          and hwqueue.may_be_tried(g, v_now)
        order by g.tier, g.rank, g.position limit p_limit);
      v_next := (
        select concat_ws(' ', g.tier, g.rank, g.position) from unnest(v_gangs[p_limit : p_limit]) g);
      v_items := array(
        select jsonb_build_object('gang_id', g.gang_id, 'queue', q.name, 'tier', g.tier, 'rank', g.rank,
          'together', g.together, 'same', g.same, 'members', m.members)
        from unnest(v_gangs) g
        join hwqueue.queue q on q.queue_id = g.queue_id and q.paused_at is null and q.dropped_at is null
        cross join lateral (
          select jsonb_agg(jsonb_build_object('class_id', c.class_id, 'members', w.members, 'gpus',
                   c.gpu_count, 'gpu_milli', c.gpu_milli, 'cpu_milli', c.cpu_milli, 'memory_mib',
                   c.memory_mib, 'is_plain', coalesce(c.custom, '{}') = '{}' and c.gpu_wanted = '{}'
                   and c.cpu_isolation is null and c.gpu_exclusivity is null) order by c.class_id) as members
          from (select s.class_id, count(*) as members
                from unnest(g.members) r(lease_id)
                join hwqueue.scheduled s
                  on (s.queue_id, s.available_at, s.lease_id) = (g.queue_id, 'infinity', r.lease_id)
                group by s.class_id) w
          join hwqueue.placement_class c on c.class_id = w.class_id) m
        where g.place is null and m.members is not null
        order by g.tier, g.rank, g.position);
    when 'matches' then
      v_items := hwqueue.class_matches(hwqueue.find_queue(p_queue), p_limit, p_most, v_now);
    else
      perform hwqueue.refuse('QHA01', 'p_part must be queues, classes, nodes, gangs or matches',
        jsonb_build_object('field', 'p_part'), 'read queues first, then classes of each, nodes and gangs');
  end case;
  return query select i.item, null::text from unnest(v_items) i(item);
  if v_next is not null then
    return query select null::jsonb, v_next;
  end if;
end
$$;

-- Sets the prices of a queue, for p_ttl: {"device_worth": [101 numbers]}, what a device with 0, 10, 20, ...
-- 1000 thousandths left is worth, in devices: from 0 to 1, and never less for more room. Claims of the queue,
-- and match_nodes, score with it until p_ttl has passed or other prices are set (fit_score).
--
-- p_epoch: as lead_planner returned it. p_round: a number that grows with each round of the planner. Returns
-- `set`; or, with nothing changed, `deposed` when another process leads, `old_round` when a later round was
-- written, `busy` when another session holds the planner's row: try again in the next round. p_ttl: from 0
-- to one hour; 0 ends the prices at once.
--
-- Locks: the planner's row, skip locked; the first time the queue's row. Raises: QHA01, QHA02, QHA03, QHQ01.
create or replace function hwqueue.set_prices(p_queue text, p_prices jsonb, p_ttl interval, p_round bigint,
  p_epoch bigint) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue;
  v_worth double precision[];
  v_refusal text;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed(),
    hwqueue.check_span(p_ttl, 'p_ttl', '0', '1 hour', 'from 0 to one hour',
      'give a span such as interval ''10 seconds''');
  perform hwqueue.check_object(p_prices, array['device_worth'], 'prices');
  if (case when jsonb_typeof(p_prices -> 'device_worth') = 'array'
           then jsonb_array_length(p_prices -> 'device_worth') end) is distinct from 101 then
    perform hwqueue.refuse_field('QHA01', 'prices.device_worth', 'must be a list of 101 numbers',
      'give what a device with 0, 10, 20, ... 1000 thousandths left is worth');
  end if;
  v_worth := array(
    select hwqueue.json_number(case when jsonb_typeof(e.value) = 'null' then '""' else e.value end, format(
        'prices.device_worth[%s]', e.ordinality - 1), 0, 1)::double precision
    from jsonb_array_elements(p_prices -> 'device_worth') with ordinality e order by e.ordinality);
  perform hwqueue.refuse_field('QHA01', 'prices.device_worth',
    format('must not fall, but [%s] is below [%s]', i - 1, i - 2),
    'more room on a device is never worth less')
  from generate_series(2, 101) i where v_worth[i] < v_worth[i - 1];
  v_queue := hwqueue.find_queue(p_queue);
  v_refusal := hwqueue.fence_planner(p_round, p_epoch);
  if v_refusal is null then
    insert into hwqueue.queue_price as p (queue_id, epoch, round, device_worth, worth_until)
    values (v_queue.queue_id, p_epoch, p_round, v_worth, hwqueue.clock() + p_ttl)
    on conflict (queue_id, epoch, round) do update
    set device_worth = excluded.device_worth, worth_until = excluded.worth_until;
    delete from hwqueue.queue_price p  -- one row that is older
    where p.queue_id = v_queue.queue_id and (p.epoch, p.round) = (
      select o.epoch, o.round from hwqueue.queue_price o
      where o.queue_id = v_queue.queue_id and (o.epoch, o.round) < (p_epoch, p_round)
      order by o.epoch desc, o.round desc limit 1);
    update hwqueue.queue q set has_prices = true where q.queue_id = v_queue.queue_id and not q.has_prices;
  end if;
  return coalesce(v_refusal, 'set');
end
$$;

-- Returns where gangs have room: for nodes of one place that have the same rooms for their members, how many
-- leases of each class one of them has room for, each class counted as if it were alone, at most 10000. The
-- places are those of the first domain that the gangs are together in.
--
-- p_gangs: 1 to 1000 gangs that wait. Those that are together, or alike, in another way than the first are
-- left out, and so are classes beyond 20.
--
-- Raises: QHA01, QHA03. Takes no locks, at any isolation level.
create or replace function hwqueue.planner_rooms(p_gangs uuid[])
returns table (place text, nodes bigint, rooms jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  -- all nodes: by hash, whatever the statistics say
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on set jit = off
as $$
declare
  v_first hwqueue.gang;
  v_ids bigint[];
  v_classes hwqueue.placement_class[];
begin
  perform hwqueue.require_all_tenants();
  if (cardinality(p_gangs) between 1 and 1000) is not true or array_position(p_gangs, null) is not null then
    perform hwqueue.refuse('QHA01', 'p_gangs must be 1 to 1000 ids of gangs',
      jsonb_build_object('field', 'p_gangs'), 'pass gangs of one page of planner_view');
  end if;
  select g.* into v_first from hwqueue.gang g where g.gang_id = p_gangs[1];
  v_ids := array(
    select distinct s.class_id from hwqueue.gang g
    cross join unnest(g.members) m(lease_id)
    join hwqueue.scheduled s
      on (s.queue_id, s.available_at, s.lease_id) = (g.queue_id, 'infinity', m.lease_id)
    where g.gang_id = any (p_gangs) and g.state = 'waiting'
      and g.together[1] is not distinct from v_first.together[1]
      and g.same @> v_first.same and g.same <@ v_first.same
    order by 1 limit 20);
  v_classes := array(select c from hwqueue.placement_class c where c.class_id = any (v_ids)
    order by c.class_id);
  return query
    select n.place, count(*), n.rooms
    from (
      select p.place, p.node_id,
             jsonb_object_agg((v_classes[r.class_no]).class_id, r.copies order by r.class_no) as rooms
      from (
        select t.place, unnest(t.node_ids) as node_id
        from hwqueue.node_places(v_first.together[1:1], v_first.same) t) p
      join unnest(hwqueue.gang_rooms(v_classes, array_fill(10000, array[cardinality(v_classes)]), 'now',
        hwqueue.clock())) r on r.node_id = p.node_id
      group by p.place, p.node_id) n
    group by n.place, n.rooms order by n.place, n.rooms;
end
$$;

-- Reserves room for all members of a gang that waits, as reap does, but begins with p_place, a place of
-- planner_rooms. Where it has no room for all members by now, the other places are tried. A place of a domain
-- that the gang would rather be together in still comes before it.
--
-- p_epoch and p_round: as for set_prices. Returns `reserved`; or, with nothing changed, `no_room`, `blocked`
-- (a requirement about other leases does not hold), `not_waiting` (it is reserved, runs, has ended, its queue
-- is paused, or it is no gang), `busy` (another session holds what it needs: try again in the next round),
-- `deposed` or `old_round`.
--
-- Locks: the planner's row, the gang, its entries, nodes, lock stripes and counters, all skip locked. Wakes:
-- waiting workers. Raises: QHA01, QHA02, QHA03.
create or replace function hwqueue.reserve_gang(p_gang uuid, p_place text, p_round bigint, p_epoch bigint)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_refusal text;
  v_now timestamptz;
  v_gang hwqueue.gang;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  if p_gang is null then
    perform hwqueue.refuse('QHA01', 'p_gang must not be null', jsonb_build_object('field', 'p_gang'),
      'pass the id of a gang that planner_view returned');
  elsif (length(p_place) <= 4000) is not true then
    perform hwqueue.refuse('QHA01', 'p_place must be text of at most 4000 characters',
      jsonb_build_object('field', 'p_place'), 'pass a place that planner_rooms returned');
  end if;
  v_refusal := hwqueue.fence_planner(p_round, p_epoch);
  if v_refusal is not null then
    return v_refusal;
  end if;
  v_now := hwqueue.clock();
  select g.* into v_gang from hwqueue.gang g where g.gang_id = p_gang for no key update skip locked;
  if not found then
    return case when exists (select from hwqueue.gang g where g.gang_id = p_gang)
      then 'busy' else 'not_waiting' end;
  elsif v_gang.state <> 'waiting' or not hwqueue.may_be_tried(v_gang, v_now) or not exists (
      select from hwqueue.queue q
      where q.queue_id = v_gang.queue_id and q.paused_at is null and q.dropped_at is null) then
    return 'not_waiting';
  elsif exists (select from hwqueue.team_change c where c.team_id = p_gang) then
    return 'busy';  -- look_at_gang goes first
  end if;
  return hwqueue.place_verdict(hwqueue.assemble_gang(v_gang, p_place, false, v_now));
end
$$;

-- Reserves pending leases on nodes for p_hold: [{"lease", "node"}], 1 to 64, each lease once. A node fetches
-- what is reserved on it with its next claim. What it does not fetch goes back to where it was in line, and
-- uses up no attempt.
--
-- p_epoch and p_round: as for set_prices. p_hold: from 100 ms to one minute. Returns a row for each:
-- `reserved`; or, with nothing changed, `no_room`, `does_not_suit`, `blocked` (a requirement about other
-- leases does not hold, or its queue is paused), `taken` (it is not pending any more, or is an alternative of
-- a choice), `busy` (another session holds what it needs), `deposed` or `old_round`. All rules are checked as
-- for a claim, but the order of leases and how long they wait for a better node.
--
-- Locks: the planner's row, nodes, entries, lock stripes and counters, all skip locked. Wakes: waiting
-- workers. Raises: QHA01, QHA02, QHA03.
create or replace function hwqueue.reserve_leases(p_places jsonb, p_hold interval, p_round bigint,
  p_epoch bigint) returns table (lease_id uuid, verdict text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_refusal text;
  v_place record;
  v_lease hwqueue.lease;
  v_queue hwqueue.queue;
  v_entry hwqueue.scheduled;
  v_reason text;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.check_span(p_hold, 'p_hold', '100 milliseconds', '1 minute',
    'from 100 milliseconds to one minute', 'give a span such as interval ''3 seconds''');
  v_refusal := hwqueue.fence_planner(p_round, p_epoch);
  for v_place in
    select x.* from hwqueue.read_places(p_places, 64) x order by x.node, x.lease
  loop
    lease_id := v_place.lease;
    select l.* into v_lease from hwqueue.lease l where l.lease_id = v_place.lease;
    select q.* into v_queue from hwqueue.queue q where q.queue_id = v_lease.queue_id;
    verdict := case when v_refusal is not null then v_refusal
      when v_lease.choice_id is not null or hwqueue.lease_state(lease_id) = 'pending' is not true then 'taken'
      when v_queue.paused_at is not null or v_queue.dropped_at is not null then 'blocked'
      when not exists (
        select from hwqueue.node n
        where n.node_id = v_place.node and n.deregistered_at is null
          and hwqueue.unserved_part(n.queues, n.tasks, v_queue.name, v_lease.task_name) is null)
        then 'does_not_suit'
      when not hwqueue.lock_free_node(v_place.node) then 'busy' end;
    if verdict is null then
      begin
        v_entry := (select e from hwqueue.take_free_entries(array[lease_id]) e);
        v_reason := case
          when v_entry.lease_id is null or v_entry.class_id <> v_lease.class_id then 'busy'  -- or changed
          when v_entry.available_at > v_now or v_entry.deadline <= v_now then 'taken'
          else hwqueue.reserve(v_entry, v_place.node, p_hold, false, null, v_now) end;
        if v_reason is not null then
          perform hwqueue.abort_subtransaction();
        end if;
        perform hwqueue.wake_workers(v_queue);
      exception when sqlstate 'HWX01' then  -- the entry is there again, and its lock is released
      end;
      verdict := hwqueue.place_verdict(v_reason);
    end if;
    return next;
  end loop;
end
$$;

-- Returns what has become of leases that were reserved on nodes, [{"lease", "node"}], 1 to 1000: `reserved`,
-- the node has yet to fetch it; `fetched`, it runs there, or has run; `expired`, it is pending again; or
-- `gone`, it was cancelled, changed, or taken elsewhere since.
--
-- Raises: QHA01, QHA03. Takes no locks, at any isolation level.
create or replace function hwqueue.assigned_leases(p_places jsonb) returns table (lease_id uuid, verdict text)
language sql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set jit = off
as $$
  select hwqueue.require_all_tenants();
  select i.lease, case
    when c.node_id = i.node then case when c.is_reserved then 'reserved' else 'fetched' end
    when c.lease_id is not null then 'gone'
    when o.lease_id is not null
      then case when o.node_id = i.node and o.state <> 'cancelled' then 'fetched' else 'gone' end
    when l.node_id = i.node and a.outcome <> 'released' then 'fetched'
    when hwqueue.lease_state(i.lease) = 'pending' then 'expired'
    else 'gone' end
  from hwqueue.read_places(p_places, 1000) i
  left join hwqueue.claim c on c.lease_id = i.lease
  left join hwqueue.outcome o on o.lease_id = i.lease
  left join hwqueue.lease l on l.lease_id = i.lease
  left join hwqueue.attempt a on a.lease_id = i.lease and a.claim_token = l.claim_token  -- its last claim
$$;

-- Notes what a round of the planner has found, for p_ttl: {"gpus", "allocated", "bound"}, how many GPUs live
-- nodes have, how many of them are in use, and how many could be at most if what waits was placed at best
-- beside what runs. planner_status and metrics show it, and what else it may say: "seconds", how long each
-- part of the round took, {"gangs", "leases", "read", "solve"}; "resting", how many nodes it proposes no
-- leases for; and "leases", how many more single leases were proposed, reserved and so on since the planner
-- last said so, by what became of them (assignment_counts). Those are added up for good.
--
-- p_epoch and p_round: as for set_prices. Returns `noted`; or, with nothing changed, `deposed`, `old_round`
-- or `busy`. p_ttl: from 0 to one hour.
--
-- Locks: the planner's row, skip locked. Raises: QHA01, QHA02, QHA03.
create or replace function hwqueue.note_room(p_room jsonb, p_ttl interval, p_round bigint, p_epoch bigint)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_room hwqueue.planner;
  v_refusal text;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed(),
    hwqueue.check_span(p_ttl, 'p_ttl', '0', '1 hour', 'from 0 to one hour',
      'give a span such as interval ''10 seconds''');
  v_room := jsonb_populate_record(null::hwqueue.planner, hwqueue.read_object(p_room, 'room', 'room'));
  if (v_room.allocated <= v_room.bound and v_room.bound <= v_room.gpus) is not true then
    perform hwqueue.refuse_field('QHA01', 'room',
      'must have gpus, bound and allocated, each at most the one before',
      'for example {"gpus": 8, "bound": 7, "allocated": 5.5}');
  elsif v_room.seconds - '{gangs,leases,read,solve}'::text[] <> '{}'
    or v_room.leases - hwqueue.assignment_counts() <> '{}'
    or jsonb_path_exists(jsonb_build_array(coalesce(v_room.seconds, '{}'), coalesce(v_room.leases, '{}')),
      'strict $[*].* ? (@.type() != "number" || @ < 0 || @ > 1000000000)') then  -- lax: of lists their items
    perform hwqueue.refuse_field('QHA01', 'room', 'has seconds or leases that no round has',
      'for example {"seconds": {"solve": 0.3}, "leases": {"proposed": 7}}');
  end if;
  v_refusal := hwqueue.fence_planner(p_round, p_epoch);
  if v_refusal is null then
    update hwqueue.planner p
    set gpus = v_room.gpus, allocated = v_room.allocated, bound = v_room.bound,
        room_until = hwqueue.clock() + p_ttl, seconds = v_room.seconds, resting = v_room.resting,
        leases = p.leases || coalesce((
          select jsonb_object_agg(f.key, coalesce((p.leases ->> f.key)::numeric, 0) + f.value::numeric)
          from jsonb_each(v_room.leases) f), '{}');
  end if;
  return coalesce(v_refusal, 'noted');
end
$$;

-- Returns what a planner that leads says: its name and epoch, and until when it leads. gpus, allocated,
-- bound, seconds, resting: as it noted them; null where that has run out. prices: of each queue whose prices
-- are valid now, {"queue", "device_worth", "worth_until"}. leases: what became of single leases that planners
-- have assigned to nodes, in all. No row: no planner leads, and no prices are valid.
--
-- Raises: QHA03. Takes no locks, at any isolation level.
create or replace function hwqueue.planner_status()
returns table (holder text, epoch bigint, leads_until timestamptz, gpus double precision,
  allocated double precision, bound double precision, prices jsonb, leases jsonb, seconds jsonb, resting int)
language sql volatile security definer set search_path = pg_catalog, pg_temp set extra_float_digits = 1
as $$
  select hwqueue.require_all_tenants();
  select case when p.expires_at > c.now then p.holder end, case when p.expires_at > c.now then p.epoch end,
    case when p.expires_at > c.now then p.expires_at end, r.gpus, r.allocated, r.bound, v.prices, p.leases,
    r.seconds, r.resting
  from (select hwqueue.clock() as now) c
  cross join hwqueue.planner p
  cross join lateral (
    select coalesce(jsonb_agg(to_jsonb(x) order by x.queue), '[]') as prices
    from hwqueue.valid_prices(c.now) x) v
  left join lateral (
    select p.gpus, p.allocated, p.bound, p.seconds, p.resting where p.room_until > c.now) r on true
  where p.expires_at > c.now or v.prices <> '[]' or r.gpus is not null
$$;
