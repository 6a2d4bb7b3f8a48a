-- == Gangs, explained and paged ==

-- Members of one class that a node has room for, between the functions that ask which places have room.
create type hwqueue.gang_room as (
  class_no int,
  members int,
  node_id uuid,
  rack bigint,
  labels jsonb,
  copies int,
  emptied int
);
comment on type hwqueue.gang_room is
  'how many members of a class have room on a node now, and would have if nothing ran there';

-- Pages of list_gangs, and counts of gangs that have not ended.
create index gang_created on hwqueue.gang (shard_id, created_at, gang_id);
create index gang_open on hwqueue.gang (shard_id, state, created_at) where finished_at is null;

drop function if exists hwqueue.list_gangs(text, int, timestamptz, int);  -- it has another argument
