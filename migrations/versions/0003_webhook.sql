-- A receiver of events. Routing reads the events after event_cursor and the completions after
-- (completed_at, completed_lease), and writes a delivery for each that the filter lets through. Settling
-- a delivery updates the row, so the fill factor leaves room.
create table hwqueue.webhook (
  shard_id int not null,
  name text not null,
  webhook_id uuid not null,
  url text not null,
  codes text[],
  queues text[],
  tenant text,
  labels jsonb,
  secret bytea not null check (octet_length(secret) = 32),
  old_secret bytea check (octet_length(old_secret) = 32),
  old_secret_until timestamptz,
  event_cursor bigint not null,
  completed_at timestamptz not null,
  completed_lease uuid not null,
  created_at timestamptz not null,
  created_by text not null,
  created_login text not null,
  paused_at timestamptz,
  paused_reason text,
  delivered_at timestamptz,
  failing_since timestamptz,
  delivered bigint not null default 0,
  failed bigint not null default 0,
  dead bigint not null default 0,
  primary key (shard_id, name),
  check ((old_secret is null) = (old_secret_until is null)),
  check ((paused_at is null) = (paused_reason is null))
) with (fillfactor = 50);
comment on column hwqueue.webhook.codes is 'of events, or lease_completed; null: every event';
comment on column hwqueue.webhook.tenant is 'null: all tenants, and events that are no tenant''s';
comment on column hwqueue.webhook.secret is 'the key of the signatures; no function returns it twice';
comment on column hwqueue.webhook.event_cursor is 'every event up to this id has been routed';
comment on column hwqueue.webhook.completed_at is
  'with completed_lease: every completion up to here has been routed';
comment on column hwqueue.webhook.paused_reason is 'asked: by an operator; gone: the receiver answered 410';
comment on column hwqueue.webhook.failing_since is 'the first attempt that failed since the last success';
comment on column hwqueue.webhook.failed is 'attempts that failed; dead: deliveries given up';

-- What is to be sent to a webhook, or was. attempt_count is the fencing token of a claim: the process that
-- records how an attempt ended names its number. failures counts since the delivery was new or redelivered.
create table hwqueue.webhook_delivery (
  shard_id int not null,
  delivery_id uuid not null,
  webhook_id uuid not null,
  code text not null,
  event_id bigint,
  lease_id uuid,
  body text not null,
  state text not null check (state in ('waiting', 'delivered', 'dead')),
  attempt_count int not null default 0,
  failures smallint not null default 0,
  created_at timestamptz not null,
  available_at timestamptz not null,
  claimed_until timestamptz,
  attempted_at timestamptz,
  finished_at timestamptz,
  status smallint,
  response text,
  error text,
  primary key (shard_id, delivery_id),
  check ((state = 'waiting') = (finished_at is null)),
  check (claimed_until is null or state = 'waiting')
);
create index webhook_delivery_due on hwqueue.webhook_delivery (shard_id, webhook_id, available_at)
  where state = 'waiting';
create index webhook_delivery_claimed on hwqueue.webhook_delivery (shard_id, webhook_id, claimed_until)
  where claimed_until is not null;
create index webhook_delivery_of on hwqueue.webhook_delivery (shard_id, webhook_id, delivery_id);
create index webhook_delivery_finished on hwqueue.webhook_delivery (shard_id, finished_at)
  where finished_at is not null;
comment on column hwqueue.webhook_delivery.created_at is 'when what it tells of happened';
comment on column hwqueue.webhook_delivery.available_at is 'when it may be sent next, while it waits';
comment on column hwqueue.webhook_delivery.status is 'of the last answer; null: there was none';
comment on column hwqueue.webhook_delivery.response is 'the beginning of the last answer''s body';
