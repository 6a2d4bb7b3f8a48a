-- Grants up to p_qty leases of these queues to a node whose state the caller has locked: the shared heart of claim_task
-- and settle_and_claim.
-- Locks: scheduled entries that are due, ready entries, after an empty claim expired claims: all skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.claim_leases(p_state hwqueue.node_state, p_queues hwqueue.queue[], p_qty int, p_tasks text[],
                                                p_claim_timeout interval, p_now timestamptz, p_shard int)
returns table (lease_id uuid, score double precision)
language plpgsql volatile
as $$
declare
  v_node hwqueue.node := hwqueue.read_node(p_state.node_id, p_shard);
  v_state hwqueue.node_state := p_state;
  v_queue_ids int[] := array(select q.queue_id from unnest(p_queues) q);
  v_counted boolean := v_node.slots is not null or v_node.cpu_milli is not null or v_node.memory_mib is not null
                       or v_node.gpu_ids <> '{}' or v_node.custom <> '{}';
  v_generation bigint := hwqueue.current_generation(p_shard);
  v_judged record;
  v_batches int := 1;
  v_pick record;
  v_grant record;
  v_granted int := 0;
  v_missed boolean;
  v_seen int;
  v_depth int := 1;
  v_spare int := 8;  -- candidates beyond those wanted: the first may be taken by others
begin
  if v_node.cordoned_at is null then
    perform hwqueue.promote_due(v_queue_ids, p_qty + 20, p_now, p_shard);
    select j.* into v_judged from hwqueue.judge_classes(v_node, p_state, p_shard) j;
    loop
      v_seen := 0;
      for v_pick in
        select * from hwqueue.claim_candidates(v_node, hwqueue.node_headroom(v_node, v_state), p_queues, p_tasks, v_judged.extra,
          p_qty - v_granted + v_spare, v_depth * case when v_counted then 1 else p_qty - v_granted end, p_now, p_shard)
      loop
        v_seen := v_seen + 1;
        select g.* into v_grant
        from hwqueue.grant_lease(v_pick.entry, v_pick.is_head, v_node,
          coalesce(p_claim_timeout, (select q.claim_timeout from unnest(p_queues) q where q.queue_id = (v_pick.entry).queue_id)),
          v_generation, p_now, p_shard, v_state) g;
        v_state := v_grant.p_state;
        v_missed := (v_grant.granted).lease_id is null;
        if v_missed then
          -- what comes next in this class may not be in the list: look deeper before taking anything lesser
          exit when v_pick.is_head and v_depth < 512;
          continue;
        end if;
        v_granted := v_granted + 1;
        lease_id := (v_grant.granted).lease_id;
        score := v_pick.score;
        return next;
        -- what fits, and how well, has changed: look again
        exit when v_granted = p_qty or (v_grant.granted).assignment is not null;
      end loop;
      if v_granted = 0 and v_seen = 0 and v_judged.more and v_batches < 8 then
        -- a node of a new kind has not seen all classes yet: what it may run may be further on
        select j.* into v_judged from hwqueue.judge_classes(v_node, p_state, p_shard) j;
        v_batches := v_batches + 1;
        continue;
      end if;
      exit when v_granted = p_qty or v_seen = 0 or (v_missed and v_depth >= 512) or not (v_missed or v_counted);
      -- candidates were taken by others: deeper; else start anew at the front
      v_spare := case when v_missed then v_spare * 8 else 8 end;
      v_depth := case when v_missed then v_depth * 8 else 1 end;
    end loop;
  end if;
  if v_state is distinct from p_state or p_now - p_state.seen_at > v_node.heartbeat_timeout / 8 then
    update hwqueue.node_state s
    set seen_at = p_now, claim_count = v_state.claim_count, cpu_used = v_state.cpu_used, memory_used = v_state.memory_used,
        gpu_used = v_state.gpu_used, custom_used = v_state.custom_used
    where s.shard_id = p_shard and s.node_id = p_state.node_id;
  end if;
  if v_granted = 0 then
    -- nothing to do: the time to look after what nobody settled, should no one call reap
    perform hwqueue.reap_claims(5, p_state.node_id, p_now, p_shard), hwqueue.reap_deadlines(20, p_now, p_shard);
    perform hwqueue.mark_waiting(v_queue_ids, p_now, p_shard);
  end if;
end
$$;
