-- For operators. The functions and views come from sql/.

-- HTTP API: who may call it, and reads that page and filter.
-- Of a token's secret only the sha256 is here. Tenant null: all of them. A name is never given twice, so that what its
-- bearer did can be told for ever.
create table hwqueue.api_token (
  shard_id int not null,
  name text not null,
  secret_sha256 bytea not null check (octet_length(secret_sha256) = 32),
  role text not null check (role in ('producer', 'viewer', 'operator', 'admin')),
  tenant text,
  created_at timestamptz not null,
  created_by text not null,
  expires_at timestamptz,
  used_at timestamptz,
  revoked_at timestamptz,
  revoked_by text,
  primary key (shard_id, name)
);
create unique index api_token_secret on hwqueue.api_token (shard_id, secret_sha256);
comment on column hwqueue.api_token.used_at is 'to the hour: a row that is updated at every request would be read ever slower';

drop function if exists hwqueue.list_leases(text, text, text, int, uuid, int);
drop function if exists hwqueue.list_nodes(text, int);

-- Metrics: what ended, minute by minute.
-- Running totals of a queue as they stood at the end of a minute (of the newest minute: as they stand). What happened in a minute is
-- the difference to the row before it; a minute in which nothing ended has no row. Written by roll_up alone.
create table hwqueue.minute_stat (
  shard_id int not null,
  queue_id int not null,
  minute timestamptz not null,
  completed bigint not null default 0,
  failed bigint not null default 0,
  cancelled bigint not null default 0,
  attempts_failed bigint not null default 0,
  attempts_expired bigint not null default 0,
  attempts_superseded bigint not null default 0,
  attempts_released bigint not null default 0,
  attempts_cancelled bigint not null default 0,
  retried bigint not null default 0,
  wait_seconds double precision not null default 0,
  wait_counts bigint[] not null,
  run_seconds double precision not null default 0,
  run_counts bigint[] not null,
  primary key (shard_id, queue_id, minute)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on column hwqueue.minute_stat.failed is 'leases that are dead: no attempt left, or a deadline passed';
comment on column hwqueue.minute_stat.attempts_failed is 'claims that ended so, whether or not another attempt followed; likewise the others';
comment on column hwqueue.minute_stat.retried is 'claims that failed, expired or were superseded and whose lease went back';
comment on column hwqueue.minute_stat.wait_seconds is 'of completed leases: from claimable to claimed, summed up';
comment on column hwqueue.minute_stat.wait_counts is 'how many of them waited how long, by histogram_bounds; the last one: longer';
comment on column hwqueue.minute_stat.run_seconds is 'of completed leases: from claimed to completed; likewise run_counts';

-- Finished leases that got another chance, until they have been counted.
create table hwqueue.requeued (
  shard_id int not null,
  queue_id int not null,
  state text not null,
  finished_at timestamptz not null,
  lease_id uuid not null
);
create index requeued_finished on hwqueue.requeued (finished_at);

-- By when they ended, for roll_up. Without the shard: see 0003.
create index attempt_ended on hwqueue.attempt (ended_at);

-- What finished before this upgrade is not counted.
alter table hwqueue.reap_cursor
  add column counted_to timestamptz not null default '-infinity',
  add column count_noted_at timestamptz not null default '-infinity',
  add column count_noted_before xid8 not null default '0';
update hwqueue.reap_cursor set counted_to = now() where exists (select 1 from hwqueue.finished);
comment on column hwqueue.reap_cursor.counted_to is 'what ended before is in minute_stat, and nothing more can come from before';
comment on column hwqueue.reap_cursor.count_noted_before is
  'only transactions below this one can still bring what ended before count_noted_at (roll_up)';

-- events: who did what. A ring of 16 days: a row goes where the number of its day, modulo 16, says. The partitions are made here once and
-- for all, since making or dropping one later would lock the table against everybody; what is old is truncated by prune.
alter table hwqueue.shard add column event_base bigint not null default 0;
comment on column hwqueue.shard.event_base is 'added to the ids of events, so that they rise on a server whose transaction ids do not';

create sequence hwqueue.event_number;
create table hwqueue.event (
  shard_id int not null,
  slot smallint not null,
  event_id bigint not null,
  at timestamptz not null,
  code text not null,
  lease_id uuid,
  node_id uuid,
  queue text,
  class_id bigint,
  actor text not null,
  message text not null,
  detail jsonb
) partition by list (slot);
comment on table hwqueue.event is 'who did what; not for claims and completions';
comment on column hwqueue.event.slot is 'number of its day, modulo 16';
comment on column hwqueue.event.event_id is 'the transaction''s id x 2^20, and a running number';
comment on column hwqueue.event.queue is 'its name: ids of queues that are gone say nothing';
create index event_order on hwqueue.event (shard_id, event_id);
create index event_lease on hwqueue.event (shard_id, lease_id, event_id) where lease_id is not null;
create index event_node on hwqueue.event (shard_id, node_id, event_id) where node_id is not null;
create index event_queue on hwqueue.event (shard_id, queue, event_id) where queue is not null;
create index event_class on hwqueue.event (shard_id, class_id, event_id) where class_id is not null;
create index event_code on hwqueue.event (shard_id, code, event_id);
create index event_actor on hwqueue.event (shard_id, actor, event_id);
create table hwqueue.event_0 partition of hwqueue.event for values in (0);
create table hwqueue.event_1 partition of hwqueue.event for values in (1);
create table hwqueue.event_2 partition of hwqueue.event for values in (2);
create table hwqueue.event_3 partition of hwqueue.event for values in (3);
create table hwqueue.event_4 partition of hwqueue.event for values in (4);
create table hwqueue.event_5 partition of hwqueue.event for values in (5);
create table hwqueue.event_6 partition of hwqueue.event for values in (6);
create table hwqueue.event_7 partition of hwqueue.event for values in (7);
create table hwqueue.event_8 partition of hwqueue.event for values in (8);
create table hwqueue.event_9 partition of hwqueue.event for values in (9);
create table hwqueue.event_10 partition of hwqueue.event for values in (10);
create table hwqueue.event_11 partition of hwqueue.event for values in (11);
create table hwqueue.event_12 partition of hwqueue.event for values in (12);
create table hwqueue.event_13 partition of hwqueue.event for values in (13);
create table hwqueue.event_14 partition of hwqueue.event for values in (14);
create table hwqueue.event_15 partition of hwqueue.event for values in (15);

-- What reap has told and what is not over: so each change is told once.
create table hwqueue.silent_node (
  shard_id int not null,
  node_id uuid not null,
  reported_at timestamptz not null,
  primary key (shard_id, node_id)
);
create table hwqueue.unmatched_class (
  shard_id int not null,
  class_id bigint not null,
  reported_at timestamptz not null,
  primary key (shard_id, class_id)
);
comment on table hwqueue.unmatched_class is 'classes with something ready that no live node may run, by what the nodes are';

-- reap looks at nodes and classes in turn for what it has to tell.
alter table hwqueue.reap_cursor
  add column watched_node uuid not null default '00000000-0000-0000-0000-000000000000',
  add column watched_class bigint not null default 0;
comment on column hwqueue.reap_cursor.watched_node is 'how far nodes have been looked at; likewise watched_class';

drop function if exists hwqueue.ask_to_stop(uuid[], timestamptz, text, timestamptz, int);

-- upkeep: any number of workers prune, one at a time
drop function if exists hwqueue.prune(int, int);
drop function if exists hwqueue.prune_unused(int, timestamptz, int);
drop function if exists hwqueue.purge_queues(int, int);
alter table hwqueue.prune_cursor add column pruned_at timestamptz not null default '-infinity';
comment on column hwqueue.prune_cursor.pruned_at is 'when somebody last pruned';

-- engine: what a class must meet in its own place, so that many classes can be asked at once
create table hwqueue.class_rule (
  shard_id int not null,
  class_id bigint not null,
  term_id bigint not null,
  use text not null,
  most bigint,
  is_self boolean not null
);
comment on table hwqueue.class_rule is
  'the terms by whose count in a node''s own place a class is kept from it; away, toward, cap and skew that are required on their own; most: of cap and skew, the limit';
create index class_rule_class on hwqueue.class_rule (shard_id, class_id);
insert into hwqueue.class_rule (shard_id, class_id, term_id, use, most, is_self)
select c.shard_id, c.class_id, t.term_id, t.use, r.most, (c.terms #>> array[r.index, 'self'])::boolean
from hwqueue.placement_class c
cross join lateral (
  select e.value ->> 'term' as index, null::bigint as most from jsonb_array_elements(c.required) e where e.value ? 'term'
  union all
  select e.value ->> 'term', (e.value ->> 'max_per_domain')::bigint from jsonb_array_elements(c.spread) e where e.value ? 'max_per_domain'
) r
join hwqueue.affinity_term t on t.shard_id = c.shard_id and t.digest = (c.terms #>> array[r.index, 'digest'])::bigint
where c.terms <> '[]' and t.spec #> '{all,0,lease}' is null;

alter table hwqueue.node_state add column met_blocked boolean not null default false;
comment on column hwqueue.node_state.met_blocked is 'its last claims came upon classes that may not run there now: the next one asks all at once first';
drop function if exists hwqueue.take_front(bigint, xid8, int, text[], int, bigint, bigint, hwqueue.headroom, int, timestamptz, int);

-- engine: the terms that a claim touches are read once
drop function if exists hwqueue.touched_terms(hwqueue.placement_class, uuid, hwqueue.node, int);
drop function if exists hwqueue.count_fact(bigint, text, boolean, boolean, jsonb, timestamptz, int);
create type hwqueue.touched_term as (term_id bigint, use text, domain text, place text, decides boolean, counts boolean);

-- engine: max_skew without a walk over all nodes
drop function if exists hwqueue.add_term(text, jsonb, text, hwqueue.placement_class, jsonb);
drop function if exists hwqueue.terms_reason(hwqueue.placement_class, uuid, hwqueue.node, jsonb, boolean, timestamptz, int);
drop function if exists hwqueue.enter_first(tid[], bigint[], uuid, timestamptz, int);
drop function if exists hwqueue.admit_class(hwqueue.placement_class, uuid, hwqueue.node, timestamptz, int);
alter type hwqueue.first_entered add attribute unlooked bigint, add attribute is_open boolean;

alter table hwqueue.node_state add column moved_xid xid8 not null default '0';
comment on column hwqueue.node_state.moved_xid is 'the transaction that last changed what the node is, or in which it came back to life';
create index node_state_moved on hwqueue.node_state (moved_xid);

alter table hwqueue.term_counter add column dropped_xid xid8;
comment on column hwqueue.term_counter.dropped_xid is 'of max_skew: the transaction that last took leases away; null for other terms';
update hwqueue.term_counter k set dropped_xid = '0' from hwqueue.affinity_term t where t.shard_id = k.shard_id and t.term_id = k.term_id and t.use = 'skew';
create index term_count_dropped on hwqueue.term_counter (term_id, dropped_xid) where dropped_xid is not null;

create table hwqueue.spread_fleet (
  shard_id int not null,
  fleet_key bigint not null,
  fleet_id bigint generated always as identity,
  places text[] not null,
  place_count int not null,
  places_digest bigint not null,
  dead uuid[] not null,
  doubtful uuid[] not null,
  live_until timestamptz not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, fleet_key, fleet_id)
);
comment on table hwqueue.spread_fleet is 'where leases may spread to: the places of live nodes, for a domain and a kind of nodes; the newest row counts';
comment on column hwqueue.spread_fleet.dead is 'nodes there that were dead and had claims';
comment on column hwqueue.spread_fleet.doubtful is 'nodes there that were dead, but for a sign of life that might not have been committed yet';
comment on column hwqueue.spread_fleet.live_until is 'until then no node can have died that lived';
comment on column hwqueue.spread_fleet.next_xid is 'it knows nothing of transactions from this one on, nor of those in unseen';

create table hwqueue.spread_floor (
  shard_id int not null,
  term_id bigint not null,
  floor_id bigint generated always as identity,
  places_digest bigint not null,
  least bigint not null,
  lowest text[] not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, term_id, floor_id)
);
comment on table hwqueue.spread_floor is 'the fewest leases of a max_skew term in one of the places of spread_fleet, when somebody last looked; the newest row counts';
comment on column hwqueue.spread_floor.lowest is 'up to 64 of the places that had so few';

-- engine: patience asks the fleet once, not at each claim
drop function if exists hwqueue.waits_for(hwqueue.placement_class, hwqueue.node, timestamptz, timestamptz, int);
drop function if exists hwqueue.extreme_affinity(hwqueue.placement_class, double precision, int, timestamptz, int);
create table hwqueue.class_range (
  shard_id int not null,
  class_id bigint not null,
  range_id bigint generated always as identity,
  best double precision,
  worst double precision,
  live_until timestamptz not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, class_id, range_id)
);
comment on table hwqueue.class_range is
  'how well the best and the worst of the live nodes that could run a class suit it, when somebody last looked; the newest row counts';
comment on column hwqueue.class_range.live_until is 'until then those two live; unseen and next_xid: as in spread_fleet';
