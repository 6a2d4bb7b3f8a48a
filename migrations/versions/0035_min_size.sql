-- == Gangs that start with some of their members ==

alter table hwqueue.gang add column min_size int, add column missing int not null default 0;
comment on column hwqueue.gang.min_size is
  'how many members must be there for it to start, and to go on; null: all';
comment on column hwqueue.gang.missing is
  'how many members wait to join the others, while it is earmarked, reserved or running';

-- What upkeep tries to find room for: gangs that wait, and members that may join one that runs.
drop index hwqueue.gang_waiting;
create index gang_waiting on hwqueue.gang (shard_id, rank, position)
  where state = 'waiting' or state = 'running' and missing > 0;

drop function if exists hwqueue.get_gang(uuid, int);  -- they have other columns
drop function if exists hwqueue.list_gangs(text, int, timestamptz, uuid, int);
drop function if exists hwqueue.gang_status(uuid, bigint, int);
drop function if exists hwqueue.waiting_members(hwqueue.gang, int);
drop function if exists hwqueue.draft_members(hwqueue.queue, jsonb, int);
