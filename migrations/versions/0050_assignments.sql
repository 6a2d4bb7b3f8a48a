-- == What was allocated for claims that have ended ==

alter table hwqueue.outcome add column assignment jsonb;
comment on column hwqueue.outcome.assignment is
  'what was allocated for the last claim; null when nothing was counted for it';
alter table hwqueue.attempt add column assignment jsonb;
comment on column hwqueue.attempt.assignment is 'what was allocated; null when nothing was counted for it';
