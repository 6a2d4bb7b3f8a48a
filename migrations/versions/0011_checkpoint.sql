-- What handlers saved: a row for each step that has ended and for each wait.
create table hwqueue.checkpoint (
  shard_id int not null,
  lease_id uuid not null,
  name text not null,
  claim_token bigint not null,
  saved_at timestamptz not null,
  is_open boolean not null,
  state jsonb,
  signal text,
  waits_until timestamptz,
  primary key (shard_id, lease_id, name)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.checkpoint is
  'what the handler of a lease has saved, by name: results of steps, and waits; the rows stay until '
  'the lease goes';
comment on column hwqueue.checkpoint.claim_token is 'the claim that wrote the row last';
comment on column hwqueue.checkpoint.is_open is
  'a wait that has not ended; the one that the last claim ended with suspends the lease';
comment on column hwqueue.checkpoint.state is
  'the result of the step, or the payload of the signal; null: an open wait, a sleep, or a wait that '
  'timed out';
comment on column hwqueue.checkpoint.signal is 'of a wait: the signal that it waits for';
comment on column hwqueue.checkpoint.waits_until is
  'of a wait: when it ends at the latest; null: it has no timeout';

-- Signals of leases, in the order in which they were sent.
create table hwqueue.lease_signal (
  shard_id int not null,
  lease_id uuid not null,
  number int not null,
  name text not null,
  key text,
  sent_at timestamptz not null,
  taken_as text,
  payload jsonb,
  primary key (shard_id, lease_id, number)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.lease_signal is
  'signals that leases were sent, numbered from 1 in each lease; the rows stay until the lease goes';
comment on column hwqueue.lease_signal.key is
  'the sender''s name for the signal: a lease takes a signal of this name and key once';
comment on column hwqueue.lease_signal.taken_as is
  'the checkpoint that has the payload now; null: no wait has taken the signal yet';
