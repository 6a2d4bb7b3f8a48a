-- == Figures of runs ==
-- Prometheus counts what happened, and asks how long it took: of runs of workflows, too.

create table hwqueue.run_total (
  shard_id int not null,
  workflow text not null,
  outcome text not null,
  seconds double precision not null,
  counts bigint[] not null,
  counted_at timestamptz not null,
  primary key (shard_id, workflow, outcome)
) with (fillfactor = 50);
comment on table hwqueue.run_total is
  'running totals of the runs of a workflow with one outcome: how many, and how long they took';
comment on column hwqueue.run_total.workflow is 'its name; (other): those that have no row of their own';
comment on column hwqueue.run_total.seconds is 'from submission to end, summed up';
comment on column hwqueue.run_total.counts is
  'how many runs took how long, by histogram_bounds; the last one: longer';
comment on column hwqueue.run_total.counted_at is 'when the last of them ended';

create table hwqueue.retried_run (
  shard_id int not null,
  run_id uuid not null,
  attempt int not null,
  workflow_id bigint not null,
  name text not null,
  state text not null,
  submitted_at timestamptz not null,
  finished_at timestamptz not null,
  primary key (shard_id, run_id, attempt)
);
create index retried_run_finished on hwqueue.retried_run (finished_at);
comment on table hwqueue.retried_run is 'an end of a run that was retried, until it has been counted';
comment on column hwqueue.retried_run.attempt is 'the attempt of the run that has ended so';

-- == Traces of runs ==
-- A step is linked to the attempts of its parents, and a traced run is a span that a worker sends.

alter table hwqueue.step add column traceparent text;
comment on column hwqueue.step.traceparent is
  'W3C trace context of the attempt that ended it, if its worker has a tracer provider';

create table hwqueue.traced_run (
  shard_id int not null,
  run_id uuid not null,
  attempt int not null,
  workflow text not null,
  state text not null,
  reason text,
  traceparent text not null,
  submitted_at timestamptz not null,
  finished_at timestamptz not null,
  primary key (shard_id, run_id, attempt)
);
comment on table hwqueue.traced_run is
  'an end of a run whose submission was traced, until a worker sends a span of it';
comment on column hwqueue.traced_run.traceparent is 'W3C trace context of the submission';
