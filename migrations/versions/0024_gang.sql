-- == Gangs ==
-- Leases that start together or not at all. Members that wait are scheduled for a time that never comes
-- (never_due); a reservation is a claim that its node has not fetched yet.

create table hwqueue.gang (
  shard_id int not null,
  gang_id uuid not null,
  queue_id int not null,
  tenant text not null,
  rank bigint not null,
  position bigint generated always as identity,
  size int not null,
  together text[] not null,
  same text[] not null,
  on_lost text not null,
  hold interval not null,
  state text not null,
  reason text,
  tries int not null default 0,
  losses int not null default 0,
  next_try_at timestamptz not null,
  place text,
  created_at timestamptz not null,
  started_at timestamptz,
  finished_at timestamptz,
  primary key (shard_id, gang_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index gang_waiting on hwqueue.gang (shard_id, rank, position) where state = 'waiting';
create index gang_finished on hwqueue.gang (shard_id, finished_at) where finished_at is not null;
comment on table hwqueue.gang is 'leases that start together: its members are the leases with its gang_id';
comment on column hwqueue.gang.rank is 'that of its first member: what starts first; then position';
comment on column hwqueue.gang.together is
  'domains, the first that will do: all members run in one place of it; {}: anywhere';
comment on column hwqueue.gang.same is 'node labels whose values are equal for all members';
comment on column hwqueue.gang.on_lost is
  'what happens when a member that was running waits again: stop (the others start again with it) or'
  ' replace (the others go on)';
comment on column hwqueue.gang.hold is 'how long its nodes have for fetching their members';
comment on column hwqueue.gang.state is
  'waiting, reserved, running, stopping, cancelling; then completed, failed or cancelled';
comment on column hwqueue.gang.reason is 'why it was not reserved at the last try, or why it stops';
comment on column hwqueue.gang.tries is 'how often it was not reserved since it waits';
comment on column hwqueue.gang.losses is 'how often it has lost a member, or a reservation';
comment on column hwqueue.gang.place is 'where its members are, of the domain that they are together in';

create table hwqueue.gang_member (
  shard_id int not null,
  gang_id uuid not null,
  ordinal int not null,
  lease_id uuid not null,
  primary key (shard_id, gang_id, ordinal)
);
comment on table hwqueue.gang_member is 'the roster of a gang; the rows stay as long as the gang does';
comment on column hwqueue.gang_member.ordinal is 'the rank of the member in the job, from 0';

-- Inserted by whatever ends, puts back or fetches a member, so that no such call waits for the gang.
create table hwqueue.gang_change (
  shard_id int not null,
  change_id bigint generated always as identity,
  gang_id uuid not null,
  primary key (shard_id, change_id)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
create index gang_change_gang on hwqueue.gang_change (gang_id);
comment on table hwqueue.gang_change is
  'a member was fetched, put back or has ended: reap updates the state of its gang';

alter table hwqueue.lease add column gang_id uuid;
alter table hwqueue.claim add column gang_id uuid, add column is_reserved boolean;
alter table hwqueue.node_state add column has_reserved boolean not null default false;
alter type hwqueue.spawn_request add attribute gang_id uuid;
comment on column hwqueue.lease.gang_id is 'the gang that it starts with; null: it starts alone';
comment on column hwqueue.claim.gang_id is 'as in lease';
comment on column hwqueue.claim.is_reserved is
  'its node has not fetched it yet; null: it has, as every claim that a node has asked for';
comment on column hwqueue.node_state.has_reserved is 'claims of the node may be reserved';

insert into hwqueue.lease_transition (from_state, to_state, cause) values ('scheduled', 'claimed', 'reserve');
