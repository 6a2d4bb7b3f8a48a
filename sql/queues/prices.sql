-- Prices: what room on a device is worth, as a planner computed it from all that waits.
--
-- Example: half of what waits asks for 810 thousandths of a device, and hardly anything for 190. A
-- device with 190 left is worth nothing then, one with 550 left about half a device. A claim that would
-- leave 190 of 1000 is scored lower than one that leaves 530 for a lease of 530.
--
-- set_prices (api/planner) calls checked_worth. Claims and match_nodes call queue_worth
-- and hand the curve to fit_score. The invariant: prices change the order of classes that fit, and
-- nothing else. Past worth_until the score is what it is without prices.
--
-- The newest row of queue_price counts, as of node_load: under an old MVCC snapshot a row that is updated
-- every second would have thousands of versions that each claim reads. For the same reason queue has only
-- has_prices: a claim of a queue without prices reads nothing more.

-- Returns the curve of a queue: what a device with 0, 10, 20, ... 1000 thousandths left is worth, in
-- devices. Null without prices that are valid now.
create or replace function hwqueue.queue_worth(p_queue hwqueue.queue, p_now timestamptz)
returns double precision[]
language plpgsql stable
as $$
begin
  if not p_queue.has_prices then
    return null;
  end if;
  return (
    select case when p.worth_until > p_now then p.device_worth end
    from hwqueue.queue_price p
    where p.queue_id = p_queue.queue_id
    order by p.epoch desc, p.round desc limit 1);
end
$$;

-- Returns the curves of all queues that have prices which are valid now.
create or replace function hwqueue.valid_prices(p_now timestamptz)
returns table (queue text, device_worth double precision[], worth_until timestamptz)
language sql stable
as $$
  select q.name, p.device_worth, p.worth_until
  from hwqueue.queue q
  cross join lateral (
    select x.device_worth, x.worth_until from hwqueue.queue_price x
    where x.queue_id = q.queue_id
    order by x.epoch desc, x.round desc limit 1) p
  where q.has_prices and q.dropped_at is null and p.worth_until > p_now
  order by q.name
$$;

-- Reads the curve of set_prices: 101 numbers from 0 to 1 that never fall.
-- Raises: QHA01.
create or replace function hwqueue.checked_worth(p_prices jsonb) returns double precision[]
language plpgsql immutable
as $$
declare
  v_field constant text := 'prices.device_worth';
  v_worth double precision[];
begin
  perform hwqueue.check_object(p_prices, array['device_worth'], 'prices');
  if (case when jsonb_typeof(p_prices -> 'device_worth') = 'array'
           then jsonb_array_length(p_prices -> 'device_worth') end) is distinct from 101 then
    perform hwqueue.refuse('QHA01', format('%s must be a list of 101 numbers', v_field),
      jsonb_build_object('field', v_field),
      'give what a device with 0, 10, 20, ... 1000 thousandths left is worth');
  end if;
  v_worth := array(
    select hwqueue.json_number(case when jsonb_typeof(e.value) = 'null' then '""' else e.value end, format(
        '%s[%s]', v_field, e.ordinality - 1), 0, 1)::double precision
    from jsonb_array_elements(p_prices -> 'device_worth') with ordinality e order by e.ordinality);
  for i in 2 .. 101 loop
    if v_worth[i] < v_worth[i - 1] then
      perform hwqueue.refuse('QHA01',
        format('%s must not fall, but [%s] is below [%s]', v_field, i - 1, i - 2),
        jsonb_build_object('field', v_field), 'more room on a device is never worth less');
    end if;
  end loop;
  return v_worth;
end
$$;
