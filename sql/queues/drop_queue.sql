-- Removes a queue and its leases. Refused while anything waits or runs in it, unless forced.
-- Locks: the queue's row, then its entries. Raises: QHQ01, QHQ03 not empty. Idempotent: no, the second call finds no queue.
create or replace function hwqueue.drop_queue(p_queue text, p_force boolean default false, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue := hwqueue.find_queue(p_queue, p_shard);
  v_claim hwqueue.claim;
begin
  perform 1 from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_queue.queue_id for update;
  if not p_force and (
       exists (select 1 from hwqueue.ready r where r.shard_id = p_shard and r.queue_id = v_queue.queue_id)
    or exists (select 1 from hwqueue.scheduled s where s.shard_id = p_shard and s.queue_id = v_queue.queue_id)
    or exists (select 1 from hwqueue.claim c where c.shard_id = p_shard and c.queue_id = v_queue.queue_id)) then
    perform hwqueue.refuse('QHQ03', format('queue %s is not empty', p_queue), jsonb_build_object('queue', p_queue),
      'wait until it is, or drop it with p_force => true, which loses the leases');
  end if;
  for v_claim in select c.* from hwqueue.claim c where c.shard_id = p_shard and c.queue_id = v_queue.queue_id order by c.node_id, c.lease_id loop
    perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = v_claim.node_id for no key update;
    perform hwqueue.remove_claim(v_claim.lease_id, p_shard);
  end loop;
  delete from hwqueue.ready r where r.shard_id = p_shard and r.queue_id = v_queue.queue_id;
  delete from hwqueue.scheduled s where s.shard_id = p_shard and s.queue_id = v_queue.queue_id;
  delete from hwqueue.idempotency i where i.shard_id = p_shard and i.queue_id = v_queue.queue_id;
  delete from hwqueue.attempt a using hwqueue.lease l
  where l.shard_id = p_shard and l.queue_id = v_queue.queue_id and a.shard_id = p_shard and a.lease_id = l.lease_id;
  delete from hwqueue.lease l where l.shard_id = p_shard and l.queue_id = v_queue.queue_id;
  delete from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.queue_id = v_queue.queue_id;
  delete from hwqueue.node_eligibility e where e.shard_id = p_shard and e.queue_id = v_queue.queue_id;
  delete from hwqueue.placement_class c where c.shard_id = p_shard and c.queue_id = v_queue.queue_id;
  delete from hwqueue.queue_signal s where s.shard_id = p_shard and s.queue_id = v_queue.queue_id;
  delete from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_queue.queue_id;
end
$$;
