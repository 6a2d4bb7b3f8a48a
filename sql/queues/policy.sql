-- Queues: their policies, retry delays, waking workers that wait for work, and prices.
--
-- Example: a worker's claim finds nothing and sets waiting_since in queue_signal. The next spawn into
-- the queue finds it set, sends one NOTIFY and clears it. The worker hears the NOTIFY and claims again.
-- The other 2,000 spawns find nothing set and send nothing, because commits that notify wait for each
-- other.
--
-- Spawns call find_spawn_queue, create_queue and set_queue_policy call apply_policy, settlement calls
-- retry_delay. The invariant: a NOTIFY is a hint and never data. Workers also poll.

-- The queue of a name.
-- Raises: QHQ01.
create or replace function hwqueue.find_queue(p_queue text) returns hwqueue.queue
language plpgsql stable
as $$
declare
  v_queue hwqueue.queue;
begin
  select q.* into v_queue from hwqueue.queue q where q.name = p_queue and q.dropped_at is null;
  if not found then
    perform hwqueue.refuse('QHQ01', format('queue %s does not exist',
        coalesce(to_json(left(p_queue, 100))::text, 'null')), jsonb_build_object('queue', left(p_queue, 100)),
      'create it first: select hwqueue.create_queue(p_queue => ''...''), or hwqueue queue create');
  end if;
  return v_queue;
end
$$;

-- The name of a queue, dropped or not.
create or replace function hwqueue.queue_name(p_queue_id int) returns text
language plpgsql stable
as $$ begin return (select q.name from hwqueue.queue q where q.queue_id = p_queue_id); end $$;

-- The same for a spawn, with the defaults of its task (p_task null: of none). One statement reads both,
-- so that a spawn of a task without defaults pays no more than the lookup. It takes a transaction id
-- before it reads, so that a dropped queue is not deleted while the spawn uses it.
-- Locks: above read committed the queue, for key share.
-- Raises: QHQ01; above read committed also 40001.
create or replace function hwqueue.find_spawn_queue(p_queue text, p_task text) returns hwqueue.spawn_target
language plpgsql volatile
as $$
declare
  v_target hwqueue.spawn_target;
begin
  perform pg_current_xact_id();
  select q, (select t.defaults from hwqueue.task t where t.name = p_task)
  into v_target
  from hwqueue.queue q where q.name = p_queue and q.dropped_at is null;
  if not found then
    v_target.queue := hwqueue.find_queue(p_queue);
  end if;
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    -- an older MVCC snapshot may show a queue that is dropped by now: lock it, or fail with 40001 as such
    -- transactions do
    perform 1 from hwqueue.queue q where q.queue_id = (v_target.queue).queue_id for key share;
  end if;
  return v_target;
end
$$;

-- A queue's policy as JSON, in the form that create_queue and set_queue_policy take; spans in seconds.
-- What is compared and shown depends on no setting of the session, here and where extra_float_digits is set.
create or replace function hwqueue.queue_policy(p_queue hwqueue.queue) returns jsonb
language plpgsql stable set extra_float_digits = 1
as $$ begin return (
  select hwqueue.read_object(jsonb_object_agg(k.key, r.row -> k.key), 'policy', 'policy')
  from (select to_jsonb(p_queue) as row offset 0) r
  cross join lateral jsonb_object_keys(hwqueue.known_keys('policy')) k(key)
); end $$;

-- The row that a policy asks for; keys that are not given keep the value of p_base, within tuning, too.
-- Raises: QHA01.
create or replace function hwqueue.apply_policy(p_base hwqueue.queue, p_policy jsonb) returns hwqueue.queue
language sql stable
as $$ select jsonb_populate_record(p_base, hwqueue.read_object(p_policy, 'policy', 'policy')) $$;

-- The policy of a queue that asks for nothing special.
create or replace function hwqueue.default_policy() returns hwqueue.queue
language sql stable
as $$
  select jsonb_populate_record(null::hwqueue.queue,
    '{"has_prices": false, "has_lanes": false}' || hwqueue.default_values('policy'))
$$;

-- How long to wait before the attempt after p_attempt (1, 2, ...): base x factor^(attempt - 1), at most
-- max, less a random part of up to jitter; null when the policy is none.
create or replace function hwqueue.retry_delay(p_retry jsonb, p_attempt int) returns interval
language sql volatile
as $$
  select case when p_retry ->> 'kind' <> 'none' then make_interval(secs =>
    least(
      (p_retry ->> 'base')::double precision * case when p_retry ->> 'kind' = 'fixed' then 1
        else power((p_retry ->> 'factor')::double precision, least(p_attempt - 1, 60)) end,
      (p_retry ->> 'max')::double precision)
    * (1 - random() * (p_retry ->> 'jitter')::double precision)) end
$$;

-- Notifies waiting workers if an empty claim has set waiting_since, and clears it. Most spawns find it
-- clear and send nothing, because commits that notify wait for each other.
-- Locks: the queue_signal row, skip locked: another session that holds it is clearing it. Notifies:
-- listeners of hwqueue.
create or replace function hwqueue.wake_workers(p_queue hwqueue.queue) returns void
language plpgsql volatile
as $$
begin
  if not (p_queue.tuning).notify then
    return;
  end if;
  perform 1 from hwqueue.queue_signal s where s.queue_id = p_queue.queue_id and s.waiting_since is not null;
  if not found then
    return;
  end if;
  -- a hint, never data
  perform pg_notify('hwqueue', hwqueue.wake_payload(s.wake_key, p_queue.name)) from hwqueue.installation s;
  perform 1 from hwqueue.queue_signal s where s.queue_id = p_queue.queue_id for update skip locked;
  if found then
    update hwqueue.queue_signal s set waiting_since = null where s.queue_id = p_queue.queue_id;
  end if;
end
$$;

-- Sets waiting_since for a claim that found nothing. Written only where it is clear, and skipped while
-- another session is writing it.
-- Locks: queue_signal rows, skip locked.
create or replace function hwqueue.flag_waiting(p_queue_ids int[], p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_ids int[];
begin
  v_ids := array(
    select s.queue_id from hwqueue.queue_signal s
    where s.queue_id = any (p_queue_ids) and s.waiting_since is null
    for update skip locked);
  if v_ids <> '{}' then
    update hwqueue.queue_signal s set waiting_since = p_now where s.queue_id = any (v_ids);
  end if;
end
$$;

-- Prices: what room on a device is worth, as a planner computed it from all that waits.
--
-- Example: half of what waits asks for 810 thousandths of a device, and hardly anything for 190. A
-- device with 190 left is worth nothing then, one with 550 left about half a device. A claim that would
-- leave 190 of 1000 is scored lower than one that leaves 530 for a lease of 530.
--
-- set_prices (api/planner) writes them, fit_score is handed the curve. The invariant: prices change the
-- order of classes that fit, and nothing else. Past worth_until the score is what it is without prices.
--
-- The newest row of queue_price counts, as of node_load: under an old MVCC snapshot a row that is updated
-- every second would have thousands of versions that each claim reads. For the same reason queue has only
-- has_prices: a claim of a queue without prices reads nothing more.

-- Returns the curves of all queues that have prices which are valid now: what a device with 0, 10, 20, ...
-- 1000 thousandths left is worth, in devices.
-- Inlined.
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
