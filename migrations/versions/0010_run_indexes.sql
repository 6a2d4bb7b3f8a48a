create index run_open on hwqueue.run (shard_id, name, state) where finished_at is null;
create index run_finished on hwqueue.run (shard_id, finished_at) where finished_at is not null;
