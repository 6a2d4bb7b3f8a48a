-- Grants a node up to p_qty leases that it may run now, best first; no rows: there are none. p_claim_timeout: for leases without one; else the queue's.
-- One lease that a plain node takes from the head of its queues is granted here, in four statements: the node's row, what is known of
-- the queue, the entry and its lease, the claim. Everything else is claim_general.
-- Locks: node_state, then scheduled and ready entries (skip locked); now and then the low-water marks, skip locked.
-- Raises: QHQ01, QHN01, QHN03, QHN04, QHA01, QHA02. Idempotent: no; after a lost connection treat the outcome as not granted.
-- Plans are made once, for any arguments, and by index.
create or replace function hwqueue.claim_task(p_queues text[], p_node uuid, p_epoch bigint, p_qty int default 1,
  p_tasks text[] default null, p_claim_timeout interval default null, p_shard int default 0)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb, headers jsonb,
               score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
as $$
declare
  v_moves boolean := hwqueue.check_claim(p_queues, p_qty, p_claim_timeout) and hwqueue.moves_low_water(p_qty);
  v_drawn bigint := case when v_moves then hwqueue.last_drawn_position() end;
  v_state hwqueue.node_state;
  v_now timestamptz;
  v_front hwqueue.queue_look;
  v_is_tried boolean := false;
  v_class_id bigint;
  v_position bigint;
  v_timeout interval;
  v_eligible_at timestamptz;
begin
  select s.* into v_state from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node for no key update;
  -- head: as in settle_and_claim
  if p_qty = 1 and v_state.node_epoch = p_epoch and v_state.login = session_user and v_state.is_plain and not v_state.is_counted
     and not v_state.awaits_terms and v_state.server_started_at = pg_postmaster_start_time()
     and v_state.storage_path = pg_relation_filepath('hwqueue.shard'::regclass) and cardinality(p_queues) <= 16 then
    v_now := hwqueue.clock();
    if cardinality(p_queues) = 1 then
      select q.* into v_front
      from hwqueue.look_at_queue(p_queues[1], v_state.profile_id, v_state.classes_seen, v_state.classes_unseen, p_shard) q;
      if v_state.meets_blocked and v_front.is_front and not v_front.is_first then
        v_front := hwqueue.look_behind(v_state, v_front, v_now, p_shard);
      end if;
    else
      select q.* into v_front
      from hwqueue.look_at_queues(p_queues, v_state.profile_id, v_state.classes_seen, v_state.classes_unseen, v_state.pinned_queues,
                                  p_shard) q;
    end if;
    v_is_tried := v_front.is_first and v_front.queue_id <> all (v_state.pinned_queues)
      and (p_tasks is null or cardinality(v_front.task_names) <= 50 and v_front.task_names <@ p_tasks);
    if v_is_tried and current_setting('hwqueue.due_look', true) is distinct from hwqueue.due_look(p_queues, v_now, p_shard)
       and hwqueue.look_for_due(p_queues, v_front.queue_ids, 20, v_now, p_shard) > 0 then
      v_is_tried := false;
      v_front := null;
    end if;
    if v_is_tried then
      if cardinality(v_front.classes) = 1 then
        delete from hwqueue.ready r using hwqueue.lease l
        where r.ctid = (
            select x.ctid from hwqueue.ready x
            where x.shard_id = p_shard and x.class_id = v_front.classes[1] and x.tier = 0 and x.rank = v_front.rank
              and x.position between v_front.position and v_front.last and (x.deadline is null or x.deadline > v_now)
            order by x.position limit 1 for update skip locked)
          and l.shard_id = r.shard_id and l.lease_id = r.lease_id
        returning r.lease_id, r.class_id, (v_state.generation << 40) + r.claim_count + 1, r.attempt_count + 1, r.position,
          l.task_name, l.params, l.headers, coalesce(l.claim_timeout, p_claim_timeout, v_front.claim_timeout),
          case when v_front.drops_completed and l.idempotency_key is null then greatest(l.available_at, l.created_at) end
        into lease_id, v_class_id, claim_token, attempt, v_position, task_name, params, headers, v_timeout, v_eligible_at;
      else
        delete from hwqueue.ready r using hwqueue.lease l
        where r.ctid = (
            select x.ctid from hwqueue.ready x
            where x.shard_id = p_shard and x.queue_id = v_front.queue_id and x.tier = 0 and x.rank = v_front.rank
              and x.position between v_front.position and v_front.last
              and x.class_id = any (v_front.classes) and (x.deadline is null or x.deadline > v_now)
            order by x.position limit 1 for update skip locked)
          and l.shard_id = r.shard_id and l.lease_id = r.lease_id
        returning r.lease_id, r.class_id, (v_state.generation << 40) + r.claim_count + 1, r.attempt_count + 1, r.position,
          l.task_name, l.params, l.headers, coalesce(l.claim_timeout, p_claim_timeout, v_front.claim_timeout),
          case when v_front.drops_completed and l.idempotency_key is null then greatest(l.available_at, l.created_at) end
        into lease_id, v_class_id, claim_token, attempt, v_position, task_name, params, headers, v_timeout, v_eligible_at;
      end if;
      if lease_id is not null then
        queue := v_front.name;
        score := 0;
        expires_at := v_now + v_timeout;
        shard_id := p_shard;
        insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt, claim_timeout,
                                   claimed_at, expires_at, check_at, login, eligible_at)
        values (p_shard, lease_id, v_front.queue_id, v_class_id, p_node, p_epoch, claim_token, attempt, v_timeout,
                v_now, expires_at, expires_at, v_state.login, v_eligible_at);
        if v_moves or v_now - v_state.seen_at > v_state.heartbeat_timeout / 8 then
          perform hwqueue.after_head(v_state, v_front.queue_id, v_class_id, v_front.rank, v_position, lease_id, v_moves, v_drawn, v_now, p_shard);
        end if;
        -- head: end
        return next;
        return;
      end if;
    end if;
  end if;
  return query
    select g.* from hwqueue.claim_general(v_state, v_front, v_is_tried, p_queues, p_node, p_epoch, p_qty, p_tasks, p_claim_timeout, v_moves, v_drawn, p_shard) g;
end
$$;

-- after_claim of one lease from the head of a queue.
-- Locks, raises: as after_claim. Idempotent: yes.
create or replace function hwqueue.after_head(p_state hwqueue.node_state, p_queue_id int, p_class_id bigint, p_rank bigint, p_position bigint,
  p_lease uuid, p_moves boolean, p_drawn bigint, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_entry hwqueue.ready;
begin
  v_entry.shard_id := p_shard;
  v_entry.queue_id := p_queue_id;
  v_entry.tier := 0;
  v_entry.rank := p_rank;
  v_entry.position := p_position;
  v_entry.class_id := p_class_id;
  v_entry.lease_id := p_lease;
  perform hwqueue.after_claim(p_state, array[p_queue_id], v_entry, true, p_moves, p_drawn, p_now, p_shard);
end
$$;
