-- The table that one would write oneself, with routing: a job goes to a worker whose tags contain the job's.
create table naive_job (
  id bigint generated always as identity primary key,
  priority int not null default 0,
  state text not null default 'pending',
  affinity_tags jsonb,
  payload jsonb not null
);
create index naive_job_pending on naive_job (priority desc, id) where state = 'pending';
create index naive_job_affinity_tags on naive_job using gin (affinity_tags);
