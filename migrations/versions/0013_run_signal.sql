-- Signals of runs, in the order in which they were sent; those of leases are in lease_signal.
create table hwqueue.run_signal (
  shard_id int not null,
  run_id uuid not null,
  signal_id bigint generated always as identity,
  name text not null,
  key text,
  sent_at timestamptz not null,
  taken_by int,
  payload jsonb,
  primary key (shard_id, run_id, signal_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
create index run_signal_open on hwqueue.run_signal (shard_id, run_id, name, signal_id) where taken_by is null;
create unique index run_signal_key on hwqueue.run_signal (shard_id, run_id, name, key) where key is not null;
comment on table hwqueue.run_signal is
  'signals that runs were sent; the rows stay until the run goes';
comment on column hwqueue.run_signal.key is
  'the sender''s name for the signal: a run takes a signal of this name and key once';
comment on column hwqueue.run_signal.taken_by is
  'the number of the step that has the payload now; null: no step has taken the signal yet';

comment on column hwqueue.arrival.kind is
  'count: for a tally; release, skip: of a step; fail: the run; state: the run''s state has changed; signal:'
  ' one may be there for a step that waits';
