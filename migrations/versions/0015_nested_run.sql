-- == Nested runs ==
-- A step of kind workflow is a run of another workflow. Each of the two knows the other by key.

alter table hwqueue.run add column parent_run_id uuid, add column parent_step_no int,
  add column depth smallint not null default 0;
create index run_parent on hwqueue.run (parent_run_id, run_id) where parent_run_id is not null;
create index run_root on hwqueue.run (root_run_id, run_id) where parent_run_id is not null;
comment on column hwqueue.run.parent_run_id is 'the run whose step this is; null: it was submitted';
comment on column hwqueue.run.depth is 'how many runs are above it';

alter table hwqueue.step add column nested_run_id uuid, add column nested_mode text;
comment on column hwqueue.step.nested_run_id is
  'the run that this step is, of kind workflow; null: of another kind, or not open yet';
comment on column hwqueue.step.nested_mode is
  'how that run is to be retried before it counts for this step, failed or all; null: not';
comment on column hwqueue.arrival.kind is
  'count: for a tally; item: for that of a map; release, skip: of a step; fail: the run; state: the run''s'
  ' state has changed; signal: a step may have a signal to take; nested: a step and its nested run, or'
  ' (step_no 0) a nested run and its parent, are to be compared';

-- they return nested runs now, or their arguments differ
drop function if exists hwqueue.check_workflow(jsonb, jsonb, int);
drop function if exists hwqueue.get_workflow_run(uuid, int);
drop function if exists hwqueue.list_workflow_runs(jsonb, int, uuid, int);
drop function if exists hwqueue.list_workflow_steps(uuid, int);
drop function if exists hwqueue.reset_run(hwqueue.run, int[], jsonb, timestamptz, int);
