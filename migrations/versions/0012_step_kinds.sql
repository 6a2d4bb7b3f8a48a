-- == Kinds of steps ==
-- A step of another kind than task has no lease of its own: it ends at a time, or by what others do.

alter table hwqueue.workflow_step add column settings jsonb, alter column task_name drop not null,
  alter column class_no drop not null;
comment on column hwqueue.workflow_step.settings is 'what its kind needs, if it is no task';
comment on column hwqueue.workflow_step.class_no is
  'steps of equal numbers ask the same placement: their leases share a class; null: it spawns none';

alter table hwqueue.step alter column lease_id drop not null, alter column class_id drop not null,
  alter column queue_id drop not null, add column due_at timestamptz;
create index step_due on hwqueue.step (shard_id, due_at) where due_at is not null;
comment on column hwqueue.step.lease_id is 'null: of a kind without a lease of its own';
comment on column hwqueue.step.due_at is 'while it runs: when reap ends it; null: never';

alter table hwqueue.reap_cursor add column steps_from timestamptz not null default '-infinity';
comment on column hwqueue.reap_cursor.steps_from is 'the same of steps and their due_at';

-- How a step began or ended: state running (it is open), completed, failed or skipped.
create type hwqueue.step_verdict as (state text, reason text, error jsonb, result jsonb, due_at timestamptz);

-- it returns the kind of each step now
drop function if exists hwqueue.list_workflow_steps(uuid, int);

-- their work is in other functions now, or their arguments differ
drop function if exists hwqueue.drop_held(hwqueue.run, int, int);
drop function if exists hwqueue.reap_workflows(int, timestamptz, timestamptz, int);
