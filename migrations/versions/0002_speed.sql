-- What a claim filters and scores by stands beside "may run": one row read a class instead of three.
-- Both tables are a memory of what was judged; it is judged anew by the next claims.
delete from hwqueue.profile_eligibility;
delete from hwqueue.node_eligibility;
update hwqueue.profile set classes_seen = '0', classes_judged = '{}';
update hwqueue.node_state set classes_seen = '0', classes_judged = '{}';

alter table hwqueue.profile_eligibility
  add column task_name text not null,
  add column cpu_milli bigint not null,
  add column memory_mib bigint not null,
  add column gpu_count int not null,
  add column gpu_milli int not null,
  add column gpu_wanted uuid[] not null,
  add column custom jsonb;
alter table hwqueue.node_eligibility
  add column task_name text not null,
  add column cpu_milli bigint not null,
  add column memory_mib bigint not null,
  add column gpu_count int not null,
  add column gpu_milli int not null,
  add column gpu_wanted uuid[] not null,
  add column custom jsonb;

-- All that nodes of a profile without GPUs and custom countables may run of a queue, in one row.
create table hwqueue.profile_queue (
  shard_id int not null,
  profile_id bigint not null,
  queue_id int not null,
  classes bigint[] not null,
  task_names text[] not null,
  most_cpu_milli bigint not null,
  most_memory_mib bigint not null,
  scores_equal boolean not null,
  classes_seen xid8 not null,
  primary key (shard_id, profile_id, queue_id)
);
comment on column hwqueue.profile_queue.classes is 'up to 200 of them; 201 when there are more';
comment on column hwqueue.profile_queue.task_names is 'up to 50 of their tasks, each once; 51 when there are more';
comment on column hwqueue.profile_queue.most_cpu_milli is 'no class needs more; likewise memory';
comment on column hwqueue.profile_queue.scores_equal is 'no class is liked more or less than others: what comes first is a matter of age';
comment on column hwqueue.profile_queue.classes_seen is 'that of the profile';

-- What most claims must know of a node stands in the row that they lock.
alter table hwqueue.node_state
  add column profile_id bigint,
  add column on_fast_path boolean not null default false,
  add column has_limits boolean not null default false,
  add column heartbeat_timeout interval,
  add column pinned_queues int[] not null default '{}',
  add column generation bigint not null default 0,
  add column server_started_at timestamptz;
comment on column hwqueue.node_state.on_fast_path is
  'registered, not cordoned, without GPUs and custom countables: then its claims are ordered by age, mostly';
comment on column hwqueue.node_state.has_limits is 'claims on the node may set something aside';
comment on column hwqueue.node_state.pinned_queues is 'queues in which node_eligibility has rows of this node';
comment on column hwqueue.node_state.generation is 'of the shard, as long as the server has not been started since server_started_at';
update hwqueue.node_state s
set profile_id = n.profile_id, heartbeat_timeout = n.heartbeat_timeout,
    on_fast_path = n.deregistered_at is null and n.cordoned_at is null and n.gpu_ids = '{}' and n.custom = '{}',
    has_limits = n.slots is not null or n.cpu_milli is not null or n.memory_mib is not null or n.gpu_ids <> '{}' or n.custom <> '{}'
from hwqueue.node n
where n.shard_id = s.shard_id and n.node_id = s.node_id;

-- What is in use on a node, apart from the row that is locked: it changes with every counted claim, and while a snapshot is held
-- a row that is updated without end is slow to fetch. The newest version counts; after 32 updates comes a fresh one.
create table hwqueue.node_load (
  shard_id int not null,
  node_id uuid not null,
  version bigint not null,
  updates int not null default 0,
  claim_count int not null default 0,
  cpu_used bigint not null default 0,
  memory_used bigint not null default 0,
  gpu_used int[] not null default '{}',
  custom_used jsonb not null default '{}',
  primary key (shard_id, node_id, version)
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on column hwqueue.node_load.gpu_used is 'thousandths in use, device by device, in the order of node.gpu_ids';
comment on column hwqueue.node_load.claim_count is 'counted claims; claims that set nothing aside are not counted';
insert into hwqueue.node_load (shard_id, node_id, version, claim_count, cpu_used, memory_used, gpu_used, custom_used)
select s.shard_id, s.node_id, 1, s.claim_count, s.cpu_used, s.memory_used, s.gpu_used, s.custom_used from hwqueue.node_state s;
alter table hwqueue.node_state
  drop column claim_count, drop column cpu_used, drop column memory_used, drop column gpu_used, drop column custom_used;

-- Where the live entries of an order begin, one mark for each tier and rank: below it nothing lives and nothing can come.
-- class_id 0: the order of the whole queue. Rows are added and deleted; the newest version counts.
create table hwqueue.low_water (
  shard_id int not null,
  queue_id int not null,
  class_id bigint not null,
  version bigint not null,
  tiers smallint[] not null default '{}',
  ranks bigint[] not null default '{}',
  positions bigint[] not null default '{}',
  moved bigint[] not null default '{}',
  primary key (shard_id, queue_id, class_id, version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on column hwqueue.low_water.moved is 'the version that moved each mark last';
insert into hwqueue.low_water (shard_id, queue_id, class_id, version)
select q.shard_id, q.queue_id, 0, 0 from hwqueue.queue q;

-- How far marks may go. Positions up to drawn_position were drawn by transactions below drawn_before; once those have ended,
-- it is safe: no uncommitted spawn, of any length, can bring a lower one. The newest version counts.
create table hwqueue.position_horizon (
  shard_id int not null,
  version bigint not null,
  safe_position bigint not null,
  drawn_position bigint not null,
  drawn_before xid8 not null,
  primary key (shard_id, version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
insert into hwqueue.position_horizon (shard_id, version, safe_position, drawn_position, drawn_before)
select s.shard_id, 0, 0, 0, '0' from hwqueue.shard s;

-- Postgres parses a table's checks again for every statement that writes to it: some microseconds of a claim and more of its
-- settlement. What they said is kept by the functions, the only way in, and by the tests.
alter table hwqueue.claim drop constraint claim_check, drop constraint claim_stop_reason_check;
alter table hwqueue.lease
  drop constraint lease_check, drop constraint lease_check1, drop constraint lease_attempt_count_check,
  drop constraint lease_max_attempts_check, drop constraint lease_claim_timeout_check;

-- Finished leases by age, apart, so that the last update of a lease changes no index and stays on its page.
create table hwqueue.finished (
  shard_id int not null,
  queue_id int not null,
  state text not null,
  finished_at timestamptz not null,
  lease_id uuid not null,
  primary key (shard_id, queue_id, state, finished_at, lease_id)
);
insert into hwqueue.finished (shard_id, queue_id, state, finished_at, lease_id)
select l.shard_id, l.queue_id, l.state, l.finished_at, l.lease_id from hwqueue.lease l where l.finished_at is not null;
drop index hwqueue.lease_finished;

-- When reap last ran and where its scans start. Rows are added and deleted, never updated, and the newest version counts: the last
-- entry of the index is found at once, however many dead ones an old snapshot keeps.
create table hwqueue.reap_cursor (
  shard_id int not null,
  version bigint not null,
  reaped_at timestamptz not null default '-infinity',
  swept_at timestamptz not null default '-infinity',
  claims_from timestamptz not null default '-infinity',
  deadlines_from timestamptz not null default '-infinity',
  scheduled_from timestamptz not null default '-infinity',
  noted_at timestamptz not null default '-infinity',
  noted_before xid8 not null default '0',
  estimated_at timestamptz not null default '-infinity',
  class_id bigint not null default 0,
  primary key (shard_id, version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on column hwqueue.reap_cursor.swept_at is 'when the scans last began at the very start';
comment on column hwqueue.reap_cursor.claims_from is 'no claim has an earlier check_at, and none can get one';
comment on column hwqueue.reap_cursor.deadlines_from is 'the same of ready entries and their deadlines';
comment on column hwqueue.reap_cursor.scheduled_from is 'the same of scheduled entries and available_at';
comment on column hwqueue.reap_cursor.noted_before is
  'only transactions below this one can still bring what lies before noted_at: once they have ended, marks may go up to it';
comment on column hwqueue.reap_cursor.class_id is 'how far classes have been looked at that may have no estimate of their reach';
insert into hwqueue.reap_cursor (shard_id, version) select s.shard_id, 0 from hwqueue.shard s;

-- By when a lease fails, but never earlier than it was written: what is new comes behind the mark.
drop index hwqueue.ready_deadline;
create index ready_deadline on hwqueue.ready (shard_id, greatest(deadline, eligible_at)) where deadline is not null;

create index class_reach_age on hwqueue.class_reach (shard_id, refreshed_at);

-- How far prune has looked for classes and profiles that nothing needs: one row a shard.
create table hwqueue.prune_cursor (
  shard_id int primary key,
  class_id bigint not null default 0,
  profile_id bigint not null default 0
);
insert into hwqueue.prune_cursor (shard_id) select s.shard_id from hwqueue.shard s;

-- To find what hangs on a dropped queue, and who has been gone for long, without reading every class and node.
create index placement_class_queue on hwqueue.placement_class (shard_id, queue_id);
create index node_deregistered on hwqueue.node (shard_id, deregistered_at) where deregistered_at is not null;

-- Autovacuum and fill factors; docs/explanation/upkeep.md tells the reasons.
alter table hwqueue.ready set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
alter table hwqueue.claim set (autovacuum_vacuum_insert_threshold = -1);
alter table hwqueue.scheduled set (autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
alter table hwqueue.lease set (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
alter table hwqueue.finished set (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
alter table hwqueue.attempt set (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
alter table hwqueue.idempotency set (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
alter table hwqueue.profile set (fillfactor = 50, autovacuum_vacuum_threshold = 500);

-- On tables that have just been made all indexes seem as good as each other, and the planner takes the one made last, even for its
-- first column alone. That should be the key. (lease is large, so there the other one gives way.)
alter table hwqueue.claim drop constraint claim_pkey, add constraint claim_pkey primary key (shard_id, lease_id);
alter table hwqueue.profile drop constraint profile_pkey, add constraint profile_pkey primary key (shard_id, profile_id);
alter table hwqueue.node drop constraint node_pkey, add constraint node_pkey primary key (shard_id, node_id);
alter table hwqueue.placement_class
  drop constraint placement_class_pkey, add constraint placement_class_pkey primary key (shard_id, class_id);
alter table hwqueue.class_reach drop constraint class_reach_pkey, add constraint class_reach_pkey primary key (shard_id, class_id);
alter table hwqueue.profile_eligibility
  drop constraint profile_eligibility_pkey,
  add constraint profile_eligibility_pkey primary key (shard_id, profile_id, queue_id, class_id);
alter table hwqueue.node_eligibility
  drop constraint node_eligibility_pkey,
  add constraint node_eligibility_pkey primary key (shard_id, node_id, queue_id, class_id);
drop index hwqueue.lease_class;
create index lease_class on hwqueue.lease (class_id, shard_id);

drop function if exists hwqueue.claim_leases(hwqueue.node_state, hwqueue.queue[], int, text[], interval, timestamptz, int);
drop function if exists hwqueue.claim_candidates(hwqueue.node, hwqueue.headroom, hwqueue.queue[], text[], jsonb, int, int, timestamptz, int);
drop function if exists hwqueue.fitting_classes(hwqueue.node, hwqueue.headroom, hwqueue.queue[], text[], jsonb, int);
drop function if exists hwqueue.ready_front(hwqueue.queue[], bigint[], int, timestamptz, int);
drop function if exists hwqueue.grant_lease(hwqueue.ready, boolean, hwqueue.node, interval, bigint, timestamptz, int, hwqueue.node_state);
drop function if exists hwqueue.open_queues(text[], int);
drop function if exists hwqueue.check_claim_arguments(text[], int, interval);
drop function if exists hwqueue.lease_score(hwqueue.queue, double precision, double precision);
drop function if exists hwqueue.fit_score(hwqueue.placement_class, double precision, hwqueue.headroom);
drop function if exists hwqueue.gpu_share(hwqueue.placement_class, hwqueue.headroom);
drop function if exists hwqueue.judge_classes(hwqueue.node, hwqueue.node_state, int);
drop function if exists hwqueue.node_headroom(hwqueue.node, hwqueue.node_state);
drop function if exists hwqueue.allocate_room(hwqueue.placement_class, hwqueue.node, int[], hwqueue.node_state);
drop function if exists hwqueue.class_reasons(hwqueue.placement_class, hwqueue.node, hwqueue.node_state);
drop function if exists hwqueue.adopted_devices(hwqueue.placement_class, hwqueue.node, hwqueue.node_state, jsonb);
drop function if exists hwqueue.idle_state(hwqueue.node);
drop function if exists hwqueue.beat_claim(uuid, uuid, bigint, interval, timestamptz, int);
drop function if exists hwqueue.reap(int, int);
drop function if exists hwqueue.reap_deadlines(int, timestamptz, int);
drop function if exists hwqueue.promote_due(int[], int, timestamptz, int);
-- Functions that are replaced by others or give another type back.
drop function if exists hwqueue.prepare_spawn(hwqueue.queue, int, text, jsonb, jsonb, jsonb, timestamptz);
drop function if exists hwqueue.spawn_class(hwqueue.queue, text, jsonb, int);
drop function if exists hwqueue.spawn_class_key(text, jsonb);
drop function if exists hwqueue.check_object(jsonb, text[], text, text);
drop function if exists hwqueue.check_depth(jsonb, text, text);
drop function if exists hwqueue.check_contradictions(jsonb, text);

-- A spawn that is read and checked and only needs writing down. What its class says is not copied.
drop function if exists hwqueue.reserve_keys(hwqueue.spawn_request[], int, int);
drop function if exists hwqueue.write_spawns(hwqueue.spawn_request[], hwqueue.queue, timestamptz, int);
drop type hwqueue.spawn_request;
create type hwqueue.spawn_request as (
  ordinal int,
  lease_id uuid,
  own_id boolean,
  position bigint,
  class_id bigint,
  task_name text,
  params jsonb,
  headers jsonb,
  priority smallint,
  max_attempts smallint,
  retry jsonb,
  claim_timeout interval,
  deadline timestamptz,
  available_at timestamptz,
  idempotency_key text,
  stands_for uuid,  -- the lease that the key stands for, when that is another one
  notify boolean
);

drop function if exists hwqueue.prune_classes(int, timestamptz, int);
drop function if exists hwqueue.prune_profiles(int, timestamptz, int);
