-- The general claim: several leases, several queues, counted capacity, scores that differ.

-- The general claim: of several leases, from several queues, on a node whose capacity is counted, or of
-- classes that score differently or must be checked. claim_task comes here when its own way, the head of
-- one queue, is not open, or has found nothing there.
-- p_state: the node's row, which the caller has locked. p_queue_head: what it knows of the only queue,
-- if it has looked; p_is_tried: it has tried the head of the queue, in vain. p_moves, p_drawn: as
-- claim_task drew them, before this transaction had an id.
-- Locks, raises: as claim_task. Idempotent: no.
create or replace function hwqueue.claim_general(p_state hwqueue.node_state, p_queue_head hwqueue.queue_head,
  p_is_tried boolean, p_queues text[], p_node uuid, p_epoch bigint, p_qty int, p_tasks text[],
  p_claim_timeout interval,
  p_moves boolean, p_drawn bigint, p_shard int)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
    headers jsonb,
               score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile
as $$
declare
  v_state hwqueue.node_state := p_state;
  v_queue_head hwqueue.queue_head := p_queue_head;
  v_queue_ids int[];
  v_now timestamptz;
  v_generation bigint;
  v_node hwqueue.node;
  v_load hwqueue.node_load;
  v_room hwqueue.headroom;
  v_at_mark boolean;
  v_left int := p_qty;
  v_ctids tid[];
  v_picked hwqueue.picked_entries;
  v_entry hwqueue.ready;
  v_mover hwqueue.ready;  -- moves marks on: any of those that are granted, for each class to have its turn
  v_taken record;
  v_timeout interval;
  v_eligible_at timestamptz;
  v_changed boolean := false;
  v_looked boolean;
  v_is_tried boolean := coalesce(p_is_tried, false);
  v_promoted int;
begin
  if (v_state.node_epoch = p_epoch and v_state.login = session_user) is not true then
    perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0), p_shard);  -- says why not, if so
  end if;
  v_generation := case when v_state.server_started_at = pg_postmaster_start_time()
    and v_state.storage_path = pg_relation_filepath('hwqueue.shard'::regclass)
                  then v_state.generation else hwqueue.node_generation(p_node, p_shard) end;
  v_now := hwqueue.clock();
  v_state.awaits_terms := v_state.awaits_terms and hwqueue.take_publish_step(p_node, v_now, p_shard);
  if cardinality(p_queues) > 1 then
    v_queue_head := null;
  elsif v_queue_head.is_front is null then  -- not looked at yet, or by read_past_blocked, in vain
    v_is_tried := false;
    select q.* into v_queue_head
    from hwqueue.read_queue_head(p_queues[1], v_state.profile_id, v_state.classes_seen,
        v_state.classes_unseen, p_shard) q;
  end if;
  v_queue_ids := coalesce(v_queue_head.queue_ids, hwqueue.open_queues(p_queues, p_shard));
  v_promoted := hwqueue.promote_if_due(p_queues, v_queue_ids, p_qty + 20, v_now, p_shard);
  v_looked := v_promoted is not null;
  v_picked.on_fast_path := v_state.on_fast_path and v_queue_head.queue_id is not null
    and v_queue_head.queue_id <> all (v_state.pinned_queues);
  if v_state.has_limits then
    v_node := hwqueue.read_node(p_node, p_shard);
    v_load := hwqueue.read_load(p_node, p_shard);
    v_room := hwqueue.node_headroom(v_node, v_load);
  end if;
  v_at_mark := v_picked.on_fast_path and v_queue_head.is_first and coalesce(v_promoted, 0) = 0
    and (p_tasks is null or cardinality(v_queue_head.task_names) <= 50 and v_queue_head.task_names <@ p_tasks)
    and (not v_state.has_limits or hwqueue.shortage(v_queue_head.most_cpu_milli,
        v_queue_head.most_memory_mib, 0, 0, '{}', null, v_room) = 0);
  queue := v_queue_head.name;
  shard_id := p_shard;
  while v_left > 0 loop
    v_ctids := case
      when v_at_mark and not v_is_tried then
        hwqueue.lock_window(v_state.profile_id, v_queue_head.queue_id, v_queue_head.classes, p_tasks, null,
            0::smallint, v_queue_head.rank,
          v_queue_head.position, v_queue_head.window_size, case when v_state.has_limits then 1
            else v_left end, v_now,
          p_shard)
      -- what lock_window does after a try in vain
      when v_at_mark and cardinality(v_queue_head.classes) <= 64 then
        hwqueue.lock_class_heads(v_queue_head.classes, v_queue_head.queue_id, 0::smallint, v_queue_head.rank,
            v_queue_head.position, v_left, v_now, p_shard) end;
    if coalesce(v_ctids, '{}') = '{}' then
      v_picked := hwqueue.pick_entries(v_state, v_load, v_room, v_picked.on_fast_path,
        case when v_at_mark or v_left = p_qty and coalesce(v_promoted, 0) = 0 then v_queue_head end,
        v_at_mark is true, v_queue_ids, p_tasks, v_queue_head.window_size, v_left, v_now, p_shard);
      v_at_mark := false;
      v_ctids := v_picked.ctids;
      if v_ctids = '{}' then
        exit when v_looked or hwqueue.promote_due(v_queue_ids, v_left + 20, v_now, p_shard) = 0;
        v_looked := true;
        v_promoted := 1;  -- what was looked at before is old
        v_picked.on_fast_path := v_state.on_fast_path and v_queue_head.queue_id is not null
          and v_queue_head.queue_id <> all (v_state.pinned_queues);
        continue;
      end if;
    end if;
    score := coalesce(v_picked.score, 0);
    if cardinality(v_ctids) > 1 then
      if p_moves and random() * (cardinality(v_ctids) + p_qty - v_left) < cardinality(v_ctids) then
        select r.* into v_mover from hwqueue.ready r
        where r.ctid = (select v_ctids[1 + floor(random() * cardinality(v_ctids))::int]);
      end if;
      return query
        select g.lease_id, g.claim_token, g.attempt, g.queue, g.task_name, g.params, g.headers, score,
               g.expires_at, null::jsonb, p_shard
        from hwqueue.grant_batch(v_ctids, p_node, v_state.node_epoch, v_state.login, p_claim_timeout,
            v_generation, v_now, p_shard) g;
      v_left := v_left - cardinality(v_ctids);
      continue;
    end if;
    v_entry := v_picked.entry;
    if v_entry.lease_id is null then
      delete from hwqueue.ready r where r.ctid = v_ctids[1] returning r.* into v_entry;
    end if;
    v_at_mark := v_at_mark and not v_state.has_limits;  -- what fits is another question then
    v_left := v_left - 1;
    v_mover := case when p_moves and random() * (p_qty - v_left) < 1 then v_entry else v_mover end;
    select l.task_name, l.params, l.headers, coalesce(l.claim_timeout, p_claim_timeout,
           v_queue_head.claim_timeout),
           case when v_queue_head.drops_completed is distinct from false and l.idempotency_key is null
             then greatest(l.available_at, l.created_at) end
    into task_name, params, headers, v_timeout, v_eligible_at
    from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = v_entry.lease_id;
    if v_state.has_limits then
      v_taken := hwqueue.allocate_for_class(v_entry.class_id, v_node, p_shard, v_load);
      v_load := v_taken.p_load;
      assignment := v_taken.assignment;
      v_changed := v_changed or assignment is not null;
      v_room := case when v_left > 0 then hwqueue.node_headroom(v_node, v_load) end;
    end if;
    if v_queue_head.queue_id is null then
      select q.name, coalesce(v_timeout, q.claim_timeout), case when q.retain_completed = '0'
             then v_eligible_at end
      into queue, v_timeout, v_eligible_at
      from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_entry.queue_id;
    end if;
    lease_id := v_entry.lease_id;
    claim_token := (v_generation << 40) + v_entry.claim_count + 1;
    attempt := v_entry.attempt_count + 1;
    expires_at := v_now + v_timeout;
    insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
        attempt, claim_timeout,
                               claimed_at, expires_at, check_at, assignment, term_deltas, login, eligible_at)
    values (p_shard, v_entry.lease_id, v_entry.queue_id, v_entry.class_id, p_node, v_state.node_epoch,
        claim_token, attempt, v_timeout,
            v_now, expires_at, expires_at, assignment, v_picked.term_deltas, v_state.login, v_eligible_at);
    return next;
  end loop;
  if v_changed then
    perform hwqueue.write_load(v_load);
  end if;
  if v_left = p_qty or p_moves or v_now - v_state.seen_at > v_state.heartbeat_timeout / 8 then
    perform hwqueue.after_claim(v_state, v_queue_ids, v_mover, v_left < p_qty, p_moves, p_drawn, v_now,
        p_shard);
  end if;
end
$$;

-- The ids of the queues of these names that are not paused, each once.
-- Locks: none. Raises: QHQ01 for a name that does not exist. Idempotent: yes.
create or replace function hwqueue.open_queues(p_queues text[], p_shard int) returns int[]
language plpgsql stable
as $$
declare
  v_open int[] := array(select q.queue_id from hwqueue.queue q
                        where q.shard_id = p_shard and q.name = any (p_queues) and q.dropped_at is null
                          and q.paused_at is null);
begin
  if cardinality(v_open) < cardinality(p_queues) then
    -- paused, named twice, or unknown
    for i in 1 .. cardinality(p_queues) loop
      perform hwqueue.find_queue(p_queues[i], p_shard);
    end loop;
  end if;
  return v_open;
end
$$;

-- Checks what a claim is called with, and where; true, so that it can stand in an expression.
-- Locks: none. Raises: QHA01, QHA02. Idempotent: yes.
create or replace function hwqueue.check_claim(p_queues text[], p_qty int,
  p_claim_timeout interval) returns boolean
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if p_qty is null or p_qty not between 1 and 1000 then
    perform hwqueue.refuse('QHA01', format('p_qty must be from 1 to 1000, got %s',
        coalesce(p_qty::text, 'null')),
      jsonb_build_object('field', 'p_qty'), 'claim in batches of at most 1000');
  end if;
  if p_claim_timeout < interval '1 second' or p_claim_timeout > interval '30 days'
    or not isfinite(p_claim_timeout) then
    perform hwqueue.refuse('QHA01', format('p_claim_timeout must be from one second to 30 days, got %s',
        p_claim_timeout),
      jsonb_build_object('field', 'p_claim_timeout'), 'leave it out to use the queue''s');
  end if;
  return cardinality(p_queues) = 1 and p_queues[1] is not null and array_ndims(p_queues) = 1
    or hwqueue.check_queue_names(p_queues);
end
$$;

-- Locks the best ready entries that a node may run now and gives their places, best first; no places: there
-- are none. A plain node (p_is_plain) takes from the front of its only queue; when there is nothing for it,
-- it is plain no longer (on_fast_path): the next call need not ask. p_queue_head: what has just been
-- seen of it, if anything; p_is_tried: its mark has been tried, in vain, and of a few classes their
-- heads (lock_window). Of an only entry, counted: what to write into its claim, null: nothing; entry:
-- what it was, if it is deleted already.
-- Locks: as pick_leases. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_entries(p_state hwqueue.node_state, p_load hwqueue.node_load,
  p_room hwqueue.headroom,
  p_is_plain boolean, p_queue_head hwqueue.queue_head, p_is_tried boolean, p_queue_ids int[], p_tasks text[],
  p_window int, p_limit int, p_now timestamptz, p_shard int)
returns hwqueue.picked_entries
language plpgsql volatile
as $$
declare
  v_limit int := case when p_state.has_limits then 1 else p_limit end;
  v_eligible hwqueue.profile_queue;
  v_queue_head record;
  v_blocked bigint[] := '{}';
  v_meets boolean := false;
  v_is_new boolean := false;
  v_picked hwqueue.picked_entries;
begin
  v_picked.score := 0;
  if p_is_plain and not (p_is_tried and cardinality(p_queue_head.classes) <= 64) then
    if p_queue_head.is_front then
      v_eligible.shard_id := p_shard;
      v_eligible.profile_id := p_state.profile_id;
      v_eligible.queue_id := p_queue_head.queue_id;
      v_eligible.classes := p_queue_head.classes;
      v_eligible.task_names := p_queue_head.task_names;
      v_eligible.most_cpu_milli := p_queue_head.most_cpu_milli;
      v_eligible.most_memory_mib := p_queue_head.most_memory_mib;
      v_eligible.scores_equal := true;
      v_eligible.checked := p_queue_head.checked;
    else
      select s.* into v_eligible
      from hwqueue.profile_queue s where s.shard_id = p_shard and s.profile_id = p_state.profile_id
        and s.queue_id = p_queue_ids[1];
    end if;
    if v_eligible.checked is not null then
      v_queue_head := hwqueue.take_at_head(v_eligible, p_state, p_queue_head, p_is_tried, p_tasks, p_window,
          p_room,
                                       v_limit, p_now, p_shard);
      v_picked.ctids := v_queue_head.ctids;
      v_picked.term_deltas := v_queue_head.term_deltas;
      v_picked.entry := v_queue_head.entry;
      v_blocked := v_queue_head.blocked;
      v_meets := v_queue_head.meets;
      v_is_new := v_queue_head.is_new;
    end if;
  end if;
  v_picked.on_fast_path := coalesce(v_picked.ctids, '{}') <> '{}';
  if not v_picked.on_fast_path then
    v_picked := hwqueue.pick_leases(p_state, p_load, p_queue_ids, p_tasks, p_limit, v_blocked, v_is_new,
        p_now, p_shard);
  elsif v_meets is not null and (p_state.met_blocked or v_meets) then
    perform hwqueue.note_blocked(p_state, v_meets, false, p_shard);
  end if;
  return v_picked;
end
$$;

-- Locks the best ready entries that a node may run now, up to p_limit of them that score alike (one,
-- where something is counted: what fits changes with each), and gives their places, best first; no
-- places: there are none. entry: the only one, if it is deleted already.
-- p_without: classes known to be blocked; p_is_new: one of them for a term that has to be published first.
-- A node of a new kind has not seen all classes yet: judges up to eight batches of them while there is
-- nothing.
-- Locks: the profile row, skip locked; the entries, skip locked; as admit_class and publish_terms.
-- Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_leases(p_state hwqueue.node_state, p_load hwqueue.node_load,
  p_queue_ids int[], p_tasks text[], p_limit int, p_without bigint[],
  p_is_new boolean, p_now timestamptz, p_shard int)
returns hwqueue.picked_entries
language plpgsql volatile
as $$
declare
  v_picked hwqueue.picked_entries;
  v_node hwqueue.node := hwqueue.read_node(p_state.node_id, p_shard);
  v_room hwqueue.headroom := hwqueue.node_headroom(v_node, p_load);
  v_limit int := case when p_state.has_limits then 1 else p_limit end;
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
  v_picked.ctids := '{}';
  v_picked.on_fast_path := false;
  if v_node.cordoned_at is not null or p_queue_ids = '{}' then
    return v_picked;
  end if;
  perform hwqueue.note_alive(p_state, p_now, p_shard);
  select max(q.window_size) as "window", max(q.probe_size) as probe, coalesce(bool_or((  -- of many classes
           select s.most_cpu_milli > v_room.cpu_milli or s.most_memory_mib > v_room.memory_mib
           from hwqueue.profile_queue s
           where s.shard_id = p_shard and s.profile_id = v_node.profile_id and s.queue_id = q.queue_id
             and p_state.on_fast_path and p_state.has_limits and cardinality(s.classes) > 200)),
               false) as is_short
  into v_policy
  from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = any (p_queue_ids);
  for v_batch in 1 .. 8 loop
    v_judged := hwqueue.judge_classes(v_node, p_state, p_shard);
    if p_state.met_blocked then  -- what is blocked need not be scored
      v_open := hwqueue.claim_candidates(p_state, p_queue_ids, v_room, p_now, p_shard);
      v_only := v_open.classes;
      v_without := v_without || v_open.blocked;
      v_met := v_open.met is distinct from '{}';
    end if;
    v_fit := hwqueue.fitting_classes(v_node, v_room, p_queue_ids, p_tasks, v_only, v_judged.extra, v_without,
        p_now, p_shard);
    if v_fit.checked = '{}' and v_fit.classes <> '{}' then
      v_taken := hwqueue.try_score_groups(v_fit.classes, v_fit.scores, '{}', v_node,
        hwqueue.queue_scan_starts(p_queue_ids, cardinality(v_fit.classes), p_shard), null, null,
        v_limit, v_policy."window", v_policy.probe, p_now, p_shard);
      v_picked.ctids := v_taken.ctids;
      v_picked.score := v_taken.score;
    elsif v_fit.checked <> '{}' then
      v_taken := hwqueue.take_constrained(v_node, v_fit.classes, v_fit.scores, v_fit.checked, v_asks,
          p_queue_ids,
                                      v_limit, v_policy."window", v_policy.probe, p_now, p_shard);
      v_picked.ctids := v_taken.ctids;
      v_picked.score := v_taken.score;
      v_picked.term_deltas := v_taken.term_deltas;
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
        -- out of the way: the step may move entries (assign_target_class)
        v_picked.entry := hwqueue.delete_in_subtransaction(v_picked.ctids);
      end if;
      v_published := (hwqueue.publish_terms(2, case when v_picked.ctids = '{}' then false end, p_now,
          p_shard)).published;
      if v_picked.entry is null then
        v_taken := hwqueue.still_same_entries(v_picked.ctids);
        v_picked.ctids := v_taken.ctids;
        v_moved := v_taken.ctids = '{}' and v_taken.some_moved;
      end if;
      v_without := case when v_published > 0 then '{}' else v_without end;
      v_is_new := false;
    end if;
    exit when v_picked.ctids <> '{}' or not (v_judged.more or v_published > 0 or v_moved);
  end loop;
  perform hwqueue.note_blocked(p_state, v_met or v_without <> '{}' or v_policy.is_short
      and not p_state.met_blocked,
                           v_awaits, p_shard);
  return v_picked;
end
$$;
