-- Assembling gangs: reserving room for the members that wait, on several nodes, in one transaction.
--
-- reap (gangs/change) calls assemble_gang for gangs that wait, in their order; a planner may propose a place
-- for one (try_proposal). Example: a gang of four needs
-- a GPU for each member. assemble_gang locks the four nodes, books a GPU on each, and writes four claims that
-- are reserved. The nodes fetch them with their next claims (claim/reserved). If one node turns out to be too
-- full, nothing is kept: the subtransaction is aborted, and its locks go with it.
--
-- A gang may also be earmarked (gangs/earmark): then its members are reserved where they would have room once
-- what runs there has ended.
--
-- Members of a gang with min_size may be left out: they join it once it runs, by the same functions.
--
-- Invariant: at each commit a gang has room for as many members as it needs or for none. So two gangs never
-- hold a part each. All locks are taken with skip locked, so assembling deadlocks with nobody and waits for
-- nobody.
--
-- Read assemble_gang, assemble_members, try_place, reserve_members, reserve_member, then try_proposal.

-- Reserves room for the members of a gang that wait: for all of them, else, by their ordinals, for as many as
-- it needs. Where it needs one it has started: then for half of them, and so on down to one. With
-- p_is_earmark for as many as it needs, in room that may still be in use. p_first: the place to try first, of
-- those of its level; null: the tightest. Returns null when it has, else why not:
-- gang_incomplete: another session holds an entry of a member, or one that ran was just lost.
-- insufficient_capacity: no place has room for them.
-- busy: others hold nodes, lock stripes or the choice that it needs.
-- Locks: the caller holds the gang; entries, its choice, node_state, lock stripes and counters, all skip
-- locked. Wakes: waiting workers. Not idempotent.
create or replace function hwqueue.assemble_gang(p_gang hwqueue.gang, p_first text, p_is_earmark boolean,
  p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_entries hwqueue.scheduled[] := array(
    select s from hwqueue.gang_member m
    join hwqueue.scheduled s on s.queue_id = p_gang.queue_id
      and s.available_at = hwqueue.never_due() and s.lease_id = m.lease_id
    where m.gang_id = p_gang.gang_id
    order by m.ordinal for update of s skip locked);
  v_waiting int := cardinality(v_entries);
  v_needed int := hwqueue.members_needed(p_gang, v_waiting);
  v_count int := case when p_is_earmark then v_needed else v_waiting end;
  v_reason text;
begin
  if v_waiting = 0 or v_waiting < (
      select count(*) from hwqueue.gang_member m
      where m.gang_id = p_gang.gang_id and hwqueue.lease_state(m.lease_id) = 'scheduled')
    or p_gang.state = 'running' and exists (  -- look_at_gang goes first
      select from hwqueue.gang_change c where c.gang_id = p_gang.gang_id) then
    return 'gang_incomplete';
  end if;
  loop
    v_reason := hwqueue.assemble_members(p_gang, v_entries[: v_count], v_waiting - v_count, p_first,
      p_is_earmark, p_now);
    exit when v_reason is null or v_count = v_needed;
    v_count := case when v_needed > 1 then v_needed else v_count / 2 end;
  end loop;
  return v_reason;
end
$$;

-- Reserves room for these members of a gang, or for none of them, in a place that it may be in; p_missing
-- others wait. One that runs goes on to. Returns as assemble_gang.
-- Locks and wakes as assemble_gang, but that the caller holds the entries too.
create or replace function hwqueue.assemble_members(p_gang hwqueue.gang, p_entries hwqueue.scheduled[],
  p_missing int, p_first text, p_is_earmark boolean, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_place record;
  v_state text := case when p_is_earmark then 'earmarked' when p_gang.state = 'running' then 'running'
    else 'reserved' end;
  v_reason text := 'insufficient_capacity';
begin
  for v_place in
    select g.place, g.node_ids, g.class_ids
    from hwqueue.gang_places(array(select e.class_id from unnest(p_entries) e), p_gang.together, p_gang.same,
      p_gang.place, p_first, p_is_earmark, p_now) g
  loop
    v_reason := hwqueue.try_place(p_gang, array(
        select p_entries[i] from generate_subscripts(p_entries, 1) i
        order by array_position(v_place.class_ids, (p_entries[i]).class_id), i),
      v_place.node_ids, p_is_earmark, p_now);
    if v_reason is null then
      update hwqueue.gang g
      set state = v_state, reason = null, tries = 0, place = nullif(v_place.place, ''), missing = p_missing
      where g.gang_id = p_gang.gang_id;
      if v_state <> p_gang.state then
        perform hwqueue.note_gang(p_gang, v_state);
      end if;
      exit when p_is_earmark;
      perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = p_gang.queue_id;
      exit;
    end if;
  end loop;
  return v_reason;
end
$$;

-- Reserves room for a gang that waits, as assemble_gang does, beginning with the place that a planner
-- proposes. What it does not reserve it leaves as it was. Returns the verdict of reserve_gang.
-- Locks: the gang, skip locked; as assemble_gang.
create or replace function hwqueue.try_proposal(p_gang_id uuid, p_place text, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_gang hwqueue.gang;
  v_reason text;
begin
  select g.* into v_gang from hwqueue.gang g where g.gang_id = p_gang_id for no key update skip locked;
  if not found then
    return case when exists (select from hwqueue.gang g where g.gang_id = p_gang_id)
      then 'busy' else 'not_waiting' end;
  elsif v_gang.state <> 'waiting' or not hwqueue.may_be_tried(v_gang, p_now) or not exists (
      select from hwqueue.queue q
      where q.queue_id = v_gang.queue_id and q.paused_at is null and q.dropped_at is null) then
    return 'not_waiting';
  elsif exists (select from hwqueue.gang_change c where c.gang_id = p_gang_id) then
    return 'busy';  -- look_at_gang goes first
  end if;
  v_reason := hwqueue.assemble_gang(v_gang, p_place, false, p_now);
  return case
    when v_reason is null then 'reserved'
    when v_reason = 'insufficient_capacity' then 'no_room'
    when v_reason in ('busy', 'unpublished', 'cache_miss', 'gang_incomplete') then 'busy'
    else 'blocked' end;
end
$$;

-- Reserves all these entries on these nodes, or nothing: first on as many nodes as should do, then, if one of
-- them is held by others or fuller than it seemed, on all of them. Of a choice it takes the gang first,
-- unless it is an earmark. Returns null, or why not.
-- Locks and wakes as assemble_gang.
create or replace function hwqueue.try_place(p_gang hwqueue.gang, p_entries hwqueue.scheduled[],
  p_node_ids uuid[], p_is_earmark boolean, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_reason text;
begin
  for v_try in 1 .. 2 loop
    exit when v_try = 2 and cardinality(p_node_ids) <= cardinality(p_entries);
    begin
      v_reason := case when not p_is_earmark
          and not hwqueue.take_choice(p_gang.choice_id, p_gang.gang_id) then 'busy'
        else hwqueue.reserve_members(p_gang, p_entries, case when v_try = 1
          then p_node_ids[: cardinality(p_entries)] else p_node_ids end, p_is_earmark, p_now) end;
      if v_reason is null then
        return null;
      end if;
      perform hwqueue.abort_subtransaction();
    exception when sqlstate 'HWX01' then  -- what it has booked is undone, and its locks are released
    end;
  end loop;
  return v_reason;
end
$$;

-- Locks nodes and reserves entries on them, one class after the other: each node takes as many as fit. With
-- p_is_earmark each node takes as many as fit now, then each those that would fit if nothing ran there.
-- Returns null when all have room, else why not. What it has written until then is for the caller to undo.
-- Raises: 57014 when its time is up, before statement_timeout does.
-- Locks: node_state by node_id, skip locked; as reserve_member.
create or replace function hwqueue.reserve_members(p_gang hwqueue.gang, p_entries hwqueue.scheduled[],
  p_node_ids uuid[], p_is_earmark boolean, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_locked uuid[] := array(
    select s.node_id from hwqueue.node_state s
    where s.node_id = any (p_node_ids)
    order by s.node_id for no key update skip locked);
  v_nodes uuid[] := array(
    select i.node_id from unnest(p_node_ids) with ordinality i(node_id, turn)
    where i.node_id = any (v_locked) order by i.turn);
  v_entry hwqueue.scheduled;
  v_class_id bigint := 0;
  v_turns int := cardinality(v_nodes) * case when p_is_earmark then 2 else 1 end;
  v_turn int;  -- the node that the next member of the class is tried on; in the second round it may wait
  v_verdict text;
  v_reason text := case when cardinality(v_locked) < cardinality(p_node_ids) then 'busy'
    else 'insufficient_capacity' end;
begin
  foreach v_entry in array p_entries loop
    if hwqueue.is_time_up() then
      perform hwqueue.refuse('57014', format('it takes longer than a statement_timeout of %s leaves',
        current_setting('statement_timeout')), null, 'give the login that reaps a longer one');
    end if;
    if v_entry.class_id <> v_class_id then
      v_class_id := v_entry.class_id;
      v_turn := 1;
    end if;
    loop
      if v_turn > v_turns then
        return v_reason;
      end if;
      v_verdict := hwqueue.reserve_member(p_gang, v_entry, v_nodes[1 + (v_turn - 1) % cardinality(v_nodes)],
        p_is_earmark, v_turn > cardinality(v_nodes), p_now);
      exit when v_verdict is null;
      v_turn := v_turn + 1;
      v_reason := case when v_verdict = 'insufficient_capacity' then v_reason else v_verdict end;
    end loop;
  end loop;
  return null;
end
$$;

-- Writes a reservation: the claim of one entry on one node, with what it allocates and counts there. The
-- entry is deleted. Returns null, or why the node cannot have it: then nothing is written. The checks are
-- those of a claim, read after the node was locked. p_is_earmark: it is not to be fetched before the whole
-- gang has room; p_waits: the room that it takes may be in use until then.
-- Locks: the caller holds node_state and the entry; as decide_class. Not idempotent.
create or replace function hwqueue.reserve_member(p_gang hwqueue.gang, p_entry hwqueue.scheduled, p_node uuid,
  p_is_earmark boolean, p_waits boolean, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_state hwqueue.node_state;
  v_node hwqueue.node;
  v_class hwqueue.placement_class;
  v_entered record;
  v_deltas jsonb;
  v_taken record;
  v_until timestamptz := case when p_is_earmark then hwqueue.never_due() else p_now + p_gang.hold end;
begin
  select s.* into v_state from hwqueue.node_state s where s.node_id = p_node;
  select n.* into v_node from hwqueue.node n
  where n.node_id = p_node and n.deregistered_at is null
    and (n.cordoned_at is null or hwqueue.runs_on_cordoned(p_entry.lease_id))
    and hwqueue.is_live(n, v_state, p_now);
  if not found or not hwqueue.node_suits(p_entry.class_id, v_node, p_now) then
    return 'insufficient_capacity';
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.class_id = p_entry.class_id;
  v_taken := hwqueue.room_for_member(p_gang.gang_id, v_class, v_node, p_is_earmark, p_waits);
  if not v_taken.fits then
    return 'insufficient_capacity';
  end if;
  if hwqueue.reservation_must_be_checked(v_class) then
    v_entered := hwqueue.admit_class(v_class, p_entry.lease_id, v_node, true, p_now);
    if v_entered.reason is not null then
      return v_entered.reason;
    end if;
    v_deltas := hwqueue.add_counts(v_entered.term_deltas, 1);
    if v_entered.is_named then
      perform hwqueue.wake_classes_of_lease(p_entry.lease_id);
    end if;
  end if;
  if hwqueue.is_lasting(v_class) then
    perform hwqueue.note_lasting(p_entry.lease_id, p_entry.claim_count);
  end if;
  if v_taken.assignment is not null then
    perform hwqueue.write_load(v_taken.load);
  end if;
  delete from hwqueue.scheduled s
  where s.queue_id = p_entry.queue_id and s.available_at = p_entry.available_at
    and s.lease_id = p_entry.lease_id;
  insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
    attempt, claim_timeout, claimed_at, expires_at, check_at, assignment, term_deltas, login, gang_id,
    is_reserved, is_earmark, is_step)
  select p_entry.lease_id, p_entry.queue_id, p_entry.class_id, p_node, v_state.node_epoch,
         hwqueue.next_token(hwqueue.current_generation(), p_entry.claim_count),
         p_entry.attempt_count + 1, q.claim_timeout, p_now, v_until, v_until, v_taken.assignment, v_deltas,
         v_state.login, p_gang.gang_id, true, nullif(p_is_earmark, false),
         case when p_gang.run_id is not null then false end  -- an item of its step
  from hwqueue.queue q where q.queue_id = p_entry.queue_id;
  update hwqueue.node_state s set has_reserved = true, backfill_until = null
  where s.node_id = p_node and (not s.has_reserved or p_is_earmark and s.backfill_until is not null);
  return null;
end
$$;

-- Allocates room for a member of a gang on a node: what is free now, and with p_waits what would be if only
-- the gang's own claims were there. fits: false when there is none, or when an earmark would meet that of
-- another gang. load: the node's new one, for the caller to write where assignment is not null.
-- Locks: the caller holds node_state.
create or replace function hwqueue.room_for_member(p_gang_id uuid, p_class hwqueue.placement_class,
  p_node hwqueue.node, p_is_earmark boolean, p_waits boolean,
  out load hwqueue.node_load, out assignment jsonb, out fits boolean)
language plpgsql volatile
as $$
declare
  v_is_met boolean;
  v_own jsonb[];  -- what the gang's own claims have there
  v_members int;
  v_claims int;
  v_most int := (
    select v.concurrency from hwqueue.served v where v.node_id = p_node.node_id);
  v_load hwqueue.node_load := hwqueue.idle_load(p_node);
  v_taken record;
begin
  load := hwqueue.read_load(p_node.node_id);
  select coalesce(bool_or(c.is_earmark and c.gang_id is distinct from p_gang_id), false),
         array_agg(c.assignment) filter (where c.gang_id = p_gang_id),
         count(*) filter (where c.gang_id = p_gang_id), count(*)
  into v_is_met, v_own, v_members, v_claims
  from hwqueue.claim c where c.node_id = p_node.node_id;
  fits := false;
  if p_is_earmark and v_is_met or v_most <= (case when p_waits then v_members else v_claims end) then
    return;
  elsif not p_waits then
    fits := hwqueue.class_shortage(p_class, p_node, load) = 0;
    if fits then
      v_taken := hwqueue.allocate_for_class(p_class.class_id, p_node, load);
    end if;
  else
    select u.claim_count, u.cpu_used, u.memory_used, u.gpu_used, u.custom_used, u.core_used
    into v_load.claim_count, v_load.cpu_used, v_load.memory_used, v_load.gpu_used, v_load.custom_used,
      v_load.core_used
    from hwqueue.node_usage_of(p_node, array_remove(v_own, null)) u;
    v_taken := hwqueue.earmark_room(p_class, p_node, v_load, load);
    fits := v_taken.fits;
  end if;
  if fits then
    load := v_taken.p_load;
    assignment := v_taken.assignment;
  end if;
end
$$;
