-- For operators. The functions and views come from sql/.

-- upkeep: any number of workers prune, one at a time
drop function if exists hwqueue.prune(int, int);
drop function if exists hwqueue.prune_unused(int, timestamptz, int);
drop function if exists hwqueue.purge_queues(int, int);
alter table hwqueue.prune_mark add column pruned_at timestamptz not null default '-infinity';
comment on column hwqueue.prune_mark.pruned_at is 'when somebody last pruned';
