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
  'its xmin: what may run there; queue_versions: how long it waits';
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
drop function if exists hwqueue.front_classes(hwqueue.profile_queue, hwqueue.node_state, boolean, text[],
  bigint[], hwqueue.headroom, int);
drop function if exists hwqueue.front_entries(hwqueue.profile_queue, hwqueue.queue_look, boolean, text[], int,
  bigint[], hwqueue.headroom, int, timestamptz, int);
