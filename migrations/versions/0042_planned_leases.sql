-- == What became of the leases that a planner assigned to nodes ==

alter table hwqueue.planner add column leases jsonb not null default '{}', add column seconds jsonb,
  add column resting int;
comment on column hwqueue.planner.leases is
  'how many single leases planners have proposed, reserved and so on, in all, by what became of them';
comment on column hwqueue.planner.seconds is 'how long each part of the last round took that said so';
comment on column hwqueue.planner.resting is
  'how many nodes got no leases in that round, because they had not fetched some';

drop function if exists hwqueue.planner_status(int);  -- it has other columns
