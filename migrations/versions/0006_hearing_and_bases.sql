-- The nodes whose workers take deaths. Most fleets have none.
create index served_hearing on hwqueue.served (shard_id) where hears_deaths;

-- Since when event ids have their base: a transaction that was open then may have read the former one.
alter table hwqueue.shard add column former_event_base bigint not null default 0;
alter table hwqueue.shard add column event_base_xid xid8 not null default '0';
comment on column hwqueue.shard.event_base_xid is
  'the transaction that raised event_base; ids of those that were open then follow former_event_base';
