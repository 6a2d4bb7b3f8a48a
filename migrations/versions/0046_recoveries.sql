-- == A server that recovers without a start ==

alter table hwqueue.shard add column recovered_to pg_lsn;
comment on column hwqueue.shard.recovered_to is
  'up to where the server had recovered when generation was written; null: it had no need to';
alter table hwqueue.node_state add column recovered_to pg_lsn;
comment on column hwqueue.node_state.recovered_to is 'of the shard, when generation was read';
comment on column hwqueue.node_state.generation is
  'of the shard, as long as the server has neither been started nor recovered since';

drop function if exists hwqueue.storage_path();
