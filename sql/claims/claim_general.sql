-- The general claim: of several leases, from several queues, on a node whose capacity is counted, or of classes that score differently or must be
-- checked. claim_task comes here when its own way, the head of one queue, is not open, or has found nothing there.
-- p_state: the node's row, which the caller has locked. p_front: what it knows of the only queue, if it has looked; p_is_tried: it has
-- tried the head of the queue, in vain. p_moves, p_drawn: as claim_task drew them, before this transaction had an id.
-- Locks, raises: as claim_task. Idempotent: no.
create or replace function hwqueue.claim_general(p_state hwqueue.node_state, p_front hwqueue.queue_look, p_is_tried boolean, p_queues text[], p_node uuid, p_epoch bigint, p_qty int, p_tasks text[], p_claim_timeout interval,
  p_moves boolean, p_drawn bigint, p_shard int)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb, headers jsonb,
               score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile
as $$
declare
  v_state hwqueue.node_state := p_state;
  v_front hwqueue.queue_look := p_front;
  v_queue_ids int[];
  v_now timestamptz;
  v_generation bigint;
  v_node hwqueue.node;
  v_load hwqueue.node_load;
  v_room hwqueue.headroom;
  v_at_mark boolean;
  v_left int := p_qty;
  v_places tid[];
  v_picked hwqueue.picked;
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
  v_generation := case when v_state.server_started_at = pg_postmaster_start_time() and v_state.storage_path = pg_relation_filepath('hwqueue.shard'::regclass)
                  then v_state.generation else hwqueue.node_generation(p_node, p_shard) end;
  v_now := hwqueue.clock();
  v_state.awaits_terms := v_state.awaits_terms and hwqueue.bring_terms(p_node, v_now, p_shard);
  if cardinality(p_queues) > 1 then
    v_front := null;
  elsif v_front.is_front is null then  -- not looked at yet, or by look_behind, in vain
    v_is_tried := false;
    select q.* into v_front
    from hwqueue.look_at_queue(p_queues[1], v_state.profile_id, v_state.classes_seen, v_state.classes_unseen, p_shard) q;
  end if;
  v_queue_ids := coalesce(v_front.queue_ids, hwqueue.open_queues(p_queues, p_shard));
  v_promoted := hwqueue.look_for_due(p_queues, v_queue_ids, p_qty + 20, v_now, p_shard);
  v_looked := v_promoted is not null;
  v_picked.is_plain := v_state.is_plain and v_front.queue_id is not null and v_front.queue_id <> all (v_state.pinned_queues);
  if v_state.is_counted then
    v_node := hwqueue.read_node(p_node, p_shard);
    v_load := hwqueue.read_load(p_node, p_shard);
    v_room := hwqueue.node_headroom(v_node, v_load);
  end if;
  v_at_mark := v_picked.is_plain and v_front.is_first and coalesce(v_promoted, 0) = 0
    and (p_tasks is null or cardinality(v_front.task_names) <= 50 and v_front.task_names <@ p_tasks)
    and (not v_state.is_counted or hwqueue.shortage(v_front.most_cpu_milli, v_front.most_memory_mib, 0, 0, '{}', null, v_room) = 0);
  queue := v_front.name;
  shard_id := p_shard;
  while v_left > 0 loop
    v_places := case
      when v_at_mark and not v_is_tried then
        hwqueue.lock_stretch(v_state.profile_id, v_front.queue_id, v_front.classes, p_tasks, null, 0::smallint, v_front.rank,
          v_front.position, v_front.window_size, case when v_state.is_counted then 1 else v_left end, v_now,
          p_shard)
      when v_at_mark and cardinality(v_front.classes) <= 64 then  -- what lock_stretch does after a try in vain
        hwqueue.lock_heads(v_front.classes, v_front.queue_id, 0::smallint, v_front.rank, v_front.position, v_left, v_now, p_shard) end;
    if coalesce(v_places, '{}') = '{}' then
      v_picked := hwqueue.pick_places(v_state, v_load, v_room, v_picked.is_plain,
        case when v_at_mark or v_left = p_qty and coalesce(v_promoted, 0) = 0 then v_front end,
        v_at_mark is true, v_queue_ids, p_tasks, v_front.window_size, v_left, v_now, p_shard);
      v_at_mark := false;
      v_places := v_picked.places;
      if v_places = '{}' then
        exit when v_looked or hwqueue.promote_due(v_queue_ids, v_left + 20, v_now, p_shard) = 0;
        v_looked := true;
        v_promoted := 1;  -- what was looked at before is old
        v_picked.is_plain := v_state.is_plain and v_front.queue_id is not null and v_front.queue_id <> all (v_state.pinned_queues);
        continue;
      end if;
    end if;
    score := coalesce(v_picked.score, 0);
    if cardinality(v_places) > 1 then
      if p_moves and random() * (cardinality(v_places) + p_qty - v_left) < cardinality(v_places) then
        select r.* into v_mover from hwqueue.ready r where r.ctid = (select v_places[1 + floor(random() * cardinality(v_places))::int]);
      end if;
      return query
        select g.lease_id, g.claim_token, g.attempt, g.queue, g.task_name, g.params, g.headers, score, g.expires_at, null::jsonb, p_shard
        from hwqueue.grant_batch(v_places, p_node, v_state.node_epoch, v_state.login, p_claim_timeout, v_generation, v_now, p_shard) g;
      v_left := v_left - cardinality(v_places);
      continue;
    end if;
    v_entry := v_picked.entry;
    if v_entry.lease_id is null then
      delete from hwqueue.ready r where r.ctid = v_places[1] returning r.* into v_entry;
    end if;
    v_at_mark := v_at_mark and not v_state.is_counted;  -- what fits is another question then
    v_left := v_left - 1;
    v_mover := case when p_moves and random() * (p_qty - v_left) < 1 then v_entry else v_mover end;
    select l.task_name, l.params, l.headers, coalesce(l.claim_timeout, p_claim_timeout, v_front.claim_timeout),
           case when v_front.drops_completed is distinct from false and l.idempotency_key is null then greatest(l.available_at, l.created_at) end
    into task_name, params, headers, v_timeout, v_eligible_at
    from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = v_entry.lease_id;
    if v_state.is_counted then
      v_taken := hwqueue.set_aside(v_entry.class_id, v_node, p_shard, v_load);
      v_load := v_taken.p_load;
      assignment := v_taken.assignment;
      v_changed := v_changed or assignment is not null;
      v_room := case when v_left > 0 then hwqueue.node_headroom(v_node, v_load) end;
    end if;
    if v_front.queue_id is null then
      select q.name, coalesce(v_timeout, q.claim_timeout), case when q.retain_completed = '0' then v_eligible_at end
      into queue, v_timeout, v_eligible_at
      from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_entry.queue_id;
    end if;
    lease_id := v_entry.lease_id;
    claim_token := (v_generation << 40) + v_entry.claim_count + 1;
    attempt := v_entry.attempt_count + 1;
    expires_at := v_now + v_timeout;
    insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt, claim_timeout,
                               claimed_at, expires_at, check_at, assignment, counted, login, eligible_at)
    values (p_shard, v_entry.lease_id, v_entry.queue_id, v_entry.class_id, p_node, v_state.node_epoch, claim_token, attempt, v_timeout,
            v_now, expires_at, expires_at, assignment, v_picked.counted, v_state.login, v_eligible_at);
    return next;
  end loop;
  if v_changed then
    perform hwqueue.write_load(v_load);
  end if;
  if v_left = p_qty or p_moves or v_now - v_state.seen_at > v_state.heartbeat_timeout / 8 then
    perform hwqueue.after_claim(v_state, v_queue_ids, v_mover, v_left < p_qty, p_moves, p_drawn, v_now, p_shard);
  end if;
end
$$;
