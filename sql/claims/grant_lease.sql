-- Turns a ready entry into a claim: locks it, sets room aside, deletes the entry, writes the claim.
-- Gives nothing when the entry (with p_any_of_class: every entry of its class and rank) is gone or taken by others.
-- Locks: the entry, skip locked; node_state is held by the caller, who writes p_state back. Raises: nothing. Idempotent: no.
create or replace function hwqueue.grant_lease(
  p_entry hwqueue.ready, p_any_of_class boolean, p_node hwqueue.node, p_claim_timeout interval, p_generation bigint,
  p_now timestamptz, p_shard int, inout p_state hwqueue.node_state, out granted hwqueue.claim)
language plpgsql volatile
as $$
declare
  v_entry hwqueue.ready;
  v_class hwqueue.placement_class;
  v_taken record;
  v_lease_timeout interval;
begin
  select r.* into v_entry from hwqueue.ready r
  where r.shard_id = p_shard and r.queue_id = p_entry.queue_id and r.tier = p_entry.tier and r.rank = p_entry.rank
    and r.position = p_entry.position
  for update skip locked;
  if not found and p_any_of_class then
    select r.* into v_entry from hwqueue.ready r
    where r.shard_id = p_shard and r.class_id = p_entry.class_id and r.tier = p_entry.tier and r.rank = p_entry.rank
      and (r.deadline is null or r.deadline > p_now)
    order by r.position limit 1
    for update skip locked;
  end if;
  if v_entry.lease_id is null then
    return;
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_entry.class_id;
  select t.* into v_taken
  from hwqueue.take_room(v_class, p_node,
    case when v_class.gpu_count > 0 then hwqueue.choose_devices(v_class.gpu_count, v_class.gpu_milli, v_class.gpu_wanted,
      hwqueue.node_headroom(p_node, p_state)) end, p_state) t;
  p_state := v_taken.p_state;
  delete from hwqueue.ready r
  where r.shard_id = p_shard and r.queue_id = v_entry.queue_id and r.tier = v_entry.tier and r.rank = v_entry.rank
    and r.position = v_entry.position;
  select l.claim_timeout into v_lease_timeout from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = v_entry.lease_id;
  insert into hwqueue.claim as c (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt,
    claim_timeout, claimed_at, expires_at, check_at, assignment)
  values (p_shard, v_entry.lease_id, v_entry.queue_id, v_entry.class_id, p_node.node_id, p_state.node_epoch,
    (p_generation << 40) + v_entry.claim_count + 1, v_entry.attempt_count + 1, coalesce(v_lease_timeout, p_claim_timeout),
    p_now, p_now + coalesce(v_lease_timeout, p_claim_timeout), p_now + coalesce(v_lease_timeout, p_claim_timeout), v_taken.assignment)
  returning c.* into granted;
end
$$;
