alter table hwqueue.workflow_step add column near jsonb;
comment on column hwqueue.workflow_step.near is
  'the steps in whose places it runs, by number: {"steps", "what", "mode", "away", "gone", "weight"}';
comment on column hwqueue.step.own is 'what the submission has said for this step alone: options, level; '
  'base_class: the class before the place of other steps came in (near)';

alter table hwqueue.run_key add column while_running boolean;
comment on column hwqueue.run_key.while_running is 'true: it goes when its run ends; null: with its run';

-- it returns came_from, too
drop function if exists hwqueue.list_workflow_steps(uuid, int);
