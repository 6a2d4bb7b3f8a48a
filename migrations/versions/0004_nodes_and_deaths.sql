-- Nodes that are gone: one number instead of a row for each.
alter table hwqueue.shard add column node_epoch_floor bigint not null default 0;
comment on column hwqueue.shard.node_epoch_floor is
  'the highest epoch of a node that prune has deleted; a node that registers for the first time begins '
  'above it';
update hwqueue.shard d set node_epoch_floor = coalesce((
  select max(s.node_epoch) from hwqueue.node_state s
  where s.shard_id = d.shard_id and not exists (
    select from hwqueue.node n where n.shard_id = s.shard_id and n.node_id = s.node_id)), 0);
delete from hwqueue.node_state s where not exists (
  select from hwqueue.node n where n.shard_id = s.shard_id and n.node_id = s.node_id);
delete from hwqueue.node_load u where not exists (
  select from hwqueue.node n where n.shard_id = u.shard_id and n.node_id = u.node_id);

-- Which nodes suit a class is computed again: those in no place of a required domain no longer do.
delete from hwqueue.class_nodes;

-- How much a worker runs at a time. Only explanations and views read it.
alter table hwqueue.served add column concurrency int check (concurrency > 0);
comment on column hwqueue.served.concurrency is
  'how many leases its worker runs at a time; null: it has not said';

-- Leases that died without a handler, for workers whose app has hooks for dead leases. A row goes when one
-- of them takes it, or after an hour. Without such a worker there are none.
create table hwqueue.death (
  shard_id int not null,
  lease_id uuid not null,
  queue_id int not null,
  task_name text not null,
  claim_token bigint not null,
  died_at timestamptz not null,
  primary key (shard_id, lease_id)
);
create index death_oldest on hwqueue.death (shard_id, died_at);
comment on table hwqueue.death is
  'leases that died without a handler, until a worker with hooks for that takes them; an hour at most';
alter table hwqueue.served add column hears_deaths boolean not null default false;
comment on column hwqueue.served.hears_deaths is 'its worker takes from death what it serves';
