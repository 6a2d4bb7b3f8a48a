-- What a claim does when it has granted what it could, now and then: notes that the node lives; moves the low-water marks on (p_moves)
-- past one of the entries that it granted (p_entry); when it granted nothing, looks after what nobody settled, should no one call reap.
-- Locks: the caller holds node_state; claims, ready entries and marks, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.after_claim(p_state hwqueue.node_state, p_queue_ids int[], p_entry hwqueue.ready, p_granted boolean, p_moves boolean, p_drawn bigint,
                                               p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if p_now - p_state.seen_at > p_state.heartbeat_timeout / 8 then
    update hwqueue.node_state s
    set seen_at = p_now, classes_unseen = hwqueue.still_unseen(s.classes_unseen, p_shard),
        moved_xid = case when s.seen_at + s.heartbeat_timeout > p_now then s.moved_xid else pg_current_xact_id() end
    where s.shard_id = p_shard and s.node_id = p_state.node_id;
  end if;
  if not p_granted then
    perform hwqueue.reap_claims(5, p_state.node_id, p_now, p_shard), hwqueue.reap_deadlines(20, p_now, p_shard);
    perform hwqueue.mark_waiting(p_queue_ids, p_now, p_shard);
  elsif p_moves then
    perform hwqueue.move_horizon(p_drawn, p_shard);
    if p_entry.lease_id is not null then
      perform hwqueue.move_low_water(p_entry, p_shard);
    end if;
  end if;
end
$$;
