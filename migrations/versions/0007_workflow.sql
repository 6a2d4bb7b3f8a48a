-- == Workflows ==
-- A definition is a graph of steps; a run is one execution of it. A step's lease is spawned when the step
-- is released, so steps that wait are no rows that a claim could meet.

-- A step's lease is never deleted when it completes: its result may be read by other steps.
alter table hwqueue.lease add column run_id uuid, add column step_no int;
comment on column hwqueue.lease.run_id is 'the run whose step this is; null: a lease of its own';

alter table hwqueue.claim add column is_step boolean;
comment on column hwqueue.claim.is_step is
  'true: the settlement goes on with a run (lease.run_id); null: nobody waits for this lease';

alter table hwqueue.outcome add column is_step boolean;
comment on column hwqueue.outcome.is_step is
  'true: it is kept until its run goes; null: of a lease of its own';

-- it returns the leases that are steps now
drop function if exists hwqueue.end_waiting(uuid[], text, jsonb, timestamptz, int);

alter type hwqueue.spawn_request add attribute run_id uuid, add attribute step_no int;

-- A definition. It never changes: another content is another version. Those of ad hoc runs have neither
-- name nor version; runs of equal content share one.
create table hwqueue.workflow (
  shard_id int not null,
  workflow_id bigint generated always as identity,
  name text not null,
  version int,
  digest bytea not null,
  settings jsonb not null,
  steps jsonb not null,
  created_at timestamptz not null,
  retired_at timestamptz,
  retired_before xid8,
  primary key (shard_id, workflow_id)
);
create unique index workflow_version on hwqueue.workflow (shard_id, name, version) where version is not null;
create index workflow_digest on hwqueue.workflow (shard_id, digest);
create index workflow_retired on hwqueue.workflow (shard_id, retired_at) where retired_at is not null;
comment on column hwqueue.workflow.version is 'from 1; null: the definition of ad hoc runs';
comment on column hwqueue.workflow.settings is 'the specification without its steps';
comment on column hwqueue.workflow.retired_before is
  'transactions from this one on cannot have found the definition (prune_workflows)';

-- A step of a definition. Numbers are in topological order: the parents of a step have lower ones.
create table hwqueue.workflow_step (
  shard_id int not null,
  workflow_id bigint not null,
  step_no int not null,
  name text not null,
  kind text not null,
  task_name text not null,
  class_no int not null,
  parent_count int not null,
  is_any boolean not null,
  on_failure text not null,
  runs_at_end text,
  params jsonb not null,
  reads int[],
  run_if jsonb,
  options jsonb,
  primary key (shard_id, workflow_id, step_no)
);
comment on column hwqueue.workflow_step.class_no is
  'steps of equal numbers ask the same placement: their leases share a class';
comment on column hwqueue.workflow_step.is_any is 'released by the first edge that holds, not by the last';
comment on column hwqueue.workflow_step.on_failure is
  'of its leases: fail_run, go_on (children may pick it up; the run ends failed) or ignore';
comment on column hwqueue.workflow_step.runs_at_end is
  'a finally step: runs once when all else has ended, if the run completed, failed, was cancelled, or in any'
  ' case (ended)';
comment on column hwqueue.workflow_step.reads is
  'steps whose results its params or conditions name; null: there is nothing to bind, not even the input';

create table hwqueue.workflow_edge (
  shard_id int not null,
  workflow_id bigint not null,
  from_no int not null,
  to_no int not null,
  wants text not null,
  primary key (shard_id, workflow_id, from_no, to_no)
);
comment on column hwqueue.workflow_edge.wants is
  'how the parent must end: completed, failed (or cancelled), or ended in any way';

-- One execution of a definition. Written at submission, when its state changes and when it ends, never by a
-- step that completes.
create table hwqueue.run (
  shard_id int not null,
  run_id uuid not null,
  workflow_id bigint not null,
  name text not null,
  tenant text not null,
  input jsonb not null,
  level jsonb not null,
  policy jsonb not null,
  headers jsonb not null,
  labels jsonb not null,
  priority smallint,
  state text not null check (state in ('running', 'paused', 'failing', 'cancelling', 'completed', 'failed',
    'cancelled')),
  reason text,
  detail jsonb,
  stops boolean not null default false,
  is_finishing boolean not null default false,
  attempt int not null default 1,
  root_run_id uuid not null,
  deadline timestamptz,
  result jsonb,
  submitted_at timestamptz not null,
  finished_at timestamptz,
  prune_at timestamptz,
  primary key (shard_id, run_id)
) with (fillfactor = 80);
create index run_name on hwqueue.run (shard_id, name, run_id);
create index run_workflow on hwqueue.run (workflow_id);
create index run_deadline on hwqueue.run (shard_id, deadline)
  where deadline is not null and finished_at is null;
create index run_prune on hwqueue.run (shard_id, prune_at) where prune_at is not null;
comment on column hwqueue.run.level is 'where all its steps are to run, as workflow and submission ask';
comment on column hwqueue.run.policy is 'on_failure, retain and result, from its definition';
comment on column hwqueue.run.reason is 'why it is not running, or did not complete';
comment on column hwqueue.run.stops is 'steps that run are asked to stop, and none is released';
comment on column hwqueue.run.is_finishing is 'its finally steps are released: the next end is the last';
comment on column hwqueue.run.attempt is 'from 1; retry_workflow_run adds one';

-- A step of a run, from its submission on. Its lease exists once it is released.
create table hwqueue.step (
  shard_id int not null,
  run_id uuid not null,
  step_no int not null,
  state text not null,
  reason text,
  lease_id uuid not null,
  class_id bigint not null,
  queue_id int not null,
  own jsonb,
  result jsonb,
  error jsonb,
  ended_at timestamptz,
  primary key (shard_id, run_id, step_no)
) with (fillfactor = 80, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05);
comment on column hwqueue.step.state is
  'waiting, held (due, but the run is paused), running, completed, failed, cancelled or skipped';
comment on column hwqueue.step.own is 'options that the submission has set for this step alone';
comment on column hwqueue.step.result is 'given by an operator (skip_step); else the result is its lease''s';
comment on column hwqueue.step.error is 'why it failed before it had a lease';

-- Classes that a run may still need: they are not pruned while a step waits.
create table hwqueue.run_class (
  shard_id int not null,
  class_id bigint not null,
  run_id uuid not null,
  primary key (shard_id, class_id, run_id)
);
create index run_class_run on hwqueue.run_class (run_id);

-- A count: the parents of a step that have ended (step_no above 0, for steps with two parents or more), or
-- the open work of a run (step_no 0): need counts steps released, arrived those that have ended.
create table hwqueue.tally (
  shard_id int not null,
  run_id uuid not null,
  step_no int not null,
  part smallint not null default 0,
  need int not null default 0,
  arrived int not null default 0,
  unmet int not null default 0,
  failed int not null default 0,
  skipped int not null default 0,
  is_decided boolean not null default false,
  primary key (shard_id, run_id, step_no, part)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on column hwqueue.tally.part is '0: parents, or the open work of the run';
comment on column hwqueue.tally.unmet is 'parents whose edge does not hold';
comment on column hwqueue.tally.failed is
  'of those unmet, the ones that failed or were cancelled; of open work: failures that nothing ignores';
comment on column hwqueue.tally.skipped is 'of those unmet, the ones that were skipped';
comment on column hwqueue.tally.is_decided is 'the step was released or skipped';

-- What a session could not do at once, because another one held the row: the next one that holds it, or
-- advance_workflows, does it. Mostly empty.
create table hwqueue.arrival (
  shard_id int not null,
  arrival_id bigint generated always as identity,
  run_id uuid not null,
  step_no int not null,
  kind text not null,
  need int not null default 0,
  arrived int not null default 0,
  unmet int not null default 0,
  failed int not null default 0,
  skipped int not null default 0,
  reason text,
  at timestamptz not null,
  after_xid xid8,
  primary key (shard_id, arrival_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_threshold = -1);
create index arrival_of on hwqueue.arrival (run_id, step_no, kind);
create index arrival_at on hwqueue.arrival (shard_id, at);
comment on column hwqueue.arrival.kind is
  'count: for a tally; release, skip: of a step; fail: the run; state: the run''s state has changed';
comment on column hwqueue.arrival.after_xid is
  'of kind state: transactions below this one may have read the state before';

-- A producer's key of a run, which promises that the content is the same. It lives as long as the run.
create table hwqueue.run_key (
  shard_id int not null,
  tenant text not null,
  name text not null,
  idempotency_key text not null,
  run_id uuid not null,
  content bytea not null,
  primary key (shard_id, tenant, name, idempotency_key)
);
create index run_key_run on hwqueue.run_key (run_id);

alter table hwqueue.reap_cursor add column arrivals_from timestamptz not null default '-infinity';
comment on column hwqueue.reap_cursor.arrivals_from is 'the same of arrivals and their at';

-- What a settlement adds to a tally.
create type hwqueue.tally_delta as (need int, arrived int, unmet int, failed int, skipped int);

-- What one call does to a run. ended, states: steps that have just ended, and how; released, skipped,
-- reasons: steps that are due; most: how many it releases at most, the rest later; opened, closed, failed:
-- what it adds to the open work of the run.
create type hwqueue.run_progress as (
  ended int[],
  states text[],
  released int[],
  skipped int[],
  reasons text[],
  most int,
  opened int,
  closed int,
  failed int
);
