-- Locks the best ready entries that a node may run now, up to p_limit of them that score alike (one, where something is counted: what
-- fits changes with each), and gives their places, best first; no places: there are none. entry: the only one, if it is deleted already.
-- p_without: classes known to be blocked; p_is_new: one of them for a term that has to be published first.
-- A node of a new kind has not seen all classes yet: judges up to eight batches of them while there is nothing.
-- Locks: the profile row, skip locked; the entries, skip locked; as enter_terms and publish_terms. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_leases(p_state hwqueue.node_state, p_load hwqueue.node_load, p_queue_ids int[], p_tasks text[], p_limit int, p_without bigint[],
  p_is_new boolean, p_now timestamptz, p_shard int)
returns hwqueue.picked
language plpgsql volatile
as $$
declare
  v_picked hwqueue.picked;
  v_node hwqueue.node := hwqueue.read_node(p_state.node_id, p_shard);
  v_room hwqueue.headroom := hwqueue.node_headroom(v_node, p_load);
  v_limit int := case when p_state.is_counted then 1 else p_limit end;
  v_without bigint[] := p_without;
  v_asks boolean := p_without <> '{}';
  v_judged record;
  v_open record;
  v_only bigint[];
  v_met boolean := false;
  v_fit record;
  v_policy record;
  v_taken record;
  v_is_new boolean := p_is_new;
  v_awaits boolean := false;
  v_published int;
  v_moved boolean;
begin
  v_node.profile_id := p_state.profile_id;  -- as it is judged
  v_picked.places := '{}';
  v_picked.is_plain := false;
  if v_node.cordoned_at is not null or p_queue_ids = '{}' then
    return v_picked;
  end if;
  perform hwqueue.note_alive(p_state, p_now, p_shard);
  select max(q.window_size) as "window", max(q.probe_size) as probe, coalesce(bool_or((  -- of many classes
           select s.most_cpu_milli > v_room.cpu_milli or s.most_memory_mib > v_room.memory_mib
           from hwqueue.profile_queue s
           where s.shard_id = p_shard and s.profile_id = v_node.profile_id and s.queue_id = q.queue_id
             and p_state.is_plain and p_state.is_counted and cardinality(s.classes) > 200)), false) as is_short
  into v_policy
  from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = any (p_queue_ids);
  for v_batch in 1 .. 8 loop
    v_judged := hwqueue.judge_classes(v_node, p_state, p_shard);
    if p_state.meets_blocked then  -- what is blocked need not be scored
      v_open := hwqueue.claim_candidates(p_state, p_queue_ids, v_room, p_now, p_shard);
      v_only := v_open.classes;
      v_without := v_without || v_open.blocked;
      v_met := v_open.met is distinct from '{}';
    end if;
    v_fit := hwqueue.fitting_classes(v_node, v_room, p_queue_ids, p_tasks, v_only, v_judged.extra, v_without, p_now, p_shard);
    if v_fit.checked = '{}' and v_fit.classes <> '{}' then
      v_taken := hwqueue.try_lanes(v_fit.classes, v_fit.scores, '{}', v_node,
        hwqueue.queue_fronts(p_queue_ids, cardinality(v_fit.classes), p_shard), null, null,
        v_limit, v_policy."window", v_policy.probe, p_now, p_shard);
      v_picked.places := v_taken.places;
      v_picked.score := v_taken.score;
    elsif v_fit.checked <> '{}' then
      v_taken := hwqueue.take_checked(v_node, v_fit.classes, v_fit.scores, v_fit.checked, v_asks, p_queue_ids,
                                      v_limit, v_policy."window", v_policy.probe, p_now, p_shard);
      v_picked.places := v_taken.places;
      v_picked.score := v_taken.score;
      v_picked.counted := v_taken.counted;
      v_picked.entry := v_taken.entry;
      v_without := v_without || v_taken.blocked;
      v_asks := true;
      v_is_new := v_is_new or v_taken.is_new;
    end if;
    v_published := 0;
    v_moved := false;
    v_awaits := v_awaits or v_judged.awaits;
    v_is_new := v_is_new or v_awaits and not p_state.awaits_terms;
    if v_is_new then  -- a step for a term that waits to be in force, whatever else was found
      if v_picked.entry is null then
        v_picked.entry := hwqueue.delete_only(v_picked.places);  -- out of the way: the step may move entries (give_target)
      end if;
      v_published := (hwqueue.publish_terms(2, case when v_picked.places = '{}' then false end, p_now, p_shard)).published;
      if v_picked.entry is null then
        v_taken := hwqueue.not_moved(v_picked.places);
        v_picked.places := v_taken.places;
        v_moved := v_taken.places = '{}' and v_taken.some_moved;
      end if;
      v_without := case when v_published > 0 then '{}' else v_without end;
      v_is_new := false;
    end if;
    exit when v_picked.places <> '{}' or not (v_judged.more or v_published > 0 or v_moved);
  end loop;
  perform hwqueue.note_met(p_state, v_met or v_without <> '{}' or v_policy.is_short and not p_state.meets_blocked,
                           v_awaits, p_shard);
  return v_picked;
end
$$;
