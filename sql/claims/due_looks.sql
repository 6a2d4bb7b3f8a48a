-- Scheduled leases whose time has come are made ready by reap, by claims that would find nothing otherwise, and by other claims now and
-- then: a session looks for them at most ten times a second, for all that it claims from the same queues in between. That it has looked
-- is noted in a setting of the session, hwqueue.due_look, which costs no row and no statement; who sets it by hand delays what his own
-- claims make ready.

-- What the setting says when the session has looked for these queues in the tenth of a second of p_now.
-- Locks: none. Raises: nothing. Idempotent: yes. A SQL function of one expression: it is put in place of its call.
create or replace function hwqueue.due_look(p_queues text[], p_now timestamptz, p_shard int) returns text
language sql stable
as $$
  select (date_part('epoch', p_now) * 10)::bigint || '/' || p_shard || case when cardinality(p_queues) = 1 then p_queues[1] else p_queues::text end
$$;

-- Makes due leases of queues ready as promote_due does, unless the session has looked for them. Gives how many; null: it has.
-- Locks, raises: as promote_due. Idempotent: yes.
create or replace function hwqueue.look_for_due(p_queues text[], p_queue_ids int[], p_limit int, p_now timestamptz, p_shard int) returns int
language plpgsql volatile
as $$
begin
  if current_setting('hwqueue.due_look', true) = hwqueue.due_look(p_queues, p_now, p_shard) then
    return null;
  end if;
  perform set_config('hwqueue.due_look', hwqueue.due_look(p_queues, p_now, p_shard), false);
  return hwqueue.promote_due(p_queue_ids, p_limit, p_now, p_shard);
end
$$;
