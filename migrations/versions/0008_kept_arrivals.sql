-- Changes of runs' states that wait for old transactions are apart from the arrivals that a sweep can work
-- off at once: however many of these are kept, they are not read for the others.
drop index if exists hwqueue.arrival_at;
create index arrival_at on hwqueue.arrival (shard_id, at) where after_xid is null;
create index arrival_kept on hwqueue.arrival (shard_id, arrival_id) where after_xid is not null;
