-- Notifies waiting workers if an empty claim left its mark, and clears the mark. Most spawns find no mark and send
-- nothing: commits that notify wait for each other.
-- Locks: queue_signal row, skip locked (somebody else is clearing it). Wakes: listeners of hwqueue.
create or replace function hwqueue.wake_workers(p_queue hwqueue.queue, p_shard int) returns void
language plpgsql volatile
as $$
begin
  if not p_queue.notify then
    return;
  end if;
  perform 1 from hwqueue.queue_signal s
  where s.shard_id = p_shard and s.queue_id = p_queue.queue_id and s.waiting_since is not null;
  if not found then
    return;
  end if;
  -- a hint, never data
  perform pg_notify('hwqueue', hwqueue.wake_payload(s.wake_key, p_queue.name, p_shard))
  from hwqueue.shard s where s.shard_id = p_shard;
  perform 1 from hwqueue.queue_signal s
  where s.shard_id = p_shard and s.queue_id = p_queue.queue_id for update skip locked;
  if found then
    update hwqueue.queue_signal s set waiting_since = null
    where s.shard_id = p_shard and s.queue_id = p_queue.queue_id;
  end if;
end
$$;

-- The mark that an empty claim leaves; written only where there is none, and not while another is writing.
-- Locks: queue_signal row, skip locked.
create or replace function hwqueue.mark_waiting(p_queue_ids int[], p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_ids int[];
begin
  v_ids := array(
    select s.queue_id from hwqueue.queue_signal s
    where s.shard_id = p_shard and s.queue_id = any (p_queue_ids) and s.waiting_since is null
    for update skip locked);
  if v_ids <> '{}' then
    update hwqueue.queue_signal s set waiting_since = p_now where s.shard_id = p_shard and s.queue_id = any (v_ids);
  end if;
end
$$;
