-- For operators. The functions and views come from sql/.

-- Metrics: what ended, minute by minute.
-- Running totals of a queue as they stood at the end of a minute (of the newest minute: as they stand). What happened in a minute is
-- the difference to the row before it; a minute in which nothing ended has no row. Written by roll_up alone.
create table hwqueue.minute_stat (
  shard_id int not null,
  queue_id int not null,
  minute timestamptz not null,
  completed bigint not null default 0,
  failed bigint not null default 0,
  cancelled bigint not null default 0,
  attempts_failed bigint not null default 0,
  attempts_expired bigint not null default 0,
  attempts_superseded bigint not null default 0,
  attempts_released bigint not null default 0,
  attempts_cancelled bigint not null default 0,
  retried bigint not null default 0,
  wait_seconds double precision not null default 0,
  wait_counts bigint[] not null,
  run_seconds double precision not null default 0,
  run_counts bigint[] not null,
  primary key (shard_id, queue_id, minute)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on column hwqueue.minute_stat.failed is 'leases that are dead: no attempt left, or a deadline passed';
comment on column hwqueue.minute_stat.attempts_failed is 'claims that ended so, whether or not another attempt followed; likewise the others';
comment on column hwqueue.minute_stat.retried is 'claims that failed, expired or were superseded and whose lease went back';
comment on column hwqueue.minute_stat.wait_seconds is 'of completed leases: from claimable to claimed, summed up';
comment on column hwqueue.minute_stat.wait_counts is 'how many of them waited how long, by histogram_bounds; the last one: longer';
comment on column hwqueue.minute_stat.run_seconds is 'of completed leases: from claimed to completed; likewise run_counts';

-- Finished leases that got another chance, until they have been counted.
create table hwqueue.requeued (
  shard_id int not null,
  queue_id int not null,
  state text not null,
  finished_at timestamptz not null,
  lease_id uuid not null
);
create index requeued_finished on hwqueue.requeued (finished_at);

-- By when they ended, for roll_up. Without the shard: see 0003.
create index attempt_ended on hwqueue.attempt (ended_at);

-- What finished before this upgrade is not counted.
alter table hwqueue.reap_mark
  add column counted_to timestamptz not null default '-infinity',
  add column count_noted_at timestamptz not null default '-infinity',
  add column count_noted_before xid8 not null default '0';
update hwqueue.reap_mark set counted_to = now() where exists (select 1 from hwqueue.finished);
comment on column hwqueue.reap_mark.counted_to is 'what ended before is in minute_stat, and nothing more can come from before';
comment on column hwqueue.reap_mark.count_noted_before is
  'only transactions below this one can still bring what ended before count_noted_at (roll_up)';

-- views: a node shows its cores and the isolation classes that it honours.
drop function if exists hwqueue.list_nodes(text, int);
