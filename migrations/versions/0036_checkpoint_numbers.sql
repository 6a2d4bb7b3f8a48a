-- == What a handler saves costs the same, however much it has saved ==

alter table hwqueue.checkpoint add column number int not null default 0;
comment on column hwqueue.checkpoint.number is
  'from 1 in each lease, in the order in which names were saved first; 0: saved before there were numbers';
-- partial, so that a search by name has but the primary key: others begin with the lease, too
create index checkpoint_number on hwqueue.checkpoint (shard_id, lease_id, number) where number > 0;
create index checkpoint_open on hwqueue.checkpoint (shard_id, lease_id) where is_open;

create index lease_signal_open on hwqueue.lease_signal (shard_id, lease_id, name, number)
  where taken_as is null;
create unique index lease_signal_key on hwqueue.lease_signal (shard_id, lease_id, name, key)
  where key is not null;
