-- A node's sign of life for itself and all its claims [{"lease_id", "claim_token"}] in one statement. Each claim that still
-- stands is extended by p_extend or its own timeout; the verdict says what the worker should do:
-- ok, cancelled (stop, it is not wanted any more), preempted (stop and hand back), lost (stop, do not settle).
-- A claim that somebody else holds (an open cancel, say) is not waited for: it answers ok and is extended the next time.
-- Locks: node_state; the claims by lease_id, skip locked. Raises: QHN01, QHN03, QHA01, QHA02. Idempotent: yes.
create or replace function hwqueue.heartbeat_node(p_node uuid, p_epoch bigint, p_claims jsonb default '[]', p_extend interval default null,
                                                  p_shard int default 0)
returns table (lease_id uuid, verdict text, expires_at timestamptz, shard_id int, claim_token bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_heartbeat(p_claims, p_extend);
  perform hwqueue.lock_node(p_node, coalesce(p_epoch, 0), p_shard), hwqueue.read_node(p_node, p_shard);
  v_now := hwqueue.clock();
  update hwqueue.node_state s set seen_at = v_now where s.shard_id = p_shard and s.node_id = p_node;
  shard_id := p_shard;
  for lease_id, claim_token in
    select b.lease_id, b.claim_token::bigint from jsonb_to_recordset(p_claims) b(lease_id uuid, claim_token numeric)
    order by b.lease_id, b.claim_token
  loop
    select b.verdict, b.expires_at into verdict, expires_at
    from hwqueue.beat_claim(p_node, lease_id, claim_token, p_extend, v_now, p_shard) b;
    return next;
  end loop;
end
$$;

-- Extends one claim of a node.
-- Locks: the claim, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.beat_claim(p_node uuid, p_lease uuid, p_token bigint, p_extend interval, p_now timestamptz, p_shard int,
                                              out verdict text, out expires_at timestamptz)
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
begin
  select c.* into v_claim from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token and c.node_id = p_node
  for update skip locked;
  if found then
    verdict := coalesce(v_claim.stop_reason, 'ok');
    expires_at := greatest(v_claim.expires_at, p_now + coalesce(p_extend, v_claim.claim_timeout));
    update hwqueue.claim c set expires_at = beat_claim.expires_at where c.shard_id = p_shard and c.lease_id = p_lease;
    return;
  end if;
  select 'ok', c.expires_at into verdict, expires_at from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token and c.node_id = p_node;
  if not found then
    select case when l.state = 'cancelled' then 'cancelled' end into verdict
    from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease;
    verdict := coalesce(verdict, 'lost');
  end if;
end
$$;

-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_heartbeat(p_claims jsonb, p_extend interval) returns void
language plpgsql immutable
as $$
declare
  v_item jsonb;
  v_field text;
begin
  if p_extend is not null then
    perform hwqueue.check_extend(p_extend);
  end if;
  if jsonb_typeof(coalesce(p_claims, '[]')) <> 'array' then
    perform hwqueue.refuse('QHA01', 'p_claims must be a JSON array', jsonb_build_object('field', 'p_claims'),
      'for example [{"lease_id": "...", "claim_token": 1}]');
  end if;
  for v_item, v_field in
    select e.value, format('p_claims[%s]', e.ordinality - 1) from jsonb_array_elements(coalesce(p_claims, '[]')) with ordinality e
  loop
    perform hwqueue.check_object(v_item, array['lease_id', 'claim_token'], v_field);
    if hwqueue.json_uuid(v_item -> 'lease_id', v_field || '.lease_id') is null
       or hwqueue.json_integer(v_item -> 'claim_token', v_field || '.claim_token', 0, 9223372036854775807) is null then
      perform hwqueue.refuse('QHA01', format('%s needs lease_id and claim_token', v_field), jsonb_build_object('field', v_field),
        'pass both as claim_task gave them');
    end if;
  end loop;
end
$$;
