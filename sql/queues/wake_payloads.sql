-- What notifications of new work carry, for who listens. Any login of the database hears them and may send
-- them, so they hold no names: a digest of shard and queue, keyed by the shard's own secret.

-- The payload of a queue.
create or replace function hwqueue.wake_payload(p_key uuid, p_queue text, p_shard int) returns text
language sql stable
as $$
  select left(encode(sha256(convert_to(p_key || ':' || p_shard || ':' || p_queue, 'UTF8')), 'hex'), 32)
$$;

-- The payloads of some queues, each once; a queue need not exist yet. Listeners of channel hwqueue compare
-- with them.
-- Raises: QHA01.
create or replace function hwqueue.wake_payloads(p_queues text[], p_shard int default 0)
returns table (queue text, payload text, shard_id int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.check_shard(p_shard), hwqueue.check_queue_names(p_queues);
  return query
    select distinct q.name, hwqueue.wake_payload(s.wake_key, q.name, p_shard), p_shard
    from unnest(p_queues) q(name)
    cross join hwqueue.shard s
    where s.shard_id = p_shard;
end
$$;
