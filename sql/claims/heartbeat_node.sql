-- A node's sign of life for itself and all its claims [{"lease_id", "claim_token"}] in one statement. Each claim that still
-- stands is extended by p_extend or its own timeout, a cancelled one by no more than that; the verdict says what the worker should do:
-- ok, cancelled (stop, it is not wanted any more), preempted (stop and hand back), lost (stop, do not settle).
-- It waits for nobody. A claim that somebody else holds (an open cancel, say) is answered as it stands and extended the next
-- time; while somebody holds the node (an open settlement, say) its last sign of life stays as it is. A claim that is named
-- twice is answered once.
-- Locks: node_state, then the claims, all skip locked, so that their order does not matter. Raises: QHN01, QHN03, QHN04, QHA01, QHA02.
-- Idempotent: yes. Plans are made once, and by index: a table that is small now is large before the session ends.
create or replace function hwqueue.heartbeat_node(p_node uuid, p_epoch bigint, p_claims jsonb default '[]', p_extend interval default null,
                                                  p_shard int default 0)
returns table (lease_id uuid, verdict text, expires_at timestamptz, shard_id int, claim_token bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_leases uuid[];
  v_tokens bigint[];
  v_same boolean := coalesce(p_claims, '[]') = '[]';
  v_now timestamptz;
  v_held uuid[];
begin
  perform hwqueue.require_read_committed();
  if not v_same then
    perform hwqueue.check_numbers(p_claims, 'p_claims');
    begin
      select array_agg(b.lease_id), array_agg(b.claim_token), jsonb_agg(b) = p_claims and min(b.claim_token) >= 0
      into v_leases, v_tokens, v_same
      from (select r.lease_id, r.claim_token::bigint from jsonb_to_recordset(p_claims) r(lease_id uuid, claim_token numeric)) b;
    exception when data_exception then
      v_same := false;
    end;
  end if;
  if v_same is not true or p_extend is not null then  -- what reads back as it was written needs no closer look
    perform hwqueue.check_heartbeat(p_claims, p_extend);
  end if;
  v_now := hwqueue.clock();
  update hwqueue.node_state s
  set seen_at = v_now, classes_unseen = hwqueue.still_unseen(s.classes_unseen, p_shard),
      moved_xid = case when s.seen_at + s.heartbeat_timeout > v_now then s.moved_xid else pg_current_xact_id() end
  where s.shard_id = p_shard and s.node_id = (
    select o.node_id from hwqueue.node_state o join hwqueue.node n on n.shard_id = o.shard_id and n.node_id = o.node_id
    where o.shard_id = p_shard and o.node_id = p_node and o.node_epoch = p_epoch and n.deregistered_at is null
      and hwqueue.is_own(o.login)
    for no key update of o skip locked);
  if not found then
    perform hwqueue.check_epoch(p_node, p_epoch, p_shard);
  end if;
  if v_leases is null then
    return;
  end if;
  v_held := array(
    select c.lease_id from unnest(v_leases, v_tokens) b(lease_id, claim_token)
    join hwqueue.claim c on c.shard_id = p_shard and c.lease_id = b.lease_id and c.claim_token = b.claim_token
    where c.node_id = p_node for update of c skip locked);
  return query
    update hwqueue.claim c
    set expires_at = greatest(c.expires_at, v_now + case when c.stop_reason = 'cancelled' then least(p_extend, c.claim_timeout)
                                                         else coalesce(p_extend, c.claim_timeout) end)
    where c.shard_id = p_shard and c.lease_id = any (v_held)
    returning c.lease_id, case when c.stop_requested_at <= v_now then c.stop_reason else 'ok' end, c.expires_at, p_shard, c.claim_token;
  if cardinality(v_held) < cardinality(v_leases) then
    return query select * from hwqueue.heartbeat_others(p_node, v_leases, v_tokens, v_held, v_now, p_shard);
  end if;
end
$$;

-- Refuses a node that is not registered, not the caller's or not at this epoch; one that is, but held by another session, passes.
-- Locks: none. Raises: QHN01, QHN03, QHN04. Idempotent: yes.
create or replace function hwqueue.check_epoch(p_node uuid, p_epoch bigint, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_epoch bigint;
  v_login text;
begin
  select s.node_epoch, s.login into v_epoch, v_login from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node;
  perform hwqueue.check_login(p_node, v_login, p_shard);
  if (v_epoch = p_epoch) is not true then
    perform hwqueue.refuse_epoch(p_node, v_epoch, coalesce(p_epoch, 0), p_shard);
  end if;
  perform hwqueue.read_node(p_node, p_shard);
end
$$;

-- The verdicts on the claims of a heartbeat that were not extended: held by others at this moment, or gone.
create or replace function hwqueue.heartbeat_others(p_node uuid, p_leases uuid[], p_tokens bigint[], p_held uuid[], p_now timestamptz,
                                                    p_shard int)
returns table (lease_id uuid, verdict text, expires_at timestamptz, shard_id int, claim_token bigint)
language sql stable
as $$
  select distinct b.lease_id,
         case when c.stop_requested_at <= p_now then c.stop_reason
              when c.lease_id is not null then 'ok'
              when hwqueue.lease_state(b.lease_id, p_shard) = 'cancelled' then 'cancelled' else 'lost' end,
         c.expires_at, p_shard, b.claim_token
  from unnest(p_leases, p_tokens) b(lease_id, claim_token)
  left join hwqueue.claim c
    on c.shard_id = p_shard and c.lease_id = b.lease_id and c.claim_token = b.claim_token and c.node_id = p_node
  where c.lease_id is null or c.lease_id <> all (p_held)
$$;
