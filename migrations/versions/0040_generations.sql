-- A generation is the token of a first claim now: what led tokens before, in the same place. The next claim or
-- reap notes this start of the server and goes on above it.
alter table hwqueue.shard drop constraint shard_generation_check, alter column generation set default 0;
update hwqueue.shard set generation = generation << 40, server_started_at = null where timeline is not null;
update hwqueue.shard set generation = 0 where timeline is null;
update hwqueue.node_state set server_started_at = null where server_started_at is not null;
comment on column hwqueue.shard.generation is
  'the token of a first claim: it rises at each start of the server, and in a copy';
comment on column hwqueue.shard.timeline is 'with the next three: the start of a server that generation is of';
comment on column hwqueue.placement_check.claim_no is 'the lower 31 bits of its claim token';
drop function if exists hwqueue.next_generation(hwqueue.shard, int, bigint, text);
drop function if exists hwqueue.note_lasting(uuid, int, int);
