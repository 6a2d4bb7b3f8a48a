-- How a lease ended is a row of its own: a settlement deletes the claim and inserts that row, and the lease's row stays as it is.

-- Whoever ends a lease writes to lease first: nobody can end one between the copy and the end of this revision.
lock table hwqueue.lease in access exclusive mode;

create table hwqueue.outcome (
  shard_id int not null,
  lease_id uuid not null,
  queue_id int not null,
  finished_at timestamptz not null,
  claimed_at timestamptz,
  claim_token bigint not null,
  node_id uuid,
  attempt smallint not null,
  state text not null,
  result jsonb,
  error jsonb
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
comment on table hwqueue.outcome is 'how a lease ended; a lease without a row here is open: it waits or runs';
comment on column hwqueue.outcome.state is 'completed, failed or cancelled';
comment on column hwqueue.outcome.claim_token is 'of the last claim that the lease had; 0: it was never claimed';
comment on column hwqueue.outcome.attempt is 'how many attempts the lease had used up; so with claimed_at and node_id';
insert into hwqueue.outcome (shard_id, lease_id, queue_id, finished_at, claimed_at, claim_token, node_id, attempt, state, result, error)
select l.shard_id, l.lease_id, l.queue_id, l.finished_at, l.claimed_at, l.claim_token, l.node_id, l.attempt_count, l.state, l.result, l.error
from hwqueue.lease l where l.state <> 'open';

-- By queue, state and time for prune, requeue_failed and the figures. The shard leads neither index: where the statistics say "a handful of
-- rows", as on a young table, the planner takes one that begins with it for whatever else is asked.
create index outcome_finished on hwqueue.outcome (queue_id, shard_id, state, finished_at);
alter table hwqueue.outcome add constraint outcome_pkey primary key (lease_id, shard_id);

drop table hwqueue.finished;
-- Nothing updates a lease that runs through: the room is for those that go back or fall due.
alter table hwqueue.lease
  drop column state, drop column finished_at, drop column result, drop column error,
  set (fillfactor = 90);
comment on column hwqueue.lease.claim_token is 'of the last claim that ended without ending the lease; 0: none did. So with attempt_count, node_id, claimed_at';

-- It is told how the lease ended.
drop function if exists hwqueue.resting_story(hwqueue.lease, text, timestamptz, int);
