-- == Added runs ==
-- A handler may add steps to its step, too: they are a run below it, which the step waits for.

create table hwqueue.added_run (
  shard_id int not null,
  run_id uuid not null,
  step_no int not null,
  name text not null,
  nested_run_id uuid not null,
  digest bytea not null,
  retry_mode text,
  primary key (shard_id, run_id, step_no, name)
);
comment on column hwqueue.added_run.name is 'of its specification: it says once what is added';
comment on column hwqueue.added_run.digest is 'of its specification in normal form';
comment on column hwqueue.added_run.retry_mode is
  'how that run is to be retried before it counts for this step; null: not';

alter table hwqueue.map add column runs int not null default 0;
comment on column hwqueue.map.runs is 'how many runs were added (added_run)';
