-- The table that one would write oneself, with routing: a job goes to a worker whose tags contain the job's. No index on the tags:
-- GIN serves "contains what I ask for", not "is contained in what I have".
create table naive_job (
  id bigint generated always as identity primary key,
  priority int not null default 0,
  state text not null default 'pending',
  affinity_tags jsonb,
  payload jsonb not null
);
create index naive_job_pending on naive_job (priority desc, id) where state = 'pending';
