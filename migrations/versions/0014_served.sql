-- What a node's worker announced when it registered. A table of its own: claims read the node's row, and never this.
create table hwqueue.served (
  shard_id int not null,
  node_id uuid not null,
  queues text[],
  tasks text[],
  primary key (shard_id, node_id)
);
comment on column hwqueue.served.queues is 'queues that it polls; null: it has not said';
comment on column hwqueue.served.tasks is 'tasks that it has handlers for; null: it has not said';

drop function if exists hwqueue.write_terms(int, timestamptz, int);
drop function if exists hwqueue.class_fits(bigint[], bit varying, bit varying, bit varying, timestamptz, int);
drop function if exists hwqueue.class_headline(int, int, int, int, int, text, text, int, int, text, text, int, int, int, timestamptz, interval);
