-- Settles a batch and claims the next in one round trip and one commit. One bad settlement undoes neither the others
-- nor the claim: its row says why. A claim that another session holds is busy, and stays as it is: settle it again later.
-- p_completed: leases that are done and have no result, with their tokens, as complete_leases takes them: it costs half of what the same
-- costs in p_settle, and only those that could not be completed get a row; their ordinals go on after p_settle's.
-- Locks: node_state, once; its claims by lease_id; then as claim_task.
-- Raises: QHQ01, QHN01, QHN03, QHN04, QHA01, QHA02. Idempotent: no. With p_qty 0 it only settles.
create or replace function hwqueue.settle_and_claim(p_node uuid, p_epoch bigint, p_settle jsonb, p_queues text[], p_qty int default 1,
  p_tasks text[] default null, p_claim_timeout interval default null, p_completed uuid[] default '{}', p_completed_tokens bigint[] default '{}',
  p_shard int default 0)
returns table (kind text, ordinal int, lease_id uuid, verdict text, state text, claim_token bigint, attempt smallint, queue text,
               task_name text, params jsonb, headers jsonb, score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off set jit = off
as $$
declare
  v_completed int := hwqueue.check_completions(p_completed, p_completed_tokens, 'p_completed', 'p_completed_tokens');
  v_given int := 0;
  v_moves boolean := case when p_qty is distinct from 0 then hwqueue.check_claim(p_queues, p_qty, p_claim_timeout) and hwqueue.moves_low_water(p_qty)
                     else false end;
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
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if p_settle <> '[]' then
    v_given := hwqueue.check_settlements(p_settle, p_shard);
  end if;
  select s.* into v_state from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node for no key update;
  if (v_state.node_epoch = p_epoch and v_state.login = session_user) is not true then
    perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0), p_shard);  -- says why not, if so
  end if;
  if v_completed = 1 and v_given = 0 then  -- most calls, so without a statement for it
    v_completed := case when hwqueue.finish_claim(p_completed[1], p_completed_tokens[1], p_node, false, false, null, p_shard) then 0 else 1 end;
  end if;
  if v_completed + v_given > 0 then
    return query
      select 'settled', e.ordinal, e.lease_id, e.verdict, e.state, null::bigint, null::smallint, null::text, null::text, null::jsonb,
             null::jsonb, null::double precision, null::timestamptz, null::jsonb, p_shard
      from hwqueue.settle_lists(v_state, v_given, p_settle, p_completed, p_completed_tokens, p_shard) e;
  end if;
  if p_qty = 0 then
    return;
  end if;
  kind := 'claimed';
  state := 'claimed';
  -- head: as in claim_task
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
    select 'claimed', null::int, c.lease_id, null::text, 'claimed', c.claim_token, c.attempt, c.queue, c.task_name, c.params,
           c.headers, c.score, c.expires_at, c.assignment, p_shard
    from hwqueue.claim_general(v_state, v_front, v_is_tried, p_queues, p_node, p_epoch, p_qty, p_tasks, p_claim_timeout, v_moves, v_drawn, p_shard) c;
end
$$;

-- Settles what settle_and_claim was given, but for a single completion: those of p_settle (p_given of them), then those of p_completed.
-- Locks: node_state is held by the caller; its claims by lease_id. Raises: nothing. Idempotent: no.
create or replace function hwqueue.settle_lists(p_state hwqueue.node_state, p_given int, p_settle jsonb, p_completed uuid[],
  p_completed_tokens bigint[], p_shard int)
returns table (ordinal int, lease_id uuid, verdict text, state text)
language plpgsql volatile
as $$
declare
  v_completed int := cardinality(p_completed);
  v_held uuid[];
begin
  if p_given > 0 and v_completed > 0 then  -- waits for others before it holds a claim itself: whoever cancels several leases may want that one next
    v_held := hwqueue.held_claims(p_completed || array(select (e.value ->> 'lease_id')::uuid from jsonb_array_elements(p_settle) e), p_shard);
    if v_held <> '{}' then
      perform hwqueue.await_claims(v_held, '900ms', p_shard);
    end if;
  end if;
  if p_given > 0 then
    return query select e.ordinal, e.lease_id, e.verdict, e.state from hwqueue.settle_each(p_state.node_id, p_settle, p_shard) e;
  end if;
  if v_completed > 0 then
    return query
      select p_given + c.ordinal, c.lease_id, c.verdict, c.state
      from hwqueue.complete_claims(p_completed, p_completed_tokens, p_state.node_id, p_state.is_counted, p_shard) c;
  end if;
end
$$;

-- Checks a batch before anything is locked; gives how many it has.
-- Locks: none. Raises: QHA01, naming the element. Idempotent: yes.
create or replace function hwqueue.check_settlements(p_settle jsonb, p_shard int) returns int
language plpgsql stable
as $$
declare
  v_item jsonb;
  v_field text;
begin
  if jsonb_typeof(p_settle) <> 'array' then
    perform hwqueue.refuse('QHA01', 'p_settle must be a JSON array', jsonb_build_object('field', 'p_settle'),
      'for example [{"lease_id": "...", "claim_token": 1, "outcome": "complete"}]');
  end if;
  for v_item, v_field in
    select e.value, format('p_settle[%s]', e.ordinality - 1) from jsonb_array_elements(p_settle) with ordinality e
  loop
    perform hwqueue.check_settlement(v_item, v_field);
    if hwqueue.json_uuid(v_item -> 'lease_id', v_field || '.lease_id') is null
       or hwqueue.json_integer(v_item -> 'claim_token', v_field || '.claim_token', 0, 9223372036854775807) is null then
      perform hwqueue.refuse('QHA01', format('%s needs lease_id and claim_token', v_field), jsonb_build_object('field', v_field),
        'pass both as claim_task gave them');
    end if;
    perform hwqueue.check_result((v_item ->> 'lease_id')::uuid, nullif(v_item -> 'result', 'null'), v_field || '.result', p_shard);
  end loop;
  return jsonb_array_length(p_settle);
end
$$;
