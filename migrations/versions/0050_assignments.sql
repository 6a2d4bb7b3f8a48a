-- == What was allocated for claims that have ended ==

alter table hwqueue.outcome add column assignment jsonb;
comment on column hwqueue.outcome.assignment is
  'what was allocated for the last claim; null when nothing was counted for it';
alter table hwqueue.attempt add column assignment jsonb;
comment on column hwqueue.attempt.assignment is 'what was allocated; null when nothing was counted for it';

-- == Functions that are gone, or have other results or names of arguments ==

drop function if exists hwqueue.broken_upkeep(int);
drop function if exists hwqueue.check_time();
drop function if exists hwqueue.prune_postponed(timestamptz, int);
drop function if exists hwqueue.served_names(timestamptz, int);
drop function if exists hwqueue.unknown_names(jsonb, jsonb, timestamptz, int);
drop function if exists hwqueue.unknown_words(text, text);
