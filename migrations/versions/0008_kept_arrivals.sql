-- Changes of runs' states that wait for old transactions are apart from the arrivals that a sweep can work
-- off at once: however many of these are kept, they are not read for the others.
drop index if exists hwqueue.arrival_at;
create index arrival_at on hwqueue.arrival (shard_id, at) where after_xid is null;
create index arrival_kept on hwqueue.arrival (shard_id, arrival_id) where after_xid is not null;

-- A chain of steps reads no edges.
alter table hwqueue.workflow_step add column children int[];
comment on column hwqueue.workflow_step.children is
  'the steps after it, where each comes after it alone and wants it completed; null: workflow_edge says';

-- these take and return other things now
drop function if exists hwqueue.step_requests(hwqueue.run, hwqueue.step[], hwqueue.run_progress, timestamptz,
  int);
drop function if exists hwqueue.step_request(hwqueue.run, int, uuid, bigint, jsonb, jsonb, timestamptz);
drop function if exists hwqueue.spawn_steps(hwqueue.spawn_request[], hwqueue.step[], int[], timestamptz, int);
drop function if exists hwqueue.take_ended_leases(hwqueue.step[], int);
drop function if exists hwqueue.steps_ended(uuid[], text, int);
drop function if exists hwqueue.prune_leases(int, timestamptz, int);

-- Outcomes of steps stay until their run goes: prune does not read them again at each call.
alter table hwqueue.prune_cursor add column leases_at timestamptz not null default '-infinity',
  add column leases_counted timestamptz not null default '-infinity', add column leases_policy text;
comment on column hwqueue.prune_cursor.leases_at is
  'when a call last deleted all leases past their retention: what it left is kept for runs';
comment on column hwqueue.prune_cursor.leases_counted is 'up to where roll_up had counted by then';
comment on column hwqueue.prune_cursor.leases_policy is 'a digest of the retentions by then';
