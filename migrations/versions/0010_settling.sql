-- How claims end: rows that publications can name, and which database this is.

-- Without a key. A publication for all tables refuses updates and deletes of such tables; the whole row is its identity now, which costs
-- something only while a publication has them, at wal_level logical.
alter table hwqueue.term_counter replica identity full;
alter table hwqueue.class_term replica identity full;
alter table hwqueue.class_rule replica identity full;
alter table hwqueue.requeued replica identity full;

-- Which database wrote the row: a copy or a restore in the same cluster has the same server, started at the same time.
alter table hwqueue.shard add column storage_path text;
comment on column hwqueue.shard.storage_path is 'file of this table when server_started_at was written: every copy and every restore has another one';
alter table hwqueue.node_state add column storage_path text;
comment on column hwqueue.node_state.storage_path is 'of the shard, when generation was read';
drop function if exists hwqueue.next_generation(hwqueue.shard, int, bigint);

-- It takes one argument more.
drop function if exists hwqueue.end_completed_claim(uuid, bigint, uuid, boolean, jsonb, int);
