-- == Earmarks ==
-- A reservation may book room that is still in use. The node of such a claim takes no other work into that
-- room, and fetches the claim once the room is free.

alter table hwqueue.claim add column is_earmark boolean;
alter table hwqueue.queue add column earmarks smallint not null default 1;
comment on column hwqueue.claim.is_earmark is
  'reserved, and its room is still in use by others: its node cannot fetch it yet; null: of all others';
comment on column hwqueue.queue.earmarks is
  'how many gangs may have room kept for them on nodes that they could share; 0: none of this queue';
alter table hwqueue.placement_class add column max_run interval;
alter type hwqueue.class_content add attribute max_run interval;
comment on column hwqueue.placement_class.max_run is
  'how long a lease may run; then it is asked to stop, and its attempt fails; null: as long as it takes';
create index placement_class_bounded on hwqueue.placement_class (shard_id, queue_id, max_run)
  where max_run is not null;
alter table hwqueue.gang add column starts_by timestamptz;
comment on column hwqueue.gang.starts_by is
  'while it is earmarked: when its nodes have room for it at the latest; null: not known';
alter table hwqueue.node_state add column backfill_until timestamptz;
comment on column hwqueue.node_state.backfill_until is
  'until when leases that are over by then may use the room that is earmarked here; null: none may';
create index gang_earmarked on hwqueue.gang (shard_id, rank, position) where state = 'earmarked';
comment on column hwqueue.gang.state is
  'waiting, earmarked, reserved, running, stopping, cancelling; then completed, failed or cancelled';

drop function if exists hwqueue.get_gang(uuid, int);
drop function if exists hwqueue.list_gangs(text, int, timestamptz, int);
drop function if exists hwqueue.pick_leases(hwqueue.claim_request, hwqueue.node_state, hwqueue.headroom, int,
  bigint[], boolean);
drop function if exists hwqueue.core_use_of_claims(hwqueue.node);
drop function if exists hwqueue.node_usage_of_claims(hwqueue.node);
drop function if exists hwqueue.worker_is_full(uuid, int);
drop function if exists hwqueue.class_rooms(hwqueue.placement_class, int, timestamptz, int);
drop function if exists hwqueue.gang_places(bigint[], text[], text[], text, timestamptz, int);
drop function if exists hwqueue.assemble_gang(hwqueue.gang, timestamptz, int);
drop function if exists hwqueue.try_place(hwqueue.gang, hwqueue.scheduled[], uuid[], timestamptz, int);
drop function if exists hwqueue.reserve_members(hwqueue.gang, hwqueue.scheduled[], uuid[], timestamptz, int);
drop function if exists hwqueue.reserve_member(hwqueue.gang, hwqueue.scheduled, uuid, timestamptz, int);
drop function if exists hwqueue.next_gang_state(hwqueue.gang, int, int, int, int, int);
