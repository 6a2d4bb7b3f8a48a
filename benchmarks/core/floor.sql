-- The floor: the least that a durable queue in Postgres can be. One row a job, claimed by position, kept when done.
create table floor (
  id bigint generated always as identity primary key,
  state smallint not null default 0,  -- 0 ready, 1 claimed, 2 done
  payload jsonb not null
);
create index floor_ready on floor (id) where state = 0;
