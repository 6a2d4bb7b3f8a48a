-- == Prices ==

create table hwqueue.planner (
  shard_id int not null,
  epoch bigint not null,
  holder text not null,
  round bigint not null,
  expires_at timestamptz not null,
  primary key (shard_id)
) with (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.planner is 'the process that plans, one of those that run';
comment on column hwqueue.planner.epoch is 'the fencing token of the leader: a new one gets a higher epoch';
comment on column hwqueue.planner.holder is 'the name that the process gave itself';
comment on column hwqueue.planner.round is 'the last round of this epoch that wrote something';
comment on column hwqueue.planner.expires_at is 'when another process may lead, unless it is renewed';

create table hwqueue.queue_price (
  shard_id int not null,
  queue_id int not null,
  epoch bigint not null,
  round bigint not null,
  device_worth double precision[] not null check (cardinality(device_worth) = 101),
  worth_until timestamptz not null,
  primary key (shard_id, queue_id, epoch, round)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.queue_price is
  'what room on a device is worth to a queue, as a planner set it; the newest epoch and round count';
comment on column hwqueue.queue_price.device_worth is
  'what a device with 0, 10, 20, ... 1000 thousandths left is worth, in devices';
comment on column hwqueue.queue_price.worth_until is 'claims use it until then';

alter table hwqueue.queue add column has_prices boolean not null default false;
comment on column hwqueue.queue.has_prices is
  'claims read its prices; set with the first ones, cleared an hour after the last ones ran out';

drop function if exists hwqueue.fit_score(bigint, bigint, int, int, double precision, hwqueue.headroom);
drop function if exists hwqueue.class_score(bigint, hwqueue.node, hwqueue.headroom, hwqueue.queue,
  timestamptz, int);
