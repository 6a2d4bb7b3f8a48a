-- Settles a batch and claims the next in one round trip and one commit. One bad settlement undoes neither the others
-- nor the claim: its row says why.
-- Locks: node_state; the claims by lease_id; then as claim_task. Raises: QHQ01, QHN01, QHN03, QHA01, QHA02.
-- Idempotent: no. With p_qty 0 it only settles.
create or replace function hwqueue.settle_and_claim(p_node uuid, p_epoch bigint, p_settle jsonb, p_queues text[], p_qty int default 1,
  p_tasks text[] default null, p_claim_timeout interval default null, p_shard int default 0)
returns table (kind text, ordinal int, lease_id uuid, verdict text, state text, claim_token bigint, attempt smallint, queue text,
               task_name text, params jsonb, headers jsonb, score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_is_plain boolean := hwqueue.is_plain_batch(p_settle);
  v_count int := case when jsonb_typeof(p_settle) = 'array' then jsonb_array_length(p_settle) else 0 end;
  v_done int[] := '{}';
  v_state record;
  v_drawn bigint := case when hwqueue.moves_low_water(p_qty) then hwqueue.last_drawn_position() end;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if not v_is_plain then
    perform hwqueue.check_settlements(p_settle, p_shard);
  end if;
  select s.node_epoch, s.is_counted into v_state from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node for no key update;
  if (v_state.node_epoch = p_epoch) is not true then
    perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0), p_shard);  -- says why not
  end if;
  perform hwqueue.move_horizon(v_drawn, p_shard);  -- claim_task cannot: this transaction has an id by then
  kind := 'settled';
  verdict := 'ok';
  state := 'completed';
  shard_id := p_shard;
  if v_is_plain and v_count = 1 then
    lease_id := p_settle #>> '{0,lease_id}';
    if hwqueue.finish_claim(lease_id, (p_settle #>> '{0,claim_token}')::bigint, p_node, false, null, p_shard) then
      v_done := '{1}';
    end if;
  elsif v_is_plain and v_count > 1 and not v_state.is_counted then  -- else one by one: all of them by lease_id
    v_done := (
      select hwqueue.finish_claims(array_agg((i.value ->> 'lease_id')::uuid), array_agg((i.value ->> 'claim_token')::bigint), p_node, p_shard)
      from jsonb_array_elements(p_settle) i);
  end if;
  foreach ordinal in array v_done loop
    lease_id := p_settle -> (ordinal - 1) ->> 'lease_id';
    return next;
  end loop;
  if cardinality(v_done) < v_count then
    return query
      select 'settled', r.ordinal, r.lease_id, r.verdict, r.state, null::bigint, null::smallint, null::text, null::text, null::jsonb,
             null::jsonb, null::double precision, null::timestamptz, null::jsonb, p_shard
      from hwqueue.settle_rest(p_node, p_settle, v_done, p_shard) r;
  end if;
  if p_qty is distinct from 0 then
    return query
      select 'claimed', null::int, c.lease_id, null::text, 'claimed', c.claim_token, c.attempt, c.queue, c.task_name, c.params,
             c.headers, c.score, c.expires_at, c.assignment, p_shard
      from hwqueue.claim_task(p_queues, p_node, p_epoch, p_qty, p_tasks, p_claim_timeout, p_shard) c;
  end if;
end
$$;

-- Checks a batch before anything is locked.
-- Locks: none. Raises: QHA01, naming the element. Idempotent: yes.
create or replace function hwqueue.check_settlements(p_settle jsonb, p_shard int) returns void
language plpgsql stable
as $$
declare
  v_item jsonb;
  v_field text;
begin
  if jsonb_typeof(coalesce(p_settle, '[]')) <> 'array' then
    perform hwqueue.refuse('QHA01', 'p_settle must be a JSON array', jsonb_build_object('field', 'p_settle'),
      'for example [{"lease_id": "...", "claim_token": 1, "outcome": "complete"}]');
  end if;
  for v_item, v_field in
    select e.value, format('p_settle[%s]', e.ordinality - 1) from jsonb_array_elements(coalesce(p_settle, '[]')) with ordinality e
  loop
    perform hwqueue.check_settlement(v_item, v_field);
    if hwqueue.json_uuid(v_item -> 'lease_id', v_field || '.lease_id') is null
       or hwqueue.json_integer(v_item -> 'claim_token', v_field || '.claim_token', 0, 9223372036854775807) is null then
      perform hwqueue.refuse('QHA01', format('%s needs lease_id and claim_token', v_field), jsonb_build_object('field', v_field),
        'pass both as claim_task gave them');
    end if;
    perform hwqueue.check_result((v_item ->> 'lease_id')::uuid, nullif(v_item -> 'result', 'null'), v_field || '.result', p_shard);
  end loop;
end
$$;
