-- Settles a batch and claims the next in one round trip and one commit. One bad settlement undoes neither the others
-- nor the claim: its row says why. A claim that another session holds is busy, and stays as it is: settle it again later.
-- p_completed: leases that are done and have no result, with their tokens, as complete_leases takes them: it costs half of what the same
-- costs in p_settle, and only those that could not be completed get a row; their ordinals go on after p_settle's.
-- Locks: node_state; its claims by lease_id; then as claim_task.
-- Raises: QHQ01, QHN01, QHN03, QHN04, QHA01, QHA02. Idempotent: no. With p_qty 0 it only settles.
create or replace function hwqueue.settle_and_claim(p_node uuid, p_epoch bigint, p_settle jsonb, p_queues text[], p_qty int default 1,
  p_tasks text[] default null, p_claim_timeout interval default null, p_completed uuid[] default '{}', p_completed_tokens bigint[] default '{}',
  p_shard int default 0)
returns table (kind text, ordinal int, lease_id uuid, verdict text, state text, claim_token bigint, attempt smallint, queue text,
               task_name text, params jsonb, headers jsonb, score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_completed int := hwqueue.check_completions(p_completed, p_completed_tokens, 'p_completed', 'p_completed_tokens');
  v_given int := 0;
  v_held uuid[];
  v_state record;
  v_drawn bigint := case when hwqueue.moves_low_water(p_qty) then hwqueue.last_drawn_position() end;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if p_settle <> '[]' then
    v_given := hwqueue.check_settlements(p_settle, p_shard);
  end if;
  select s.node_epoch, s.login, s.is_counted into v_state from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node for no key update;
  if (v_state.node_epoch = p_epoch and v_state.login = session_user) is not true then
    perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0), p_shard);  -- says why not, if so
  end if;
  if v_drawn is not null then
    perform hwqueue.move_horizon(v_drawn, p_shard);  -- claim_task cannot: this transaction has an id by then
  end if;
  if v_given > 0 and v_completed > 0 then  -- waits for others before it holds a claim itself: whoever cancels several leases may want that one next
    v_held := hwqueue.held_claims(p_completed || array(select (e.value ->> 'lease_id')::uuid from jsonb_array_elements(p_settle) e), p_shard);
    if v_held <> '{}' then
      perform hwqueue.await_claims(v_held, '900ms', p_shard);
    end if;
  end if;
  if v_given > 0 then
    return query
      select 'settled', e.ordinal, e.lease_id, e.verdict, e.state, null::bigint, null::smallint, null::text, null::text, null::jsonb,
             null::jsonb, null::double precision, null::timestamptz, null::jsonb, p_shard
      from hwqueue.settle_each(p_node, p_settle, p_shard) e;
  end if;
  if v_completed = 1 then  -- most calls, so without a statement for it
    v_completed := case when hwqueue.finish_claim(p_completed[1], p_completed_tokens[1], p_node, false, false, null, p_shard) then 0 else 1 end;
  end if;
  if v_completed > 0 then
    return query
      select 'settled', v_given + c.ordinal, c.lease_id, c.verdict, c.state, null::bigint, null::smallint, null::text, null::text, null::jsonb,
             null::jsonb, null::double precision, null::timestamptz, null::jsonb, p_shard
      from hwqueue.complete_claims(p_completed, p_completed_tokens, p_node, v_state.is_counted, p_shard) c;
  end if;
  if p_qty is distinct from 0 then
    return query
      select 'claimed', null::int, c.lease_id, null::text, 'claimed', c.claim_token, c.attempt, c.queue, c.task_name, c.params,
             c.headers, c.score, c.expires_at, c.assignment, p_shard
      from hwqueue.claim_task(p_queues, p_node, p_epoch, p_qty, p_tasks, p_claim_timeout, p_shard) c;
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
