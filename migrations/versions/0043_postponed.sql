-- == What upkeep could not finish ==

create table hwqueue.postponed (
  shard_id int not null,
  part text not null,
  item uuid not null,
  tries int not null,
  at timestamptz not null,
  next_try_at timestamptz not null,
  sqlstate text,
  message text,
  primary key (shard_id, part, item)
) with (fillfactor = 50);
comment on table hwqueue.postponed is
  'parts of reap and prune, gangs and replacements that a timeout ended or that failed, for ten minutes';
comment on column hwqueue.postponed.part is 'such as "reap gangs" or "prune leases", or gang, or replacement';
comment on column hwqueue.postponed.item is
  'the gang, or the lease that replaces another one; zeros: the part as a whole';
comment on column hwqueue.postponed.tries is
  'how often in a row; each time a part does half as much in a call';
comment on column hwqueue.postponed.sqlstate is
  'what ended it; null: nothing, but it used up the time of the call';

-- what a call of reap or prune has done so far
create type hwqueue.upkeep_done as (
  holds boolean, sweeps boolean, again boolean, reap_cursor hwqueue.reap_cursor,
  prune_cursor hwqueue.prune_cursor, expired int, promoted int, deadlines int, reaches int, leases int,
  classes int, nodes int, more boolean);

drop function if exists hwqueue.end_members(hwqueue.gang, int);  -- it returns something
drop function if exists hwqueue.reap_all(int, hwqueue.reap_cursor, boolean, timestamptz, int);
