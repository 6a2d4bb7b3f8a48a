-- The ids of the queues of these names that are not paused, each once.
-- Locks: none. Raises: QHQ01 for a name that does not exist. Idempotent: yes.
create or replace function hwqueue.open_queues(p_queues text[], p_shard int) returns int[]
language plpgsql stable
as $$
declare
  v_open int[] := array(select q.queue_id from hwqueue.queue q
                        where q.shard_id = p_shard and q.name = any (p_queues) and q.dropped_at is null and q.paused_at is null);
begin
  if cardinality(v_open) < cardinality(p_queues) then
    -- paused, named twice, or unknown
    for i in 1 .. cardinality(p_queues) loop
      perform hwqueue.find_queue(p_queues[i], p_shard);
    end loop;
  end if;
  return v_open;
end
$$;

-- Checks a list of queue names; true, so that it can stand in an expression.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_queue_names(p_queues text[]) returns boolean
language plpgsql immutable
as $$
begin
  if array_ndims(p_queues) is distinct from 1 or cardinality(p_queues) > 1000 or array_position(p_queues, null) is not null then
    perform hwqueue.refuse('QHA01', 'p_queues must name 1 to 1000 queues', jsonb_build_object('field', 'p_queues'),
      'for example array[''default'']');
  end if;
  return true;
end
$$;

-- Checks what a claim is called with, and where; true, so that it can stand in an expression.
-- Locks: none. Raises: QHA01, QHA02. Idempotent: yes.
create or replace function hwqueue.check_claim(p_queues text[], p_qty int, p_claim_timeout interval) returns boolean
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if p_qty is null or p_qty not between 1 and 1000 then
    perform hwqueue.refuse('QHA01', format('p_qty must be from 1 to 1000, got %s', coalesce(p_qty::text, 'null')),
      jsonb_build_object('field', 'p_qty'), 'claim in batches of at most 1000');
  end if;
  if p_claim_timeout < interval '1 second' or p_claim_timeout > interval '30 days' or not isfinite(p_claim_timeout) then
    perform hwqueue.refuse('QHA01', format('p_claim_timeout must be from one second to 30 days, got %s', p_claim_timeout),
      jsonb_build_object('field', 'p_claim_timeout'), 'leave it out to use the queue''s');
  end if;
  return cardinality(p_queues) = 1 and p_queues[1] is not null and array_ndims(p_queues) = 1 or hwqueue.check_queue_names(p_queues);
end
$$;
