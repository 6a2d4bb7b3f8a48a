-- Public: webhooks, and what is sent to them.
--
-- Admins set and drop webhooks and get their secrets, once. Operators list, pause, test and redeliver.
-- hwqueue webhook run, as a login with hwqueue_operator, calls claim_deliveries and settle_delivery: it gets
-- bodies with their signatures and never a secret, so it can sign nothing else.

-- Creates a webhook and returns its secret; or replaces the address and the filter of one that is there
-- and returns null. The secret is shown this once: rotate_webhook makes another one.
--
-- p_url: https://..., or http://..., which is refused when it is sent unless the process that sends permits
-- it. p_options, each null or left out: any. codes: of events, or lease_completed, which only those get
-- that name it. queues: names. tenant: the only one; then what is no tenant's is not sent. labels: that
-- the lease must have.
--
-- A new webhook is told of what transactions write that began after it was created.
-- Locks: the webhook's row. Raises: QHA01, QHA03.
create or replace function hwqueue.set_webhook(p_name text, p_url text, p_options jsonb default '{}')
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_new hwqueue.webhook;
  v_is_new boolean;
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_name, 'p_name');
  if strpos(p_name, '/') > 0 then
    perform hwqueue.refuse_field('QHA01', 'p_name', 'has a slash',
      'names of webhooks are parts of paths of the HTTP API: leave out slashes');
  end if;
  if (length(p_url) <= 2000 and p_url ~ '^https?://[][A-Za-z0-9._:-]+([/?][!"$-~]*)?$') is not true then
    perform hwqueue.refuse_field('QHA01', 'p_url', 'must be an http or https URL of at most 2000 characters',
      'for example https://hooks.example/hwqueue; without user, password and fragment');
  end if;
  perform hwqueue.check_object(p_options, array['codes', 'queues', 'tenant', 'labels'], 'options');
  v_new.codes := hwqueue.json_names(p_options -> 'codes', 'options.codes', 100);
  v_new.queues := hwqueue.json_names(p_options -> 'queues', 'options.queues', 100);
  v_new.tenant := hwqueue.json_text(p_options -> 'tenant', 'options.tenant', 100);
  v_new.labels := nullif(hwqueue.check_labels(p_options -> 'labels', 'options.labels'), '{}');
  if v_new.codes = '{}' or cardinality(v_new.codes) > 100 or v_new.queues = '{}' then
    perform hwqueue.refuse('QHA01',
      'options.codes must name 1 to 100 codes, and options.queues at least one queue',
      jsonb_build_object('field', 'options'), 'leave a list out for any');
  end if;
  v_new.secret := hwqueue.new_webhook_secret();
  insert into hwqueue.webhook as w (name, webhook_id, url, codes, queues, tenant, labels, secret,
    event_cursor, clock_step, completed_at, completed_lease, created_at, created_by, created_login)
  select p_name, hwqueue.new_id(), p_url, v_new.codes, v_new.queues, v_new.tenant, v_new.labels,
    v_new.secret, i.event_base + (pg_current_xact_id()::text::bigint << 20) - 1,
    (select max(c.version) from hwqueue.reap_cursor c),  -- it has passed the steps of the clock so far
    v_now, '00000000-0000-0000-0000-000000000000', v_now, hwqueue.current_actor(), session_user
  from hwqueue.installation i
  on conflict (name) do update
  set url = excluded.url, codes = excluded.codes, queues = excluded.queues, tenant = excluded.tenant,
    labels = excluded.labels, completed_at = case when 'lease_completed' = any (w.codes) then w.completed_at
      else excluded.completed_at end,
    clock_step = case when 'lease_completed' = any (w.codes) then w.clock_step else excluded.clock_step end
  where (w.url, w.codes, w.queues, w.tenant, w.labels)
    is distinct from (excluded.url, excluded.codes, excluded.queues, excluded.tenant, excluded.labels)
  returning w.secret = v_new.secret into v_is_new;
  if found then
    perform hwqueue.note_event('webhook_set', format('webhook %s is %s', p_name, case when v_is_new
      then 'new' else 'changed' end), jsonb_build_object('webhook', p_name) || p_options);
  end if;
  return case when v_is_new then hwqueue.shown_secret(v_new.secret) end;
end
$$;

-- Returns the webhooks by name, without their secrets: secret_prefix tells one from another. waiting, dead:
-- deliveries that are to be sent, and attempts given up on since the webhook was made. oldest_at: when the
-- first thing happened that the webhook has not been told of; null: it knows all.
-- Raises: QHA03.
create or replace function hwqueue.list_webhooks()
returns table (name text, url text, codes text[], queues text[], tenant text, labels jsonb,
  secret_prefix text, old_secret_until timestamptz, created_at timestamptz, created_by text,
  created_login text, paused_at timestamptz, paused_reason text, delivered_at timestamptz,
  failing_since timestamptz, delivered bigint, failed bigint, dead bigint, waiting bigint,
  oldest_at timestamptz)
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select w.name, w.url, w.codes, w.queues, w.tenant, w.labels, left(hwqueue.shown_secret(w.secret), 10),
    case when w.old_secret_until > hwqueue.clock() then w.old_secret_until end, w.created_at, w.created_by,
    w.created_login, w.paused_at, w.paused_reason, w.delivered_at, w.failing_since, w.delivered, w.failed,
    w.dead, (
      select count(*) from hwqueue.webhook_delivery d
      where d.webhook_id = w.webhook_id and d.state = 'waiting'), hwqueue.oldest_undelivered(w)
  from hwqueue.webhook w
  order by w.name
$$;

-- Drops a webhook and returns whether it was there. What it has not been sent is not sent any more; what
-- was sent stays in the table until prune deletes it, and no function shows it.
-- Locks: the webhook's row, then its waiting deliveries. Raises: QHA03. Idempotent.
create or replace function hwqueue.drop_webhook(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook uuid;
begin
  perform hwqueue.require_all_tenants();
  delete from hwqueue.webhook w where w.name = p_name returning w.webhook_id into v_webhook;
  if v_webhook is null then
    return false;
  end if;
  update hwqueue.webhook_delivery d
  set state = 'dead', finished_at = hwqueue.clock(), claimed_until = null
  where d.webhook_id = v_webhook and d.state = 'waiting';
  perform hwqueue.note_event('webhook_dropped', format('webhook %s', p_name),
    jsonb_build_object('webhook', p_name));
  return true;
end
$$;

-- Pauses a webhook and returns true; false if it was paused. Nothing is sent, and its cursor stays: after
-- resume_webhook it is told of what happened meanwhile, as far as events are kept.
-- Locks: the webhook's row. Raises: QHH01, QHA03.
create or replace function hwqueue.pause_webhook(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook hwqueue.webhook := hwqueue.find_webhook(p_name);
begin
  perform hwqueue.stop_webhook(v_webhook, 'asked') where v_webhook.paused_at is null;
  return v_webhook.paused_at is null;
end
$$;

-- Resumes a webhook and returns true; false if it was not paused.
-- Locks: the webhook's row. Raises: QHH01, QHA03.
create or replace function hwqueue.resume_webhook(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.find_webhook(p_name);
  update hwqueue.webhook w set paused_at = null, paused_reason = null, failing_since = null
  where w.name = p_name and w.paused_at is not null;
  perform hwqueue.note_event('webhook_resumed', format('webhook %s', p_name),
    jsonb_build_object('webhook', p_name)) where found;
  return found;
end
$$;

-- Replaces the secret of a webhook and returns the new one. For p_keep (0 to 7 days) requests are signed with
-- the old one, too, so that receivers can be changed meanwhile. Not idempotent.
-- Locks: the webhook's row. Raises: QHH01, QHA01, QHA03.
create or replace function hwqueue.rotate_webhook(p_name text, p_keep interval default '1 day') returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_secret bytea := hwqueue.new_webhook_secret();
  v_until timestamptz;
begin
  perform hwqueue.find_webhook(p_name);
  perform hwqueue.check_span(p_keep, 'p_keep', '0', '7 days', 'from 0 to 7 days',
    'give a span such as interval ''1 day''; 0 if the old secret has leaked');
  v_until := hwqueue.clock() + hwqueue.in_seconds(p_keep);
  update hwqueue.webhook w
  set secret = v_secret, old_secret = w.secret, old_secret_until = v_until
  where w.name = p_name;
  perform hwqueue.note_event('webhook_rotated', format('webhook %s has another secret', p_name),
    jsonb_build_object('webhook', p_name, 'old_until', v_until));
  return hwqueue.shown_secret(v_secret);
end
$$;

-- Has a delivery of type webhook_test sent to a webhook, and returns its id. A paused webhook gets it when
-- it is resumed. Not idempotent.
-- Locks: the webhook's row. Raises: QHH01, QHA03.
create or replace function hwqueue.test_webhook(p_name text) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook hwqueue.webhook := hwqueue.find_webhook(p_name);
  v_now timestamptz := hwqueue.clock();
  v_delivery uuid := hwqueue.new_id();
begin
  insert into hwqueue.webhook_delivery (delivery_id, webhook_id, code, body, state, created_at, available_at)
  values (v_delivery, v_webhook.webhook_id, 'webhook_test',
    hwqueue.webhook_body('webhook_test', v_now, jsonb_build_object('webhook', p_name)), 'waiting', v_now,
    v_now);
  return v_delivery;
end
$$;

-- Returns deliveries of a webhook, newest first. p_state: waiting, delivered or dead; null: all. p_before:
-- the last delivery of the page before. status, response, error: how the last attempt ended.
-- Raises: QHH01, QHA01, QHA03.
create or replace function hwqueue.list_deliveries(p_name text, p_state text default null,
  p_limit int default 100, p_before uuid default null)
returns table (delivery_id uuid, code text, event_id bigint, lease_id uuid, state text, attempt_count int,
  created_at timestamptz, available_at timestamptz, attempted_at timestamptz, finished_at timestamptz,
  status int, response text, error text, body jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook uuid;
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_before'),
    hwqueue.json_choice(to_jsonb(p_state), 'p_state', array['waiting', 'delivered', 'dead']);
  v_webhook := (hwqueue.find_webhook(p_name, false)).webhook_id;
  return query
    select d.delivery_id, d.code, d.event_id, d.lease_id, d.state, d.attempt_count, d.created_at,
      case when d.state = 'waiting' then d.available_at end, d.attempted_at, d.finished_at, d.status::int,
      d.response, d.error, d.body::jsonb
    from hwqueue.webhook_delivery d
    where d.webhook_id = v_webhook and (p_state is null or d.state = p_state)
      and (p_before is null or d.delivery_id < p_before)
    order by d.delivery_id desc limit p_limit;
end
$$;

-- Has deliveries sent again, from the first attempt, and returns how many: one that is delivered, dead or
-- waits for its next attempt; or (p_delivery null) up to p_limit dead ones, the oldest first. Receivers see
-- the id that they saw before.
-- Locks: the webhook's row, then the deliveries, skip locked. Raises: QHH01, QHA01, QHA03.
create or replace function hwqueue.redeliver(p_name text, p_delivery uuid default null,
  p_limit int default 1000) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_webhook uuid;
  v_now timestamptz;
  v_count int;
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'call again for more');
  v_webhook := (hwqueue.find_webhook(p_name)).webhook_id;
  v_now := hwqueue.clock();  -- after the lock, which senders rely on (upkeep/webhooks)
  update hwqueue.webhook_delivery u
  set state = 'waiting', failures = 0, finished_at = null, available_at = v_now, claimed_until = null
  where u.delivery_id = any (array(
    select d.delivery_id from hwqueue.webhook_delivery d
    where d.webhook_id = v_webhook
      and case when p_delivery is null then d.state = 'dead' else d.delivery_id = p_delivery end
      and (d.claimed_until > v_now) is not true
    order by d.delivery_id limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Routes what is new to the webhooks, then claims up to p_limit due deliveries for p_timeout (1 second to
-- 10 minutes) and returns them with what is to be sent. A delivery whose claim ends without
-- settle_delivery is handed out again, so send it before then. A webhook has at most ten claimed at once.
--
-- attempt: to be passed to settle_delivery. headers: id, time and signatures (Standard Webhooks). Not
-- idempotent.
-- Locks: webhooks and deliveries, skip locked. Raises: QHA01, QHA02, QHA03.
create or replace function hwqueue.claim_deliveries(p_limit int default 20,
  p_timeout interval default '1 minute')
returns table (delivery_id uuid, attempt int, webhook text, url text, code text, headers jsonb, body text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz;
  v_from timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'call again for more');
  perform hwqueue.check_span(p_timeout, 'p_timeout', '1 second', '10 minutes', 'from 1 second to 10 minutes',
    'give a span such as interval ''1 minute''');
  perform hwqueue.route_webhooks(1000);
  v_now := hwqueue.clock();
  v_from := hwqueue.deliveries_from();
  return query
    with due as (
      update hwqueue.webhook_delivery u
      set attempt_count = u.attempt_count + 1, attempted_at = v_now, claimed_until = v_now + p_timeout,
        available_at = v_now + p_timeout
      where u.delivery_id = any (array(
        select d.delivery_id
        from (select x.webhook_id from hwqueue.webhook x where x.paused_at is null order by random()) w
        cross join lateral (  -- the longest due first
          select x.delivery_id from hwqueue.webhook_delivery x
          where x.webhook_id = w.webhook_id and x.state = 'waiting'
            and x.available_at >= v_from and x.available_at <= v_now
          order by x.available_at limit 10 - (  -- so that one that answers slowly does not hold up the others
            select count(*) from (  -- in order: by the index of those that are claimed
              select from hwqueue.webhook_delivery y
              where y.webhook_id = w.webhook_id and y.claimed_until > v_now
              order by y.claimed_until limit 10) c)
          for update skip locked) d
        limit p_limit))
      returning u.*
    )
    select d.delivery_id, d.attempt_count, w.name, w.url, d.code,
      jsonb_build_object('webhook-id', m.id, 'webhook-timestamp', m.at, 'webhook-signature', (
        select string_agg('v1,' || encode(hwqueue.hmac_sha256(k.secret,
                 convert_to(m.id || '.' || m.at || '.' || d.body, 'UTF8')), 'base64'), ' ' order by k.n)
        from (values (1, w.secret), (2, w.old_secret)) k(n, secret)
        where k.n = 1 or w.old_secret_until > v_now)), d.body
    from due d
    join hwqueue.webhook w on w.webhook_id = d.webhook_id
    cross join lateral (
      select 'msg_' || replace(d.delivery_id::text, '-', ''), floor(extract(epoch from v_now))::bigint::text
    ) m(id, at);
end
$$;

-- Records how an attempt ended, and returns what became of the delivery: delivered (the status is 2xx),
-- waiting (it is tried again, ten attempts over three days), dead, or lost: this attempt's claim ended and
-- nothing is recorded. Status 410 means that nobody is there any more: the webhook is paused.
--
-- p_result: status (100 to 999; left out: no answer came), response (text of at most 1000 characters),
-- error (why no answer came), retry_after (seconds; at most a day of it counts).
-- Locks: the webhook's row, then the delivery. Raises: QHA01, QHA03.
create or replace function hwqueue.settle_delivery(p_delivery uuid, p_attempt int, p_result jsonb)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_status int;
  v_response text;
  v_error text;
  v_after interval;
  v_webhook hwqueue.webhook;
  v_delivery hwqueue.webhook_delivery;
  v_delay interval;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_object(p_result, array['status', 'response', 'error', 'retry_after'], 'result');
  v_status := hwqueue.json_integer(p_result -> 'status', 'result.status', 100, 999);
  v_response := hwqueue.json_text(nullif(p_result -> 'response', '""'), 'result.response', 1000);
  v_error := hwqueue.json_text(p_result -> 'error', 'result.error', 1000);
  v_after := least(coalesce(
    hwqueue.json_integer(p_result -> 'retry_after', 'result.retry_after', 0, 2147483647), 0),
    86400) * interval '1 second';
  select w.* into v_webhook from hwqueue.webhook w
  where w.webhook_id = (
    select d.webhook_id from hwqueue.webhook_delivery d where d.delivery_id = p_delivery) for no key update;
  v_now := hwqueue.clock();
  select d.* into v_delivery from hwqueue.webhook_delivery d
  where d.delivery_id = p_delivery and d.attempt_count = p_attempt and d.claimed_until is not null for update;
  if not found then
    return 'lost';
  end if;
  -- up to a tenth more by chance, so that what failed together is not sent together again; null: no more
  v_delay := (array['5s', '1m', '5m', '30m', '2h', '5h', '10h', '20h', '1d']::interval[])[
    v_delivery.failures + 1] * (1 + random() / 10);
  v_delivery.state := case when v_status between 200 and 299 then 'delivered'
    when v_status = 410 or v_delay is null then 'dead' else 'waiting' end;
  update hwqueue.webhook_delivery d
  set state = v_delivery.state, claimed_until = null, status = v_status, response = v_response,
    error = v_error, failures = d.failures + case v_delivery.state when 'delivered' then 0 else 1 end,
    available_at = v_now + case v_delivery.state when 'waiting' then greatest(v_delay, v_after) else '0' end,
    finished_at = case when v_delivery.state <> 'waiting' then v_now end
  where d.delivery_id = p_delivery;
  update hwqueue.webhook w
  set delivered = w.delivered + (v_delivery.state = 'delivered')::int,
    failed = w.failed + (v_delivery.state <> 'delivered')::int,
    dead = w.dead + (v_delivery.state = 'dead')::int,
    delivered_at = case v_delivery.state when 'delivered' then v_now else w.delivered_at end,
    failing_since = case when v_delivery.state <> 'delivered' then coalesce(w.failing_since, v_now) end
  where w.name = v_webhook.name;
  if v_status = 410 and v_webhook.paused_at is null then
    perform hwqueue.stop_webhook(v_webhook, 'gone');
  end if;
  return v_delivery.state;
end
$$;
