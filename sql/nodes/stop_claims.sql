-- Asks claims to stop at once (verdict preempted at the next heartbeat), those that have not been asked yet.
-- Locks: the caller holds node_state and the claims.
create or replace function hwqueue.ask_to_stop(p_node uuid, p_leases uuid[], p_by timestamptz, p_detail text, p_now timestamptz, p_shard int) returns void
language sql volatile
as $$
  with asked as (
    update hwqueue.claim c
    set stop_requested_at = p_now, stop_reason = 'preempted', stop_by = least(c.stop_by, p_by), stop_detail = p_detail
    where c.shard_id = p_shard and c.lease_id = any (p_leases) and (c.stop_requested_at is null or c.stop_requested_at > p_now)
    returning c.lease_id
  )
  select hwqueue.note_leases('claim_stop_requested', array_agg(a.lease_id), 'asked to stop: ' || p_detail, p_shard,
    jsonb_build_object('reason', 'preempted', 'stop_by', p_by), p_node) from asked a
$$;

-- The claims of a node, locked.
-- Locks: node_state is held by the caller; the claims by lease_id.
create or replace function hwqueue.lock_claims(p_node uuid, p_shard int) returns uuid[]
language sql volatile
as $$
  select array(select c.lease_id from hwqueue.claim c where c.shard_id = p_shard and c.node_id = p_node order by c.lease_id for update)
$$;

-- Sets when claims of a node have to stop for its no_execute taints: at once for what does not tolerate them, later for what tolerates them
-- for a time. Where that is over or withdrawn before its time, the claim is not asked any more. Claims that have been asked,
-- for whatever reason, stay asked.
-- Locks: the caller holds node_state and the claims.
create or replace function hwqueue.set_taint_stops(p_node hwqueue.node, p_leases uuid[], p_now timestamptz, p_shard int) returns void
language sql volatile
as $$
  with asked as (
    update hwqueue.claim c
    set stop_requested_at = w.stop_at, stop_by = w.stop_at, stop_reason = case when w.stop_at is not null then 'preempted' end,
        stop_detail = 'taint ' || hwqueue.taint_text(w.taint)
    from (
      select r.lease_id, greatest(f.stop_at, case when f.stop_at is not null then p_now end) as stop_at, f.taint
      from hwqueue.claim r
      join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = r.class_id
      cross join lateral hwqueue.first_stop(p_node.taints || p_node.operator_taints, k.tolerate, r.claimed_at) f
      where r.shard_id = p_shard and r.lease_id = any (p_leases)
    ) w
    where c.shard_id = p_shard and c.lease_id = w.lease_id and (c.stop_requested_at is null or c.stop_requested_at > p_now)
      and c.stop_requested_at is distinct from w.stop_at
    returning c.lease_id, c.stop_requested_at, c.stop_detail
  )
  select hwqueue.note_leases('claim_stop_requested', array_agg(a.lease_id), 'asked to stop: ' || a.stop_detail, p_shard,
    jsonb_build_object('reason', 'preempted', 'stop_by', a.stop_requested_at), p_node.node_id)
  from asked a where a.stop_requested_at is not null group by a.stop_requested_at, a.stop_detail
$$;

-- Whether a node has, or had, a taint that asks what runs there to stop.
create or replace function hwqueue.has_no_execute(p_node hwqueue.node) returns boolean
language sql immutable parallel safe
as $$ select p_node.taints || p_node.operator_taints @> '[{"effect": "no_execute"}]' $$;
