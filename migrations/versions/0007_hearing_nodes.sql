-- The nodes whose workers take deaths. Most fleets have none.
create index served_hearing on hwqueue.served (shard_id) where hears_deaths;
