-- == Room on GPUs, as a planner found it ==

alter table hwqueue.planner add column gpus double precision, add column allocated double precision,
  add column bound double precision, add column room_until timestamptz;
comment on column hwqueue.planner.gpus is
  'GPUs of live nodes, as of the last round that said so; null: none has';
comment on column hwqueue.planner.allocated is 'how many of them were in use; shares count as parts';
comment on column hwqueue.planner.bound is
  'how many could have been in use at most, if what waited was placed at best beside what ran';
comment on column hwqueue.planner.room_until is 'the figures count until then';
