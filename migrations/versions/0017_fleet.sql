-- Which nodes suit a class, remembered by upkeep with a digest of what the nodes were.

create type hwqueue.fleet_snapshot as (
  registered int,
  node_ids uuid[],
  none bit varying,
  live bit varying,
  open bit varying,
  digest bigint
);

create type hwqueue.class_fit as (
  class_id bigint,
  nodes bit varying,
  nodes_matching int,
  nodes_cordoned int,
  nodes_silent int,
  part text,
  expr jsonb,
  near_node uuid,
  nodes_near int,
  nodes_meeting int,
  nodes_serving int
);

create table hwqueue.class_fleet (
  shard_id int not null,
  class_id bigint not null,
  share double precision not null check (share between 0 and 1),
  looked_at timestamptz not null,
  digest bigint,
  nodes_matching int,
  nodes_cordoned int,
  nodes_silent int,
  part text,
  expr jsonb,
  near_node uuid,
  nodes_near int,
  nodes_meeting int,
  nodes_serving int,
  reported_at timestamptz,
  primary key (shard_id, class_id)
);
comment on table hwqueue.class_fleet is 'which part of the nodes suits a class, and what class_fits found out';
comment on column hwqueue.class_fleet.digest is
  'of the nodes it was found out of (scan_nodes); null: a claim has estimated the share, and nobody the rest';
comment on column hwqueue.class_fleet.reported_at is 'when an event told that leases wait that no live node may run; null: none does';
create index class_fleet_age on hwqueue.class_fleet (shard_id, looked_at);
create index class_fleet_unmatched on hwqueue.class_fleet (shard_id, class_id)
  where nodes_matching = 0 or reported_at is not null;

-- by itself: claims read the share of many classes, and this is a bit for each node
create table hwqueue.class_nodes (
  shard_id int not null,
  class_id bigint not null,
  digest bigint not null,
  nodes bit varying not null,
  primary key (shard_id, class_id)
);
comment on table hwqueue.class_nodes is 'the nodes that suit a class, by the numbers that they have with this digest';

insert into hwqueue.class_fleet (shard_id, class_id, share, looked_at, reported_at)
select r.shard_id, r.class_id, r.share, r.refreshed_at, t.reported_at
from hwqueue.class_reach r
left join hwqueue.unmatched_class t on t.shard_id = r.shard_id and t.class_id = r.class_id;

drop table hwqueue.class_reach;
drop table hwqueue.unmatched_class;

drop function if exists hwqueue.class_fits(bigint[], bit varying, bit varying, bit varying, timestamptz, int);
drop function if exists hwqueue.capacity_parts(bigint[], bit varying, bit varying, timestamptz, int);
drop function if exists hwqueue.expr_masks(jsonb[], bit varying, timestamptz, int);
drop function if exists hwqueue.part_reason(text, jsonb, hwqueue.placement_class, hwqueue.node, boolean, timestamptz);
drop function if exists hwqueue.reap_reaches(bigint, int, boolean, timestamptz, int);
drop function if exists hwqueue.within_budget(bigint[], int[]);
drop function if exists hwqueue.is_known_match(hwqueue.placement_class, timestamptz, int);
drop function if exists hwqueue.has_match(hwqueue.placement_class, timestamptz, int);
drop function if exists hwqueue.has_judged(hwqueue.placement_class, xid8[], xid8, int);
drop function if exists hwqueue.has_live_node(hwqueue.placement_class, bigint, timestamptz, int);
drop function if exists hwqueue.watch_classes(bigint, int, timestamptz, int);
drop function if exists hwqueue.note_unmatched(hwqueue.placement_class, timestamptz, int);
-- nobody read what it returned
drop function if exists hwqueue.refresh_reach(bigint[], int);
-- gives groups of nodes now, with other columns
drop function if exists hwqueue.fleet_failures(hwqueue.placement_class, jsonb, timestamptz, int);

-- Functions that are gone, or take something else than they did: a claim that finds the front of a queue does so
-- in one way.
drop function if exists hwqueue.first_live_entry(int, int);
drop function if exists hwqueue.only_mark(int, int);
drop function if exists hwqueue.lock_window(bigint, int, bigint[], text[], hwqueue.headroom, smallint, bigint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.checked_at_front(bigint, int, int);
drop function if exists hwqueue.before_checked(tid[], bigint[]);
drop function if exists hwqueue.take_front(bigint, xid8, xid8[], int, text[], int, bigint, bigint, hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.entries_at_head(hwqueue.profile_queue, hwqueue.node_state, hwqueue.queue_head, text[], int, bigint[], hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.take_at_head(hwqueue.profile_queue, hwqueue.node_state, hwqueue.queue_head, text[], int, hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.pick_entries(hwqueue.node_state, hwqueue.node_load, hwqueue.headroom, boolean, hwqueue.queue_head, int[], text[], int, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.take_best(bigint[], double precision[], int[], int, int, int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], bigint[], hwqueue.scan_starts, smallint, bigint, int, timestamptz, int);
