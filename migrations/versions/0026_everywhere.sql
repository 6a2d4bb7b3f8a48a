-- == A task on every node ==
-- An everywhere task has one lease on each node that suits it. Its leases wait, are reserved and fetched as
-- members of gangs are. The gang_id of such a lease is its own id, so that gang_change says which one it was.

create table hwqueue.everywhere (
  shard_id int not null,
  everywhere_id uuid not null,
  queue_id int not null,
  class_id bigint not null,
  tenant text not null,
  task_name text not null,
  params jsonb not null,
  options jsonb not null,
  mode text not null,
  on_unmatched text not null,
  on_cordoned boolean not null,
  created_at timestamptz not null,
  stopped_at timestamptz,
  stops_running boolean not null default false,
  finished_at timestamptz,
  swept_at timestamptz not null default '-infinity',
  swept_node uuid not null default '00000000-0000-0000-0000-000000000000',
  primary key (shard_id, everywhere_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index everywhere_open on hwqueue.everywhere (shard_id, swept_at) where finished_at is null;
create index everywhere_finished on hwqueue.everywhere (shard_id, finished_at) where finished_at is not null;
create index everywhere_class on hwqueue.everywhere (shard_id, class_id);
comment on table hwqueue.everywhere is 'tasks that have one lease on each node that matches them';
comment on column hwqueue.everywhere.class_id is 'that of all its leases: the node is in the reservation';
comment on column hwqueue.everywhere.options is 'of each lease, with the defaults that its task had';
comment on column hwqueue.everywhere.mode is
  'once: one lease a node, until it ends. always: another one when it has ended';
comment on column hwqueue.everywhere.on_unmatched is
  'what becomes of a running lease whose node does not match any more: keep or stop';
comment on column hwqueue.everywhere.on_cordoned is 'on cordoned nodes, too, but on none that is drained';
comment on column hwqueue.everywhere.stops_running is 'leases that ran when it was stopped are asked to stop';
comment on column hwqueue.everywhere.finished_at is 'when the last lease of a stopped one had ended';
comment on column hwqueue.everywhere.swept_node is 'nodes up to this one were checked in this round';

create table hwqueue.everywhere_node (
  shard_id int not null,
  everywhere_id uuid not null,
  node_id uuid not null,
  lease_id uuid not null,
  due_at timestamptz,
  tries int not null default 0,
  failures int not null default 0,
  starts int not null default 1,
  reason text,
  ended_as text,
  primary key (shard_id, everywhere_id, node_id)
) with (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create unique index everywhere_node_lease on hwqueue.everywhere_node (shard_id, lease_id);
create index everywhere_node_due on hwqueue.everywhere_node (shard_id, due_at) where due_at is not null;
comment on table hwqueue.everywhere_node is
  'the lease of an everywhere task on a node: its key is why a node never has two that are open';
comment on column hwqueue.everywhere_node.lease_id is 'the open lease, or the last one';
comment on column hwqueue.everywhere_node.due_at is
  'when reap checks it next; null: when something happens to it';
comment on column hwqueue.everywhere_node.tries is 'how often its room was not reserved since it waits';
comment on column hwqueue.everywhere_node.failures is 'how many of its leases have failed in a row';
comment on column hwqueue.everywhere_node.starts is 'how many leases it has had';
comment on column hwqueue.everywhere_node.reason is 'why its room was not reserved at the last try';
comment on column hwqueue.everywhere_node.ended_as is 'how the last lease has ended; null: it is open';

alter table hwqueue.gang_change add column retry_at timestamptz;
comment on column hwqueue.gang_change.gang_id is 'the gang; or a lease of an everywhere task, by its id';
comment on column hwqueue.gang_change.retry_at is
  'for a lease of an everywhere task that was put back: when it may run again';
comment on column hwqueue.lease.gang_id is
  'the gang that it starts with; its own id: it is of an everywhere task; null: it starts alone';
