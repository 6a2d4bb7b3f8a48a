-- Writes spawns that spawn/read returned: idempotency keys first, then the entries in ready or scheduled,
-- never in both, then the leases.
-- Keys are inserted in sorted order, so that two batches cannot deadlock. Rows of new leases are invisible to
-- others until commit, so no other locks are needed. Only ids that a producer chose can collide
-- (insert_own_spawns), and alternatives share the row of their choice.

-- Returns the devices that adopted work runs on: those named, else those with most left. Shared devices may
-- be allocated over their limit, because the work runs there already.
-- Locks: the caller holds node_state. Raises: QHA01 for devices that the node does not have, or that
-- another lease has to itself.
create or replace function hwqueue.adopted_devices(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_load hwqueue.node_load, p_gpus jsonb) returns int[]
language plpgsql stable
as $$
declare
  v_requested uuid[] := hwqueue.json_uuids(p_gpus, 'options.gpus');
  v_exclusivity text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_exclusive_ids uuid[];
  v_devices int[];
begin
  if p_class.gpu_count = 0 then
    v_devices := '{}';
  elsif v_exclusivity is not null then
    v_devices := hwqueue.choose_devices(p_class.gpu_count, 0, v_requested, v_exclusivity,
      hwqueue.node_headroom(p_node, p_load));
  else
    v_exclusive_ids := array(
      select (g.value ->> 'resource_id')::uuid
      from hwqueue.claim c cross join lateral jsonb_array_elements(c.assignment -> 'gpus') g
      where c.node_id = p_node.node_id and c.assignment ? 'gpu_exclusivity');
    v_exclusive_ids := v_exclusive_ids || array(
      select d.parent from unnest(p_node.gpu_ids, p_node.gpu_parents) d(id, parent)
      where d.id = any (v_exclusive_ids));
    v_devices := array(
      select d.position::int from unnest(p_node.gpu_ids, p_node.gpu_parents, p_load.gpu_used)
        with ordinality d(id, parent, used, position)
      where (v_requested = '{}' or d.id = any (v_requested)) and d.parent is null
        and (d.id = any (v_exclusive_ids)) is not true
      order by d.used, d.position limit p_class.gpu_count);
  end if;
  if v_devices is null or cardinality(v_devices) < p_class.gpu_count
    or cardinality(v_requested) not in (0, p_class.gpu_count)
    or not v_requested <@ p_node.gpu_ids then
    perform hwqueue.refuse('QHA01',
      format('node %s does not have the %s devices that this work runs on', p_node.node_id,
        p_class.gpu_count),
      jsonb_build_object('field', 'options.gpus', 'node_id', p_node.node_id),
      'name as many of the node''s own devices as the lease asks for, none that another lease has to itself');
  end if;
  return v_devices;
end
$$;

-- Writes spawns that are read and checked: keys, entries, leases. Returns them, with stands_for set where a
-- key stands for another lease. Idempotent: per idempotency key. Wakes: waiting workers.
-- Locks in order: idempotency keys sorted, then choices sorted, then lease ids that the producer chose, then
-- only new rows. Raises: QHT01, QHL06 when such an id exists, QHA01 as join_choice, QHL04 and QHA01 as
-- write_replacements.
create or replace function hwqueue.write_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue,
  p_now timestamptz) returns hwqueue.spawn_request[]
language plpgsql volatile
as $$
declare
  v_spawns hwqueue.spawn_request[] := p_spawns;
  v_fresh hwqueue.spawn_request[];
  v_spawn hwqueue.spawn_request;
  v_has_keys boolean;
  v_has_own_ids boolean;
  v_has_choices boolean;
  v_has_replaces boolean;
  v_has_lanes boolean;
  v_must_wake boolean;
begin
  if cardinality(p_spawns) = 1 then  -- most calls: plain assignments are cheaper than a statement
    v_spawn := p_spawns[1];
    v_has_keys := v_spawn.idempotency_key is not null;
    v_has_own_ids := v_spawn.own_id;
    v_has_choices := v_spawn.choice_id is not null;
    v_has_replaces := v_spawn.replaces is not null;
    v_has_lanes := v_spawn.lanes is not null;
    v_must_wake := v_spawn.notify and v_spawn.available_at <= p_now;
  else
    select bool_or(s.idempotency_key is not null), bool_or(s.own_id), bool_or(s.choice_id is not null),
           bool_or(s.replaces is not null), bool_or(s.lanes is not null),
           bool_or(s.notify and s.available_at <= p_now)
    into v_has_keys, v_has_own_ids, v_has_choices, v_has_replaces, v_has_lanes, v_must_wake
    from unnest(p_spawns) s;
  end if;
  v_fresh := v_spawns;
  if v_has_keys then
    v_spawns := hwqueue.reserve_keys(v_spawns, p_queue, p_now);
    v_fresh := array(select s from unnest(v_spawns) s where s.stands_for is null order by s.ordinal);
    v_must_wake := exists (select 1 from unnest(v_fresh) s where s.notify and s.available_at <= p_now);
  end if;
  if v_has_choices then
    perform hwqueue.join_choice(s.choice_id, s.tenant, s.lease_id, p_now)
    from (select u.choice_id, c.tenant, u.lease_id  -- by id, so that two batches cannot deadlock
          from unnest(v_fresh) u
          join hwqueue.placement_class c on c.class_id = u.class_id
          where u.choice_id is not null order by u.choice_id, u.ordinal offset 0) s;
  end if;
  if v_has_own_ids then
    perform hwqueue.insert_own_spawns(v_fresh, p_queue, p_now, v_has_lanes);
  else
    perform hwqueue.insert_spawns(v_fresh, p_queue, p_now, v_has_lanes);
  end if;
  if v_has_replaces then
    perform hwqueue.write_replacements(v_fresh, p_now);
  end if;
  if v_must_wake then
    perform hwqueue.wake_workers(p_queue);
  end if;
  return v_spawns;
end
$$;

-- Writes spawns some of which have ids that their producer chose, like insert_spawns. Other leases may
-- already ask about such an id, so the lease may need a class of its own (target_class). An id that a
-- completed lease had is refused while its outcome exists: that would be taken for the end of the new lease,
-- whose tokens would start where the former ones did.
-- Locks: as insert_spawns, and waiting classes (skip locked). Raises: QHL06. Not idempotent.
create or replace function hwqueue.insert_own_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue,
  p_now timestamptz, p_has_lanes boolean) returns void
language plpgsql volatile
as $$
declare
  v_spawn record;
  v_spawns hwqueue.spawn_request[] := p_spawns;
  v_class_id bigint;
  v_targets bigint[] := '{}';
  v_ids uuid[] := array(select s.lease_id from unnest(p_spawns) s where s.own_id);
  v_completed uuid;
begin
  select o.lease_id, o.ordinal - 1 as index into v_spawn
  from (select s.lease_id, s.ordinal, row_number() over (partition by s.lease_id order by s.ordinal) as turn
        from unnest(p_spawns) s where s.own_id) o
  where o.turn > 1 or exists (select 1 from hwqueue.lease l where l.lease_id = o.lease_id)
  order by o.ordinal limit 1;
  if found then
    perform hwqueue.refuse('QHL06', format('lease %s exists already', v_spawn.lease_id),
      jsonb_build_object('field', 'options.lease_id', 'lease_id', v_spawn.lease_id, 'index', v_spawn.index),
      'use a fresh id, or idempotency_key to spawn once');
  end if;
  for v_index in 1 .. cardinality(v_spawns) loop
    if v_spawns[v_index].own_id then
      v_class_id := v_spawns[v_index].class_id;
      v_spawns[v_index].class_id := hwqueue.target_class(v_class_id, v_spawns[v_index].lease_id);
      if v_spawns[v_index].class_id <> v_class_id and v_spawns[v_index].available_at <= p_now then
        v_targets := v_targets || v_spawns[v_index].class_id;
      end if;
    end if;
  end loop;
  perform hwqueue.insert_spawns(v_spawns, p_queue, p_now, p_has_lanes);
  -- now no other session can take one of the ids any more
  if current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    v_completed := (
      select o.lease_id from hwqueue.outcome o where o.lease_id = any (v_ids) limit 1);
    if v_completed is not null then
      perform hwqueue.refuse('QHL06', format('lease %s has just completed', v_completed),
        jsonb_build_object('field', 'options.lease_id', 'lease_id', v_completed,
          'index', (select s.ordinal - 1 from unnest(p_spawns) s where s.lease_id = v_completed)),
        'use a fresh id: what is left of that lease goes with one of the next calls of prune');
    end if;
  else  -- an older snapshot may not show the outcome, but its unique key does
    insert into hwqueue.outcome (lease_id, queue_id, finished_at, claim_token, attempt, state)
    select i, 0, p_now, 0, 0, 'completed' from unnest(v_ids) i;
    delete from hwqueue.outcome o where o.lease_id = any (v_ids);
  end if;
  if v_targets <> '{}' then  -- the class may be older: an earlier lease with this id had it
    perform hwqueue.wake_classes_of_entries(v_targets);
  end if;
exception when unique_violation then  -- another session has just spawned with the same id
  perform hwqueue.refuse('QHL06', 'a lease with one of these ids exists already',
    jsonb_build_object('field', 'options.lease_id'), 'use a fresh id, or idempotency_key to spawn once');
end
$$;

-- Writes the rows of spawns that are read, checked and new, in the order of the batch. Those that have lanes
-- are parked in their first one when they are due; before that they are in none. p_has_lanes: some have.
-- Locks: new rows, and lease ids that the producer chose. Raises: 23505 when a lease has one of those.
-- Not idempotent.
create or replace function hwqueue.insert_spawns(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue,
  p_now timestamptz, p_has_lanes boolean) returns void
language plpgsql volatile
as $$
declare
  v_ready int;
begin
  if cardinality(p_spawns) > 1 or p_spawns[1].lanes is null then
    insert into hwqueue.ready (queue_id, tier, attempt_count, claim_count, rank, position, class_id,
      lease_id, eligible_at, deadline)
    overriding system value
    select p_queue.queue_id, s.tier, 0, 0, hwqueue.lease_rank(p_queue.ageing_step, p_now, s.priority),
      s.position, s.class_id, s.lease_id, p_now, s.deadline
    from unnest(p_spawns) s where s.available_at <= p_now and s.lanes is null;
    get diagnostics v_ready = row_count;
  end if;
  if coalesce(v_ready, 0) < cardinality(p_spawns) then
    insert into hwqueue.scheduled (queue_id, tier, attempt_count, claim_count, held_by, rank, class_id,
      lease_id, available_at, deadline, lane_id, turn)
    select p_queue.queue_id, s.tier, 0, 0, (case when s.available_at <= p_now then 'limit'
        when s.available_at < 'infinity' then 'time' when s.replaces is not null then 'place'
        else 'team' end)::hwqueue.held_by, hwqueue.lease_rank(p_queue.ageing_step,
        greatest(nullif(s.available_at, 'infinity'), p_now), s.priority), s.class_id, s.lease_id,
      case when s.available_at > p_now then s.available_at else 'infinity' end, s.deadline,
      case when s.available_at <= p_now then (s.lanes[1]).lane_id end,
      case when s.lanes is not null then s.position end
    from unnest(p_spawns) s where s.available_at > p_now or s.lanes is not null;
  end if;
  insert into hwqueue.lease (lease_id, queue_id, class_id, task_name, params, headers, priority,
    tier, rank, position, max_attempts, retry, claim_timeout, deadline, idempotency_key, available_at,
    created_at, wire, run_id, step_no, item_no, team_id, choice_id, tenant, lanes, labels)
  select s.lease_id, p_queue.queue_id, s.class_id, s.task_name, s.params, s.headers, s.priority, s.tier,
    hwqueue.lease_rank(p_queue.ageing_step, greatest(nullif(s.available_at, 'infinity'), p_now), s.priority),
    case when s.available_at <= p_now and s.lanes is null then s.position else 0 end, s.max_attempts,
    s.retry, s.claim_timeout, s.deadline, s.idempotency_key,
    case when s.available_at > p_now or s.lanes is null then s.available_at else 'infinity' end, p_now,
    s.wire, s.run_id, s.step_no, s.item_no, s.team_id, s.choice_id, s.tenant, s.lanes, s.labels
  from unnest(p_spawns) s;
  if p_has_lanes then
    insert into hwqueue.lane_change (tenant, lane_id, limit_id, key, head)
    select case when p.key <> '' then (
             select c.tenant from hwqueue.placement_class c where c.class_id = p.class_id) else '' end,
           p.lane_id, p.limit_id, p.key, p.head
    from (select (s.lanes[1]).lane_id, min((s.lanes[1]).limit_id) as limit_id, min((s.lanes[1]).key) as key,
                 min(s.class_id) as class_id, row(min(s.tier), min(hwqueue.lease_rank(p_queue.ageing_step,
                   p_now, s.priority)), min(s.position))::hwqueue.lane_place as head
          from unnest(p_spawns) s where s.lanes is not null and s.available_at <= p_now group by 1) p;
    if not p_queue.has_lanes then
      perform hwqueue.set_has_lanes(array[p_queue.queue_id]);
    end if;
  end if;
end
$$;

-- Makes an open lease claimable again at p_at, with a new position and the rank that it always had;
-- infinity: when something else than a time lets it, p_held_by, null: a signal; limit: that its queue goes
-- on. A member of a gang waits for its gang instead, that of an everywhere task for room on its node, one
-- that has lanes in the first of them, at p_turn, null: the last. p_since: since when it was claimable, if it
-- was. Returns the new state. Wakes waiting workers when the lease is claimable at once, or parked.
-- Locks: the lease row; its class, skip locked, if that waits. The caller has deleted its former entry.
-- Not idempotent.
create or replace function hwqueue.put_back(p_lease uuid, p_attempt_count int, p_claim_count int,
  p_at timestamptz, p_now timestamptz, p_since timestamptz default null,
  p_held_by hwqueue.held_by default null, p_turn bigint default null) returns text
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_found record;
  v_position bigint := 0;
  v_turn bigint;
  v_lane bigint;  -- that it is parked in
begin
  select l.* into v_lease from hwqueue.lease l where l.lease_id = p_lease for no key update;
  if v_lease.lanes is not null then
    perform hwqueue.leave_lanes(array[p_lease]);
    v_turn := coalesce(p_turn, nextval('hwqueue.ready_position_seq'));
    if p_held_by = 'limit' then
      v_lane := v_lease.queue_id * 4::bigint + 3;
    elsif p_at <= p_now then
      v_lane := (v_lease.lanes[1]).lane_id;
      p_at := 'infinity';
      p_held_by := 'limit';
    end if;
  end if;
  if v_lease.team_id is not null then
    insert into hwqueue.team_change (team_id, kind, retry_at)
    values (v_lease.team_id, case when v_lease.team_id = p_lease then 'everywhere' else 'gang' end,
      case when p_held_by is null then p_at end);
    p_at := 'infinity';
    p_held_by := 'team';
  end if;
  if p_at > p_now then
    insert into hwqueue.scheduled (queue_id, tier, attempt_count, claim_count, held_by, rank, class_id,
      lease_id, available_at, deadline, lane_id, turn)
    values (v_lease.queue_id, v_lease.tier, p_attempt_count, p_claim_count, coalesce(p_held_by,
      case when p_at < 'infinity' then 'time' else 'signal' end::hwqueue.held_by), v_lease.rank,
      v_lease.class_id, p_lease, p_at, v_lease.deadline, v_lane, v_turn);
  else
    insert into hwqueue.ready as r (queue_id, tier, attempt_count, claim_count, rank, class_id,
      lease_id, eligible_at, deadline)
    values (v_lease.queue_id, v_lease.tier, p_attempt_count, p_claim_count, v_lease.rank,
      v_lease.class_id, p_lease, coalesce(p_since, p_now), v_lease.deadline)
    returning r.position into v_position;
  end if;
  update hwqueue.lease l
  set position = v_position, available_at = p_at, attempt_count = p_attempt_count, lanes_passed = null
  where l.lease_id = p_lease;
  if v_lane & 3 < 3 then
    perform hwqueue.note_arrivals(array[v_lease.class_id], array[v_lease.lanes[1]],
      array[row(v_lease.tier, v_lease.rank, v_turn)::hwqueue.lane_place], array[v_lease.queue_id]);
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = v_lease.queue_id;
  end if;
  if p_at > p_now then
    return 'scheduled';
  end if;
  select q as queue, c.waits into v_found
  from hwqueue.queue q
  join hwqueue.placement_class c on c.class_id = v_lease.class_id
  where q.queue_id = v_lease.queue_id;
  if v_found.waits then
    perform hwqueue.wake_classes_of_entries(array[v_lease.class_id]);
  end if;
  perform hwqueue.wake_workers(v_found.queue);
  return 'pending';
end
$$;

-- Lets a lease that goes back prefer the node on which its handler was suspended, and no longer the one of
-- the suspension before. p_node null: none. The preference is a part of its class. It is left out of a
-- placement that asks for it anyway, or that has as many preferences or expressions as one may have.
-- Locks: the caller holds the lease row; a new class.
create or replace function hwqueue.prefer_own_node(p_lease uuid, p_node uuid) returns void
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
  v_own jsonb := format('{"weight": 100, "when": [{"node": ["%s"]}]}', p_node);  -- in normal form
  v_prefer jsonb[];
  v_near uuid;
begin
  select c.* into v_class from hwqueue.lease l
  join hwqueue.placement_class c on c.class_id = l.class_id
  where l.lease_id = p_lease;
  v_prefer := array(
    select e.value from hwqueue.lease l, jsonb_array_elements(v_class.placement -> 'prefer') e
    where l.lease_id = p_lease
      and e.value <> format('{"weight": 100, "when": [{"node": ["%s"]}]}', l.near_node)::jsonb);
  if v_own <> all (v_prefer) and cardinality(v_prefer) < 100
    and jsonb_array_length(hwqueue.exprs_within(v_class.placement || jsonb_build_object('prefer', v_prefer)))
      < (hwqueue.placement_limits()).exprs then
    v_near := p_node;
  end if;
  update hwqueue.lease l
  set near_node = v_near,
      class_id = hwqueue.find_class(row(v_class.queue_id, v_class.task_name, v_class.tenant,
        v_class.service_id, v_class.labels, v_class.placement - 'prefer' || hwqueue.present('prefer',
          nullif(hwqueue.normal_set(to_jsonb(case when v_near is null then v_prefer
            else v_prefer || v_own end)), '[]')), v_class.patience, v_class.target, v_class.max_run,
        v_class.is_choice))
  where l.lease_id = p_lease;
end
$$;

-- Whether a claim is one that a planner has reserved: the lease of no other was pending before, and so has a
-- position.
create or replace function hwqueue.is_assigned(p_claim hwqueue.claim, p_lease hwqueue.lease) returns boolean
language sql immutable
as $$ select p_claim.is_reserved and p_claim.team_id is null and p_lease.position > 0 $$;

-- Makes a lease claimable again that was taken out of line for a reservation, where it was. Marks of its
-- queue and class that have gone past it go back to it: while this session holds them none goes past an entry
-- that is not committed. If another session holds them, the lease comes last among those of its rank
-- (put_back). Returns the new state. Wakes waiting workers.
-- Locks: as put_back; the marks of the queue, skip locked. The caller has deleted its claim. Not idempotent.
create or replace function hwqueue.put_back_in_line(p_lease hwqueue.lease, p_claim_count int,
  p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_since timestamptz := case when p_lease.deadline <= p_now then p_now  -- for reap_deadlines to find it
    else greatest(p_lease.available_at, p_lease.created_at) end;
begin
  perform 1 from hwqueue.low_water w
  where w.queue_id = p_lease.queue_id and w.class_id = 0
  order by w.version desc limit 1 for update skip locked;
  if not found then
    return hwqueue.put_back(p_lease.lease_id, p_lease.attempt_count, p_claim_count, p_now, p_now, v_since);
  end if;
  update hwqueue.low_water w
  set positions = array(
    select case when (m.tier, m.rank) = (p_lease.tier, p_lease.rank) then p_lease.position else m.position end
    from unnest(w.tiers, w.ranks, w.positions) with ordinality m(tier, rank, position, turn)
    order by m.turn)
  where w.queue_id = p_lease.queue_id and w.class_id in (0, p_lease.class_id)
    and hwqueue.low_water_at(w, p_lease.tier, p_lease.rank) > p_lease.position;
  insert into hwqueue.ready (queue_id, tier, attempt_count, claim_count, rank, position, class_id,
    lease_id, eligible_at, deadline, is_limited)
  overriding system value
  values (p_lease.queue_id, p_lease.tier, p_lease.attempt_count, p_claim_count, p_lease.rank,
    p_lease.position, p_lease.class_id, p_lease.lease_id, v_since, p_lease.deadline, p_lease.lanes <> '{}');
  perform hwqueue.wake_classes_of_entries(array[c.class_id]) from hwqueue.placement_class c
  where c.class_id = p_lease.class_id and c.waits;
  perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = p_lease.queue_id;
  return 'pending';
end
$$;

-- Returns the spawns of a batch that have a key, with the content that an idempotency key stands for. The
-- key of the option unique stands for any content.
create or replace function hwqueue.keyed_spawns(p_spawns hwqueue.spawn_request[])
returns table (ordinal int, tenant text, idempotency_key text, lease_id uuid, content bytea,
  held_until timestamptz)
language sql stable
as $$
  select s.ordinal, c.tenant, s.idempotency_key, s.lease_id,
         case when s.held_until is not null then '' else
           sha256(convert_to(jsonb_build_array(s.task_name, s.params, c.placement,
             coalesce(s.labels, c.labels))::text, 'UTF8'))
         end, s.held_until
  from unnest(p_spawns) s
  -- limit 1 makes one index lookup per spawn, whatever the planner estimates for arrays and new tables
  cross join lateral (
    select c.* from hwqueue.placement_class c
    where c.class_id = s.class_id limit 1) c
  where s.idempotency_key is not null
$$;

-- Takes the idempotency keys of a batch, or finds the leases that have them. Returns the spawns with
-- stands_for set where the key was taken, also by an earlier spawn of the batch.
-- Locks: the keys in sorted order, so that two batches cannot deadlock; as take_unique_key. Raises: QHT01
-- for the same key with other content, QHT02.
create or replace function hwqueue.reserve_keys(p_spawns hwqueue.spawn_request[], p_queue hwqueue.queue,
  p_now timestamptz) returns hwqueue.spawn_request[]
language plpgsql volatile
as $$
declare
  v_key_count int := (select count(*) from unnest(p_spawns) s where s.idempotency_key is not null);
  v_inserted hwqueue.idempotency[] := '{}'::hwqueue.idempotency[];
  v_new_keys hwqueue.idempotency[];
  v_index int;
  v_spawns hwqueue.spawn_request[];
  v_spawn record;
begin
  <<attempt>>
  loop
    with inserted as (
      insert into hwqueue.idempotency as i (tenant, queue_id, idempotency_key, lease_id, content, held_until)
      select k.tenant, p_queue.queue_id, k.idempotency_key, k.lease_id, k.content, k.held_until
      from hwqueue.keyed_spawns(p_spawns) k
      order by k.tenant collate "C", k.idempotency_key collate "C", k.ordinal
      on conflict do nothing
      returning i as key
    )
    select array_agg(c.key) into v_new_keys from inserted c;
    v_inserted := v_inserted || v_new_keys;
    v_spawns := p_spawns;
    if cardinality(v_inserted) = v_key_count then
      return v_spawns;
    end if;
    v_inserted := array(
      select c from unnest(v_inserted) c order by c.tenant collate "C", c.idempotency_key collate "C");
    v_index := 1;
    for v_spawn in
      select k.ordinal, k.tenant, k.idempotency_key, i.lease_id, i.content <> k.content as differs
      from hwqueue.keyed_spawns(p_spawns) k
      left join lateral (
        select i.lease_id, i.content from hwqueue.idempotency i
        where i.tenant = k.tenant and i.queue_id = p_queue.queue_id and i.idempotency_key = k.idempotency_key
        limit 1) i on true
      order by k.tenant collate "C", k.idempotency_key collate "C", k.ordinal
    loop
      continue attempt when v_spawn.lease_id is null;  -- pruned since the insert: try again
      if v_spawn.differs then
        perform hwqueue.refuse('QHT01',
          format('idempotency key %s belongs to lease %s, which has other content',
            to_json(v_spawn.idempotency_key), v_spawn.lease_id),
          jsonb_build_object('field', 'options.idempotency_key', 'idempotency_key', v_spawn.idempotency_key,
            'lease_id', v_spawn.lease_id, 'index', v_spawn.ordinal - 1),
          'a key stands for one task, params, placement and labels: use another key for other content');
      elsif v_inserted[v_index].tenant = v_spawn.tenant
        and v_inserted[v_index].idempotency_key = v_spawn.idempotency_key then
        v_index := v_index + 1;  -- taken just now, by the first spawn of the batch that has it
      elsif p_spawns[v_spawn.ordinal].held_until is not null then
        v_spawns[v_spawn.ordinal].stands_for := nullif(
          hwqueue.take_unique_key(p_spawns, v_spawn.ordinal, v_spawn.tenant, p_queue, p_now),
          p_spawns[v_spawn.ordinal].lease_id);
      else
        v_spawns[v_spawn.ordinal].stands_for := v_spawn.lease_id;
      end if;
    end loop;
    return v_spawns;
  end loop;
end
$$;

-- Takes the key of a spawn's option unique that another spawn has had (take_key). Returns the lease that the
-- key names from now on: that of this spawn if the key was free, else the one that holds it. Of equal keys in
-- a batch the first spawn has it. With on_conflict replace a lease that waits gets the task, params and
-- options of this spawn; it keeps its id and the claims and attempts that it has had.
-- Locks: the key; with on_conflict replace the lease's entry and row, then as put_back. Raises: QHT02.
create or replace function hwqueue.take_unique_key(p_spawns hwqueue.spawn_request[], p_ordinal int,
  p_tenant text, p_queue hwqueue.queue, p_now timestamptz) returns uuid
language plpgsql volatile
as $$
declare
  v_spawn hwqueue.spawn_request := p_spawns[p_ordinal];
  v_holder uuid := hwqueue.take_key(row(p_tenant, p_queue.queue_id, v_spawn.idempotency_key, v_spawn.lease_id,
    ''::bytea, v_spawn.held_until), array(select s.lease_id from unnest(p_spawns) s), true, p_now);
  v_state text := hwqueue.lease_state(v_holder);
  v_entry hwqueue.scheduled;
begin
  if v_holder = v_spawn.lease_id then
    return v_holder;
  elsif v_spawn.on_conflict = 'raise' then
    perform hwqueue.refuse('QHT02',
      format('lease %s holds the unique key %s', v_holder, to_json(v_spawn.idempotency_key)),
      jsonb_build_object('field', 'options.unique.key', 'key', v_spawn.idempotency_key,
        'lease_id', v_holder, 'state', v_state, 'index', p_ordinal - 1),
      'spawn it when that lease has ended, or with on_conflict keep or replace');
  elsif v_spawn.on_conflict = 'replace' and v_state in ('scheduled', 'pending') then
    v_entry := hwqueue.take_entry(v_holder);
    if v_entry.lease_id is not null then  -- it is not claimed or finished by now
      perform hwqueue.leave_lanes(array[v_holder]);
      update hwqueue.lease l
      set class_id = hwqueue.target_class(v_spawn.class_id, l.lease_id), near_node = null,
          lanes = v_spawn.lanes, lanes_passed = null, labels = v_spawn.labels,
          task_name = v_spawn.task_name, params = v_spawn.params, headers = v_spawn.headers,
          priority = v_spawn.priority, rank = hwqueue.lease_rank(p_queue.ageing_step,
            greatest(v_spawn.available_at, p_now), v_spawn.priority),
          max_attempts = v_spawn.max_attempts, retry = v_spawn.retry, claim_timeout = v_spawn.claim_timeout,
          deadline = v_spawn.deadline, wire = v_spawn.wire
      where l.lease_id = v_holder;
      perform hwqueue.note_leases('lease_updated', array[v_holder],
        'replaced: another spawn has its unique key', jsonb_build_object('class_id', v_spawn.class_id));
      perform hwqueue.put_back(v_holder, v_entry.attempt_count, v_entry.claim_count,
        v_spawn.available_at, p_now);
    end if;
  end if;
  return v_holder;
end
$$;
