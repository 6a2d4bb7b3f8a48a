-- Grants a node up to p_qty leases that it may run now, best first; zero rows when there are none.
-- p_claim_timeout counts for leases that bring none of their own; else the queue's.
-- Locks: node_state, then scheduled and ready entries (skip locked); now and then the low-water marks, skip locked.
-- Raises: QHQ01, QHN01, QHN03, QHA01, QHA02.
-- Idempotent: no. An error or a lost connection means that the outcome is unknown: treat it as not granted.
-- Plans are made once, for any arguments, and by index: a table that is small now is large before the session ends.
create or replace function hwqueue.claim_task(p_queues text[], p_node uuid, p_epoch bigint, p_qty int default 1,
  p_tasks text[] default null, p_claim_timeout interval default null, p_shard int default 0)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb, headers jsonb,
               score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_moves boolean := hwqueue.moves_low_water(p_qty);
  v_drawn bigint := case when v_moves then hwqueue.last_drawn_position() end;
  v_state hwqueue.node_state;
  v_queue record;
  v_queue_ids int[];
  v_now timestamptz;
  v_generation bigint;
  v_is_plain boolean;
  v_left int := p_qty;
  v_places tid[];
  v_pick record;
  v_entry hwqueue.ready;
  v_taken record;
  v_grant record;
  v_node hwqueue.node;
  v_load hwqueue.node_load;
  v_changed boolean := false;
begin
  if not hwqueue.check_claim(p_queues, p_qty, p_claim_timeout) then
    return;  -- never: it refuses
  end if;
  select s.* into v_state from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node for no key update;
  if v_state.node_epoch is distinct from p_epoch then
    perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0), p_shard);  -- says why not
  end if;
  v_queue := hwqueue.only_queue(p_queues, p_shard);
  v_queue_ids := case when v_queue.queue_id is null then hwqueue.open_queues(p_queues, p_shard) else array[v_queue.queue_id] end;
  v_now := hwqueue.clock();
  v_generation := case when v_state.server_started_at = pg_postmaster_start_time() then v_state.generation
                  else hwqueue.node_generation(p_node, p_shard) end;
  v_is_plain := v_state.is_plain and v_queue.queue_id <> all (v_state.pinned_queues);
  if v_state.is_counted then
    v_node := hwqueue.read_node(p_node, p_shard);
    v_load := hwqueue.read_load(p_node, p_shard);
  end if;
  perform hwqueue.promote_due(v_queue_ids, p_qty + 20, v_now, p_shard);
  score := 0;
  shard_id := p_shard;
  while v_left > 0 loop
    if v_is_plain then
      v_places := hwqueue.take_front(v_state.profile_id, v_state.classes_seen, v_queue.queue_id, p_tasks, v_queue.window_size,
        case when v_state.is_counted then hwqueue.node_headroom(v_node, v_load) end,
        case when v_state.is_counted then 1 else v_left end, v_now, p_shard);
    end if;
    if v_is_plain is distinct from true or v_places = '{}' then
      v_is_plain := false;
      v_pick := hwqueue.pick_leases(v_state, v_load, v_queue_ids, p_tasks, v_left, v_now, p_shard);
      v_places := v_pick.places;
      score := v_pick.score;
    end if;
    exit when v_places = '{}';
    v_left := v_left - cardinality(v_places);
    if cardinality(v_places) > 1 then
      select r.* into v_entry from hwqueue.ready r where r.ctid = v_places[1];
      return query
        select g.lease_id, g.claim_token, g.attempt, g.queue, g.task_name, g.params, g.headers, score, g.expires_at, null::jsonb, p_shard
        from hwqueue.grant_batch(v_places, p_node, v_state.node_epoch, p_claim_timeout, v_generation, v_now, p_shard) g;
      continue;
    end if;
    delete from hwqueue.ready r where r.ctid = v_places[1] returning r.* into v_entry;
    if v_state.is_counted then
      v_taken := hwqueue.set_aside(v_entry.class_id, v_node, p_shard, v_load);
      v_load := v_taken.p_load;
      assignment := v_taken.assignment;
      v_changed := v_changed or assignment is not null;
    end if;
    v_grant := hwqueue.grant_lease(v_entry, p_node, v_state.node_epoch, assignment, p_claim_timeout, v_generation, v_now, p_shard,
                                   v_queue.name, v_queue.claim_timeout);
    lease_id := v_entry.lease_id;
    claim_token := (v_generation << 40) + v_entry.claim_count + 1;
    attempt := v_entry.attempt_count + 1;
    queue := v_grant.queue;
    task_name := v_grant.task_name;
    params := v_grant.params;
    headers := v_grant.headers;
    expires_at := v_grant.expires_at;
    return next;
  end loop;
  if v_changed then
    perform hwqueue.write_load(v_load);
  end if;
  if v_now - v_state.seen_at > v_state.heartbeat_timeout / 8 then
    update hwqueue.node_state s set seen_at = v_now where s.shard_id = p_shard and s.node_id = p_node;
  end if;
  if v_left = p_qty then
    -- nothing to do: the time to look after what nobody settled, should no one call reap
    perform hwqueue.reap_claims(5, p_node, v_now, p_shard), hwqueue.reap_deadlines(20, v_now, p_shard);
    perform hwqueue.mark_waiting(v_queue_ids, v_now, p_shard);
  elsif v_moves then
    perform hwqueue.move_horizon(v_drawn, p_shard);
    perform hwqueue.move_low_water(v_entry.queue_id, 0, v_entry.tier, v_entry.rank, p_shard);
  end if;
end
$$;
