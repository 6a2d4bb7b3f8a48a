-- Steps of register_node, each under the lock that it holds.

-- Ends the claims of a node's older epochs: the process that ran them is gone.
-- Locks: the claims by lease_id; the lease rows.
create or replace function hwqueue.end_older_claims(p_node uuid, p_epoch bigint, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_count int := 0;
begin
  for v_claim in
    select c.* from hwqueue.claim c
    where c.shard_id = p_shard and c.node_id = p_node and c.node_epoch < p_epoch order by c.lease_id for update
  loop
    -- the clock again, now that claims are locked (oldest_ender)
    perform hwqueue.end_claim(v_claim, 'superseded', jsonb_build_object('reason', 'node_superseded'),
      case when hwqueue.next_attempt_at(v_claim.lease_id, v_claim.attempt, p_now, p_shard) is not null then p_now end, hwqueue.clock(), p_shard);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;

-- Forgets what was judged for the node itself: it is judged anew.
-- Locks: node_state is held by the caller.
create or replace function hwqueue.forget_node(p_node uuid, p_shard int) returns void
language plpgsql volatile
as $$
begin
  delete from hwqueue.node_eligibility e where e.shard_id = p_shard and e.node_id = p_node;
  update hwqueue.node_state s set classes_seen = '0', classes_unseen = '{}', judged_xid = null, judged_class = null, pinned_queues = '{}',
                                  moved_xid = pg_current_xact_id()
  where s.shard_id = p_shard and s.node_id = p_node;
end
$$;

-- Sets anew what the node's claims set aside (it may count other things now), and its usage; devices and cores that are gone count for
-- nothing. Claims of older epochs that were kept move to the new one. With p_forget, what was judged for the node itself is judged anew.
-- Locks: node_state is held by the caller.
create or replace function hwqueue.recount_node(p_node hwqueue.node, p_epoch bigint, p_now timestamptz, p_forget boolean, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_load hwqueue.node_load;
begin
  if p_forget then
    perform hwqueue.forget_node(p_node.node_id, p_shard);
  end if;
  update hwqueue.claim c
  set node_epoch = p_epoch, assignment = hwqueue.claim_assignment(k, p_node, c.assignment -> 'gpus', hwqueue.held_alone(c.assignment, p_node))
  from hwqueue.placement_class k
  where c.shard_id = p_shard and c.node_id = p_node.node_id and k.shard_id = p_shard and k.class_id = c.class_id;
  perform hwqueue.move_counts(p_node.node_id, null, p_shard);
  update hwqueue.node_state s
  set node_epoch = p_epoch, seen_at = p_now
  where s.shard_id = p_shard and s.node_id = p_node.node_id;
  v_load := hwqueue.read_load(p_node.node_id, p_shard);
  select u.claim_count, u.cpu_used, u.memory_used, u.gpu_used, u.custom_used, u.core_used
  into v_load.claim_count, v_load.cpu_used, v_load.memory_used, v_load.gpu_used, v_load.custom_used, v_load.core_used
  from hwqueue.node_usage_of_claims(p_node) u;
  perform hwqueue.write_load(v_load);
end
$$;

-- Tells of a registration that is the node's first, or that fences an older instance; the same instance registering again is no news.
-- Idempotent: no.
create or replace function hwqueue.note_registration(p_node hwqueue.node, p_old hwqueue.node, p_epoch bigint, p_ended int, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if p_old.node_id is null or p_old.deregistered_at is not null then
    perform hwqueue.note_event('node_registered', format('node %s is registered', p_node.name), p_shard,
      jsonb_build_object('node_epoch', p_epoch, 'instance_id', p_node.instance_id), p_node => p_node.node_id);
  elsif p_old.instance_id <> p_node.instance_id then
    perform hwqueue.note_event('node_superseded', format('node %s has a new instance, %s claims of older ones ended', p_node.name, p_ended), p_shard,
      jsonb_build_object('node_epoch', p_epoch, 'instance_id', p_node.instance_id, 'claims_ended', p_ended), p_node => p_node.node_id);
  end if;
end
$$;
