-- == Choices ==
-- Alternatives, leases or gangs, of which the first that gets room runs. The claim of one, or the
-- reservation of a gang, writes which it is; upkeep cancels the others.

create table hwqueue.choice (
  shard_id int not null,
  choice_id uuid not null,
  tenant text not null,
  alternatives int not null default 1,
  taken uuid,
  taken_at timestamptz,
  settled_at timestamptz,
  checked_at timestamptz not null,
  primary key (shard_id, choice_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index choice_unsettled on hwqueue.choice (shard_id, taken_at)
  where taken is not null and settled_at is null;
create index choice_checked on hwqueue.choice (shard_id, checked_at);
comment on table hwqueue.choice is 'a choice: of its alternatives one runs (spawn option one_of)';
comment on column hwqueue.choice.taken is
  'the lease or gang that was claimed or reserved first; it stays the choice when it waits again';
comment on column hwqueue.choice.settled_at is
  'when upkeep found that no other alternative is open; null: not since one was added';
comment on column hwqueue.choice.checked_at is 'when prune last checked whether its leases are gone';

create table hwqueue.choice_member (
  shard_id int not null,
  choice_id uuid not null,
  member_id uuid not null,
  is_gang boolean not null,
  primary key (shard_id, choice_id, member_id)
);
comment on table hwqueue.choice_member is 'the alternatives of a choice; the rows stay as long as it does';
comment on column hwqueue.choice_member.member_id is 'the lease, or with is_gang the gang';

alter table hwqueue.lease add column choice_id uuid;
alter table hwqueue.gang add column choice_id uuid;
alter table hwqueue.placement_class add column is_choice boolean not null default false;
alter type hwqueue.class_content add attribute is_choice boolean;
alter type hwqueue.spawn_request add attribute choice_id uuid;
comment on column hwqueue.lease.choice_id is 'the choice that it is an alternative of; null: of none';
comment on column hwqueue.gang.choice_id is 'as in lease';
comment on column hwqueue.placement_class.is_choice is
  'its leases are alternatives: each claim of one has to be the first of its choice';

-- other arguments and results
drop function if exists hwqueue.decide_class(bigint, uuid, timestamptz, smallint, bigint, hwqueue.node,
  timestamptz, int);
drop function if exists hwqueue.delete_granted(hwqueue.claim_request, bigint, smallint, bigint, bigint,
  bigint, timestamptz, uuid);

-- == Replacements ==
-- A lease that takes the place of another one: on its node, in its room, which is booked before the other one
-- is asked to stop.

create table hwqueue.replacement (
  shard_id int not null,
  lease_id uuid not null,
  old_lease uuid,
  service_id uuid,
  old_goes text not null,
  is_overlapping boolean not null,
  state text not null default 'waiting',
  node_id uuid,
  old_token bigint,
  old_at timestamptz,
  reason text,
  tries int not null default 0,
  next_try_at timestamptz not null,
  created_at timestamptz not null,
  primary key (shard_id, lease_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index replacement_due on hwqueue.replacement (shard_id, next_try_at);
create index replacement_old on hwqueue.replacement (shard_id, old_lease);
comment on table hwqueue.replacement is
  'a lease that is to take the place of another one (spawn option replaces); deleted once it has';
comment on column hwqueue.replacement.old_lease is 'the lease that it replaces; null: none is chosen yet';
comment on column hwqueue.replacement.service_id is 'it replaces a lease of this service; null: that lease';
comment on column hwqueue.replacement.old_goes is 'what becomes of the other one: cancel or requeue';
comment on column hwqueue.replacement.is_overlapping is
  'where there is room for both, the other one is asked to stop once this one runs';
comment on column hwqueue.replacement.state is
  'waiting; held (the other one waited, and waits on until this one is claimed); stopping (the other one is'
  ' asked to stop); overlapping (it is asked once this one runs)';
comment on column hwqueue.replacement.old_token is 'the claim of the other one that is asked to stop';
comment on column hwqueue.replacement.old_at is 'while it is held: since when the other one was claimable';
comment on column hwqueue.replacement.reason is 'why the place could not be taken at the last try';
alter type hwqueue.spawn_request add attribute replaces jsonb;
