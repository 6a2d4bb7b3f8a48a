-- The column holds the token of a first claim now: what led tokens before, in the same place. The next
-- claim or reap notes this start of the server and goes on above it.
alter table hwqueue.shard drop constraint shard_generation_check, alter column generation set default 0;
update hwqueue.shard set generation = generation << 40, server_started_at = null where timeline is not null;
update hwqueue.shard set generation = 0 where timeline is null;
update hwqueue.node_state set server_started_at = null where server_started_at is not null;
comment on column hwqueue.shard.generation is
  'the token of a first claim: it rises at each start of the server, and in a copy';
comment on column hwqueue.shard.timeline is
  'with the next three: the start of a server that generation is of';
comment on column hwqueue.placement_check.claim_no is 'the lower 31 bits of its claim token';
drop function if exists hwqueue.next_generation(hwqueue.shard, int, bigint, text);
drop function if exists hwqueue.note_lasting(uuid, int, int);


-- == The clock ==

-- Each time that the clock was set back, seen by roll_up. Ends before counted_to that were visible to
-- counted_as had been counted by then, and the count goes on at goes_on_at.
create table hwqueue.clock_step (
  shard_id int not null,
  step_no bigint generated always as identity,
  counted_to timestamptz not null,
  counted_as pg_snapshot not null,
  goes_on_at timestamptz not null,
  primary key (shard_id, step_no)
);
comment on table hwqueue.clock_step is
  'a time that the clock was set back; statistics and webhooks go on there';
comment on column hwqueue.clock_step.counted_to is 'up to where ends were counted by then';
comment on column hwqueue.clock_step.counted_as is 'of those before counted_to it sees what had been counted';
comment on column hwqueue.clock_step.goes_on_at is 'where the count goes on';

alter table hwqueue.reap_cursor add column counted_from timestamptz not null default '-infinity',
  add column counted_as pg_snapshot, add column counted_on bigint;
comment on column hwqueue.reap_cursor.counted_from is 'from where the last count went that moved counted_to';
comment on column hwqueue.reap_cursor.counted_as is 'it saw all that has been counted';
comment on column hwqueue.reap_cursor.counted_on is
  'the server, by its system identifier, that counted_as is of';
alter table hwqueue.webhook add column clock_step bigint not null default 0;
comment on column hwqueue.webhook.clock_step is 'the last step of the clock behind completed_at';
alter table hwqueue.requeued add column xid xid;
comment on column hwqueue.requeued.xid is 'the transaction that the lease ended in';
alter table hwqueue.retried_run add column xid xid;
comment on column hwqueue.retried_run.xid is 'the transaction that the run ended in';
drop function if exists hwqueue.time_of_nth_end(int, timestamptz, timestamptz, int);
drop function if exists hwqueue.roll_up_minute(timestamptz, timestamptz, int);
drop function if exists hwqueue.roll_up_runs(timestamptz, timestamptz, int);
drop function if exists hwqueue.ended_between(timestamptz, timestamptz, int);
