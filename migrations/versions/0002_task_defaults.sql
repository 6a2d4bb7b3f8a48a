-- What operators said about a task.
create table hwqueue.task (
  shard_id int not null,
  name text not null,
  defaults jsonb not null,
  set_at timestamptz not null,
  set_by text not null,
  primary key (shard_id, name)
);
comment on column hwqueue.task.defaults is 'spawn options, as they were given; a spawn''s own options win';

-- Where a spawn goes. defaults: those of its task; null: it has none, or the spawn is a batch.
create type hwqueue.spawn_target as (
  queue hwqueue.queue,
  defaults jsonb
);

-- read_single_spawn reads the queue from a spawn_target, kind_class takes the defaults of the task.
drop function if exists hwqueue.find_spawn_queue(text, int);
drop function if exists hwqueue.kind_class(int, jsonb, int);
