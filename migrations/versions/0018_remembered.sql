-- What is remembered of classes and nodes: which nodes suit a class, and what a node found blocked.

drop function if exists hwqueue.class_fleets(bigint[], hwqueue.fleet_snapshot, boolean, timestamptz, int);
drop function if exists hwqueue.compute_class_fleets(bigint[], timestamptz, int);
drop function if exists hwqueue.class_fits(bigint[], hwqueue.fleet_snapshot, int, timestamptz, int);
drop function if exists hwqueue.is_known_in_full(int, int);
drop function if exists hwqueue.is_unmatched(hwqueue.class_fleet);
drop function if exists hwqueue.watch_class(hwqueue.class_fleet, bigint, timestamptz, int);
drop function if exists hwqueue.watch_classes(bigint, int, bigint, timestamptz, int);
drop function if exists hwqueue.reap_fleets(bigint, int, boolean, timestamptz, int);

drop type hwqueue.class_fit;
create type hwqueue.class_match as (
  class_id bigint,
  nodes bit varying,
  nodes_matching int,
  nodes_cordoned int,
  nodes_silent int,
  part text,
  expr jsonb,
  near bit varying,
  nodes_near int,
  nodes_meeting int,
  nodes_serving int
);

update hwqueue.class_fleet set digest = null where digest is not null;
alter table hwqueue.class_fleet
  drop column nodes_matching, drop column nodes_cordoned, drop column nodes_silent, drop column part, drop column expr,
  drop column near_node, drop column nodes_near, drop column nodes_meeting, drop column nodes_serving,
  add column unmatched boolean not null default false;
comment on table hwqueue.class_fleet is 'which part of the nodes suits a class';
comment on column hwqueue.class_fleet.unmatched is 'no live node that is not cordoned suited it when that was found out';
create index class_fleet_unmatched on hwqueue.class_fleet (shard_id, class_id) where unmatched or reported_at is not null;

drop table hwqueue.class_nodes;
create table hwqueue.class_nodes (
  shard_id int not null,
  class_id bigint not null,
  digest bigint not null,
  is_known boolean not null,
  unmatched boolean not null,
  nodes bit varying not null,
  part text,
  expr jsonb,
  others bit varying,
  meeting bit varying,
  serving bit varying,
  primary key (shard_id, class_id)
);
comment on table hwqueue.class_nodes is 'the nodes that suit a class, and what is in the way, by the numbers that nodes have with this digest';

-- Which classes a claim of a node need not look at because they are blocked, and what proves that they are.
create table hwqueue.node_candidates (
  shard_id int not null,
  node_id uuid not null,
  version bigint not null generated always as identity,
  queue_ids int[] not null,
  classes bigint[] not null,
  asks boolean not null,
  profile_id bigint not null,
  profile_version text not null,
  queue_versions text[] not null,
  node_moved xid8 not null,
  cpu_milli bigint,
  memory_mib bigint,
  term_ids bigint[] not null,
  places text[] not null,
  by_holders boolean[] not null,
  fleet_next xid8,
  fleet_unseen xid8[],
  until timestamptz not null,
  primary key (shard_id, node_id, version)
);
comment on table hwqueue.node_candidates is
  'classes that a claim of a node has to look at in these queues: all that it may run but those that are'
  ' blocked, which the other columns prove. The newest version counts';
comment on column hwqueue.node_candidates.asks is
  'whether some of the classes were blocked, which nothing here proves';
comment on column hwqueue.node_candidates.profile_version is
  'its xmin and ctid: what may run there; queue_versions: how long it waits';
comment on column hwqueue.node_candidates.node_moved is
  'node_state.moved_xid: with another one it may be another node';
comment on column hwqueue.node_candidates.cpu_milli is
  'with memory_mib: what the node had left when some classes did not fit; with no more they still do not';
comment on column hwqueue.node_candidates.term_ids is
  'with places and by_holders: the counts that block, as long as leases (or holders) are above 0 there';
comment on column hwqueue.node_candidates.fleet_next is
  'with fleet_unseen: which moves of nodes were seen, as in class_range; null: no class waits for one';
comment on column hwqueue.node_candidates.until is
  'when the first lease may have waited enough, or in 10 seconds: then it is asked again what is blocked';

-- So long as the best and the worst node give signs of life, what is known of them holds.
alter table hwqueue.class_range add column best_node uuid, add column worst_node uuid;
comment on column hwqueue.class_range.live_until is
  'infinity, unless a node may prove to be alive that has been silent for too long';
delete from hwqueue.class_range;
drop function if exists hwqueue.able_until(hwqueue.placement_class, bigint, uuid[], uuid, timestamptz, int);

drop function if exists hwqueue.blocked_classes(bigint[], hwqueue.node, timestamptz, int);
drop function if exists hwqueue.waiting_classes(bigint[], hwqueue.node, timestamptz, int);
drop function if exists hwqueue.few_waiting(bigint[], hwqueue.node, timestamptz, int);
drop function if exists hwqueue.eligible_classes(bigint, uuid, int, int);
drop function if exists hwqueue.fitting_classes(hwqueue.node, hwqueue.headroom, int[], text[], jsonb,
  bigint[], timestamptz, int);
drop function if exists hwqueue.head_classes(hwqueue.profile_queue, hwqueue.node_state, boolean, text[],
  bigint[], hwqueue.headroom, int);
drop function if exists hwqueue.entries_at_head(hwqueue.profile_queue, hwqueue.queue_head, boolean, text[], int,
  bigint[], hwqueue.headroom, int, timestamptz, int);

-- Functions that are gone, or take something else than they did.
drop function if exists hwqueue.kept_out_of(hwqueue.placement_class, uuid, hwqueue.node, jsonb, int);

-- they stand where their one caller called them
drop function if exists hwqueue.estimate_batch(bigint[], int);
drop function if exists hwqueue.merge_resources(jsonb, jsonb, text);
drop function if exists hwqueue.gate_of(text);
drop function if exists hwqueue.spread_profiles(jsonb, hwqueue.placement_class, int);
drop function if exists hwqueue.moment_words(timestamptz);
drop function if exists hwqueue.has_waiting(bigint, int);
drop function if exists hwqueue.tell_matched(bigint, boolean, int);
drop function if exists hwqueue.counted_before(timestamptz, int);
drop function if exists hwqueue.purge_finished(int, int, int);
drop function if exists hwqueue.purge_classes(int, int, int);
drop function if exists hwqueue.are_positions_behind(int);
drop function if exists hwqueue.grown_labels(jsonb, int);
drop function if exists hwqueue.live_places(text, timestamptz, int);

-- a node is judged by one function, all nodes by functions that say of what
drop function if exists hwqueue.profile_failures(jsonb, hwqueue.placement_class, jsonb, bigint, jsonb, text[], text[], text);
drop function if exists hwqueue.node_failures(jsonb, hwqueue.placement_class, hwqueue.node, hwqueue.node_load, jsonb, jsonb, text, timestamptz, int);
drop function if exists hwqueue.contended_part(int, int, text, text);
drop function if exists hwqueue.node_shortage(hwqueue.placement_class, hwqueue.node, hwqueue.node_load);
drop function if exists hwqueue.room_failures(int, int, int);
drop function if exists hwqueue.unlike_labels(hwqueue.placement_class, int);
drop function if exists hwqueue.unlike_others(hwqueue.placement_class, jsonb, timestamptz, int);
drop function if exists hwqueue.too_small_or_full(hwqueue.placement_class, int);

drop function if exists hwqueue.is_in_domain(uuid, text, text, int);
drop function if exists hwqueue.build_placement(jsonb, jsonb, jsonb, jsonb, jsonb, jsonb);
drop function if exists hwqueue.with_strength(jsonb, int);
drop function if exists hwqueue.target_words(jsonb, int);
drop function if exists hwqueue.forget_ended(hwqueue.profile, int);
drop function if exists hwqueue.named_nodes(hwqueue.placement_class);
drop function if exists hwqueue.room_holders(uuid, timestamptz, int);
drop function if exists hwqueue.prune_floors(int, int);
drop function if exists hwqueue.pending_target(hwqueue.placement_class, int);
