-- Locks the best ready entries that a node may run now and gives their places, best first; no places: there
-- are none. A plain node (p_is_plain) takes from the front of its only queue; when there is nothing for it,
-- it is plain no longer (is_plain): the next call need not ask. p_front: what has just been seen of it, if
-- anything; p_is_tried: its mark has been tried, in vain, and of a few classes their heads (lock_stretch). Of
-- an only entry, counted: what to write into its claim, null: nothing; entry: what it was, if it is deleted
-- already.
-- Locks: as pick_leases. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_places(p_state hwqueue.node_state, p_load hwqueue.node_load, p_room hwqueue.headroom,
  p_is_plain boolean, p_front hwqueue.queue_look, p_is_tried boolean, p_queue_ids int[], p_tasks text[],
  p_window int, p_limit int, p_now timestamptz, p_shard int)
returns hwqueue.picked
language plpgsql volatile
as $$
declare
  v_limit int := case when p_state.is_counted then 1 else p_limit end;
  v_eligible hwqueue.profile_queue;
  v_front record;
  v_blocked bigint[] := '{}';
  v_meets boolean := false;
  v_is_new boolean := false;
  v_picked hwqueue.picked;
begin
  v_picked.score := 0;
  if p_is_plain and not (p_is_tried and cardinality(p_front.classes) <= 64) then
    if p_front.is_front then
      v_eligible.shard_id := p_shard;
      v_eligible.profile_id := p_state.profile_id;
      v_eligible.queue_id := p_front.queue_id;
      v_eligible.classes := p_front.classes;
      v_eligible.task_names := p_front.task_names;
      v_eligible.most_cpu_milli := p_front.most_cpu_milli;
      v_eligible.most_memory_mib := p_front.most_memory_mib;
      v_eligible.is_even := true;
      v_eligible.checked := p_front.checked;
    else
      select s.* into v_eligible
      from hwqueue.profile_queue s where s.shard_id = p_shard and s.profile_id = p_state.profile_id and s.queue_id = p_queue_ids[1];
    end if;
    if v_eligible.checked is not null then
      v_front := hwqueue.take_at_front(v_eligible, p_state, p_front, p_is_tried, p_tasks, p_window, p_room,
                                       v_limit, p_now, p_shard);
      v_picked.places := v_front.places;
      v_picked.counted := v_front.counted;
      v_picked.entry := v_front.entry;
      v_blocked := v_front.blocked;
      v_meets := v_front.meets;
      v_is_new := v_front.is_new;
    end if;
  end if;
  v_picked.is_plain := coalesce(v_picked.places, '{}') <> '{}';
  if not v_picked.is_plain then
    v_picked := hwqueue.pick_leases(p_state, p_load, p_queue_ids, p_tasks, p_limit, v_blocked, v_is_new, p_now, p_shard);
  elsif v_meets is not null and (p_state.meets_blocked or v_meets) then
    perform hwqueue.note_met(p_state, v_meets, false, p_shard);
  end if;
  return v_picked;
end
$$;

-- Who asks is alive: where leases may spread to is a matter of live nodes.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.note_alive(p_state hwqueue.node_state, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if p_state.seen_at + p_state.heartbeat_timeout <= p_now then
    update hwqueue.node_state s set seen_at = p_now, moved_xid = pg_current_xact_id()
    where s.shard_id = p_shard and s.node_id = p_state.node_id and s.seen_at + s.heartbeat_timeout <= p_now;
  end if;
end
$$;

-- Remembers of a node whether its last claim came upon blocked classes, and that terms wait to be in force (p_awaits, or, upon blocked
-- classes, if they do): its next claim takes a step for them.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.note_met(p_state hwqueue.node_state, p_blocked boolean, p_awaits boolean, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_awaits boolean := p_state.awaits_terms or p_awaits or p_blocked and hwqueue.terms_pending(p_shard);
begin
  if (p_state.meets_blocked, p_state.awaits_terms) <> (p_blocked, v_awaits) then
    update hwqueue.node_state s set meets_blocked = p_blocked, awaits_terms = v_awaits
    where s.shard_id = p_shard and s.node_id = p_state.node_id;
  end if;
end
$$;
