-- Webhooks: from events to deliveries, which deliveries are due, and how they are signed.
--
-- api/webhooks calls all of this; no spawn, claim or settlement does. An example: an operator pauses a
-- queue, which writes an event. route_webhooks finds it after the webhook's cursor, writes a delivery and
-- moves the cursor on, in one transaction. claim_deliveries hands the delivery out with its signature,
-- and settle_delivery records the answer.
--
-- Invariants: an event gets exactly one delivery for each webhook whose filter it passes, however late
-- its transaction commits. Cursors pass only what is final: events below the oldest open transaction, as
-- list_events, and completions that roll_up has counted (lease_completed: outcomes are read, there is no
-- event). A delivery stays until an answer is recorded, so it is sent at least once. No secret leaves the
-- database but in what set_webhook and rotate_webhook return.

-- Returns a webhook, with p_locks locked. Every function about one webhook begins with it.
-- Locks: the webhook's row, if it is to. Raises: QHH01, QHA03.
create or replace function hwqueue.find_webhook(p_name text, p_locks boolean default true)
returns hwqueue.webhook
language plpgsql volatile
as $$
declare
  v_webhook hwqueue.webhook;
begin
  perform hwqueue.require_all_tenants();
  if p_locks then  -- a statement of its own: lists are read in read-only transactions
    perform 1 from hwqueue.webhook w where w.name = p_name for no key update;
  end if;
  select w.* into v_webhook from hwqueue.webhook w where w.name = p_name;
  if not found then
    perform hwqueue.refuse('QHH01', format('no webhook is named %s',
        coalesce(to_json(left(p_name, 100))::text, 'null')),
      jsonb_build_object('field', 'p_name'), 'list them: hwqueue webhook list');
  end if;
  return v_webhook;
end
$$;

-- Marks a webhook as paused, and writes the event.
-- Locks: the caller holds the webhook's row. Not idempotent.
create or replace function hwqueue.stop_webhook(p_webhook hwqueue.webhook, p_reason text) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.webhook w set paused_at = hwqueue.clock(), paused_reason = p_reason
  where w.name = p_webhook.name;
  perform hwqueue.note_event('webhook_paused', format('webhook %s', p_webhook.name),
    jsonb_build_object('webhook', p_webhook.name, 'reason', p_reason));
end
$$;

-- Returns a new key of 32 random bytes.
create or replace function hwqueue.new_webhook_secret() returns bytea
language sql volatile
as $$ select sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
  || uuid_send(gen_random_uuid())) $$;

-- Returns a key as receivers are given it.
create or replace function hwqueue.shown_secret(p_secret bytea) returns text
language sql immutable
as $$ select 'whsec_' || encode(p_secret, 'base64') $$;

-- HMAC with SHA-256 (RFC 2104) of a message, under a key of at most 64 bytes.
-- Here rather than in the process that sends, so that this process never holds a secret.
create or replace function hwqueue.hmac_sha256(p_key bytea, p_message bytea) returns bytea
language plpgsql immutable
as $$
declare
  v_inner bytea := p_key || decode(repeat('00', 64 - octet_length(p_key)), 'hex');
  v_outer bytea := v_inner;
begin
  for v_byte in 0..63 loop
    v_outer := set_byte(v_outer, v_byte, get_byte(v_inner, v_byte) # 92);
    v_inner := set_byte(v_inner, v_byte, get_byte(v_inner, v_byte) # 54);
  end loop;
  return sha256(v_outer || sha256(v_inner || p_message));
end
$$;

-- Returns the JSON text that a receiver gets. What is longer than 64 KiB loses its detail.
create or replace function hwqueue.webhook_body(p_code text, p_at timestamptz, p_data jsonb) returns text
language plpgsql stable
as $$ begin return (
  select case when octet_length(b.body::text) <= 65536 then b.body::text
    else jsonb_set(b.body, '{data}', (b.body -> 'data') || '{"detail": null, "truncated": true}')::text end
  from jsonb_build_object('type', p_code, 'data', p_data,
    'timestamp', to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) b(body)
); end $$;

-- Routes the events and completions that are new to the enabled webhooks, up to p_limit of each for each
-- webhook, and moves their cursors on. Returns how many deliveries it wrote.
-- A webhook with 10,000 deliveries that wait gets no more: its events wait in their table instead. Whose an
-- event is, its lease or class says. A webhook for one tenant, or with labels, gets nothing of a lease that
-- is gone. A lease that is younger than the event has the id of one that is gone.
-- Locks: webhook rows, skip locked. What another session routes now is left to it.
create or replace function hwqueue.route_webhooks(p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_webhook hwqueue.webhook;
  v_routed int := 0;
  v_from timestamptz := hwqueue.deliveries_from();
  v_below bigint;
  v_found hwqueue.event[];
  v_count int;
begin
  for v_webhook in
    select w.* from hwqueue.webhook w where w.paused_at is null
    order by w.name for no key update skip locked
  loop
    continue when (
      select count(*) from (
        select from hwqueue.webhook_delivery d
        where d.webhook_id = v_webhook.webhook_id and d.state = 'waiting' and d.available_at >= v_from
        order by d.available_at limit 10000) d) = 10000;
    -- in an earlier statement than the events are read in: whatever can still come lies above
    v_below := hwqueue.final_below();
    perform 1 from hwqueue.event e
    where e.event_id > v_webhook.event_cursor and e.event_id < v_below
    order by e.event_id limit 1;
    if found then
      v_found := array(
        select e
        from unnest(coalesce(v_webhook.codes, array[null::text])) c(code)
        cross join lateral hwqueue.event_page(v_webhook.event_cursor, v_below, c.code, null, null, null,
          p_limit) e
        order by e.event_id limit p_limit);
      insert into hwqueue.webhook_delivery (delivery_id, webhook_id, code, event_id, lease_id, body,
        state, created_at, available_at)
      select hwqueue.new_id(), v_webhook.webhook_id, e.code, e.event_id, e.lease_id,
        hwqueue.webhook_body(e.code, e.at, jsonb_build_object('event_id', e.event_id::text,
          'lease_id', e.lease_id, 'node_id', e.node_id, 'queue', e.queue, 'class_id', e.class_id,
          'task', coalesce(l.task_name, c.task_name), 'tenant', c.tenant,
          'labels', coalesce(l.labels, jsonb_strip_nulls(c.labels)), 'actor', e.actor,
          'message', e.message, 'detail', e.detail)),
        'waiting', e.at, hwqueue.clock()
      from unnest(v_found) e
      left join hwqueue.lease l on l.lease_id = e.lease_id and l.created_at <= e.at
      left join hwqueue.placement_class c on c.class_id = coalesce(l.class_id, e.class_id)
      where (v_webhook.queues is null or e.queue = any (v_webhook.queues))
        and (v_webhook.tenant is null or c.tenant = v_webhook.tenant)
        and (v_webhook.labels is null or coalesce(l.labels, c.labels) @> v_webhook.labels)
      order by e.event_id;
      get diagnostics v_count = row_count;
      v_routed := v_routed + v_count;
      update hwqueue.webhook w
      set event_cursor = case when cardinality(v_found) = p_limit then v_found[p_limit].event_id
        else v_below - 1 end
      where w.name = v_webhook.name;
    end if;
    if 'lease_completed' = any (v_webhook.codes) then
      v_routed := v_routed + hwqueue.route_completions(v_webhook, p_limit);
    end if;
  end loop;
  return v_routed;
end
$$;

-- Writes deliveries of up to p_limit completions of a webhook's queues after its cursor, moves the cursor
-- on, and returns the number of deliveries.
-- A completion writes no event. What roll_up has counted is final, so nothing can end before that moment
-- any more, unless the clock was set back (clock_step): then it goes on from there, with what had not been
-- counted, one step a call. A lease that does not stay when it completes has left no row that says whose it
-- was.
-- Locks: the caller holds the webhook's row.
create or replace function hwqueue.route_completions(p_webhook hwqueue.webhook, p_limit int) returns int
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_cursor hwqueue.reap_cursor;
  v_steps hwqueue.clock_step[];
  v_step hwqueue.clock_step;
  v_until timestamptz;
  v_found hwqueue.outcome[];
  v_routed int;
begin
  select m.* into v_cursor from hwqueue.reap_cursor m order by m.version desc limit 1;
  v_steps := array(
    select s from unnest(v_cursor.clock_steps) s
    where s.step_no <= p_webhook.clock_step and s.counted_to > p_webhook.completed_at);
  select s.* into v_step from unnest(v_cursor.clock_steps) s
  where s.step_no > p_webhook.clock_step order by s.step_no limit 1;
  v_until := coalesce(v_step.counted_to, v_cursor.counted_to);
  if v_step.step_no is null and (v_until > p_webhook.completed_at) is not true then
    return 0;
  end if;
  v_found := array(
    select o
    from hwqueue.queue q
    cross join lateral (
      select x.* from hwqueue.outcome x
      where x.queue_id = q.queue_id and x.state = 'completed'
        and x.finished_at >= p_webhook.completed_at and x.finished_at < v_until
        and (x.finished_at, x.lease_id) > (p_webhook.completed_at, p_webhook.completed_lease)
        and hwqueue.is_new(x.finished_at, x.xmin, v_steps)
        and (v_step.step_no is null or hwqueue.is_counted(array[v_step], x.finished_at, x.xmin))
      order by x.finished_at, x.lease_id limit p_limit) o
    where (p_webhook.queues is null or q.name = any (p_webhook.queues))
    order by o.finished_at, o.lease_id limit p_limit);
  insert into hwqueue.webhook_delivery (delivery_id, webhook_id, code, lease_id, body, state,
    created_at, available_at)
  select hwqueue.new_id(), p_webhook.webhook_id, 'lease_completed', o.lease_id,
    hwqueue.webhook_body('lease_completed', o.finished_at, jsonb_build_object(
      'lease_id', o.lease_id, 'node_id', o.node_id, 'queue', q.name, 'class_id', l.class_id,
      'task', l.task_name, 'tenant', c.tenant,
      'labels', coalesce(l.labels, c.labels), 'attempt', o.attempt)),
    'waiting', o.finished_at, hwqueue.clock()
  from unnest(v_found) o
  join hwqueue.lease l on l.lease_id = o.lease_id
  join hwqueue.queue q on q.queue_id = o.queue_id
  join hwqueue.placement_class c on c.class_id = l.class_id
  where (p_webhook.tenant is null or c.tenant = p_webhook.tenant)
    and (p_webhook.labels is null or coalesce(l.labels, c.labels) @> p_webhook.labels)
  order by o.finished_at, o.lease_id;
  get diagnostics v_routed = row_count;
  update hwqueue.webhook w
  set completed_at = case when cardinality(v_found) = p_limit then v_found[p_limit].finished_at
      else coalesce(v_step.goes_on_at, v_until) end,
    clock_step = case when cardinality(v_found) = p_limit then w.clock_step
      else coalesce(v_step.step_no, w.clock_step) end,
    completed_lease = case when cardinality(v_found) = p_limit then v_found[p_limit].lease_id
      else '00000000-0000-0000-0000-000000000000' end
  where w.name = p_webhook.name;
  return v_routed;
end
$$;

-- Returns the moment before which no delivery waits to be sent, and none can come: calls that write one read
-- the clock after they have locked its webhook.
create or replace function hwqueue.deliveries_from() returns timestamptz
language plpgsql stable
as $$ begin return
  coalesce((
    select m.deliveries_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity');
end $$;

-- Returns when the oldest of what a webhook has not been told of yet happened; null: nothing.
create or replace function hwqueue.oldest_undelivered(p_webhook hwqueue.webhook) returns timestamptz
language plpgsql volatile
as $$ begin return
  least(
    (select min(d.created_at) from hwqueue.webhook_delivery d
     where d.webhook_id = p_webhook.webhook_id and d.state = 'waiting'),
    (select e.at from hwqueue.event e where e.event_id > p_webhook.event_cursor order by e.event_id limit 1));
end $$;
