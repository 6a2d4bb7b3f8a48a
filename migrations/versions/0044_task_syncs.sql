-- == Defaults of tasks that workers set, and what a spawn lacks ==

alter table hwqueue.task add column by_hand boolean not null default true, add column version text,
  add column earlier bytea[] not null default '{}';
comment on column hwqueue.task.by_hand is 'set_task has set them: a worker does not replace them';
comment on column hwqueue.task.version is 'of the app that declares them; null: it has not said';
comment on column hwqueue.task.earlier is
  'digests of the last 100 defaults that it had before: an app that declares one of them is older';

alter table hwqueue.served add column declared text[];
comment on column hwqueue.served.declared is
  'tasks for which its app declares defaults; null: it has not said';

drop function if exists hwqueue.spawn_lease(text, text, jsonb, jsonb, int);  -- it has another column
