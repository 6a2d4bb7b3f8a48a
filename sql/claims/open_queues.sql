-- The queues of these names that are not paused, each once.
-- Locks: none. Raises: QHQ01 for a name that does not exist. Idempotent: yes.
create or replace function hwqueue.open_queues(p_queues text[], p_shard int) returns hwqueue.queue[]
language plpgsql stable
as $$
declare
  v_queues hwqueue.queue[];
  v_name text;
begin
  v_queues := array(select q from hwqueue.queue q where q.shard_id = p_shard and q.name = any (p_queues) and q.dropped_at is null order by q.queue_id);
  if cardinality(v_queues) < cardinality(p_queues) then
    foreach v_name in array p_queues loop
      perform hwqueue.find_queue(v_name, p_shard);
    end loop;
  end if;
  return array(select q from unnest(v_queues) q where q.paused_at is null);
end
$$;

-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_claim_arguments(p_queues text[], p_qty int, p_claim_timeout interval) returns void
language plpgsql immutable
as $$
begin
  if array_ndims(p_queues) is distinct from 1 or cardinality(p_queues) > 1000 or array_position(p_queues, null) is not null then
    perform hwqueue.refuse('QHA01', 'p_queues must name 1 to 1000 queues', jsonb_build_object('field', 'p_queues'),
      'for example array[''default'']');
  end if;
  if p_qty is null or p_qty not between 1 and 1000 then
    perform hwqueue.refuse('QHA01', format('p_qty must be from 1 to 1000, got %s', coalesce(p_qty::text, 'null')),
      jsonb_build_object('field', 'p_qty'), 'claim in batches of at most 1000');
  end if;
  if p_claim_timeout < interval '1 second' or p_claim_timeout > interval '3650 days' or not isfinite(p_claim_timeout) then
    perform hwqueue.refuse('QHA01', format('p_claim_timeout must be from one second to ten years, got %s', p_claim_timeout),
      jsonb_build_object('field', 'p_claim_timeout'), 'leave it out to use the queue''s');
  end if;
end
$$;
