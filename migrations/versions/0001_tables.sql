-- All tables of hwqueue, each once. docs/explanation/storage.md explains what lives where, and why.
--
-- A lease that has not ended has exactly one row in scheduled, ready or claim; one that has ended has a
-- row in outcome. That row is the lease's mutex: the session that locks it decides what happens to the
-- lease.
--
-- Why some things here look unusual:
-- * Newest version counts. A row that is updated all the time is slow to read under an old snapshot, which
--   keeps its dead tuples. Such tables have a column that rises (version, fleet_id ...): a change inserts
--   a row and deletes older ones, and a read takes the last entry of the index.
-- * Order of indexes. On a young table all indexes have one page, and the planner takes the one created
--   last, even for its first column alone. That must be the primary key, so some tables add it after other
--   indexes.
-- * Indexes without the shard. Where few rows live among many dead tuples, the planner takes the smallest
--   index that it can use at all, if only for the shard. Rows of claim, lease and outcome are looked up by
--   key, so their other indexes do not begin with the shard. Nodes, times and classes are not shared
--   between shards anyway.
-- * Few checks. Postgres parses a table's checks again in each statement that writes to it, which costs
--   some microseconds of a claim. What lease, claim and outcome may hold is checked by the functions,
--   which are the only way in, and by the tests.
-- * Settings of autovacuum and fill factors: docs/explanation/upkeep.md says why.


-- == What is installed ==

-- What `hwqueue db upgrade` installed last. Clients read it when they start.
create table hwqueue.schema_info (
  singleton boolean not null default true check (singleton),
  revision text not null,
  bundle_sha256 text not null,
  package_version text not null,
  roles_installed boolean not null,
  applied_at timestamptz not null default now(),
  primary key (singleton)
);

-- One row for each shard. Claim tokens begin with its generation, which rises when the server's identity,
-- its timeline or the table's file changes, so that tokens keep rising over a failover, a restore or a
-- copy.
create table hwqueue.shard (
  shard_id int not null check (shard_id >= 0),
  generation bigint not null default 1 check (generation between 1 and 4194303),
  system_identifier bigint,
  timeline int,
  server_started_at timestamptz,
  created_at timestamptz not null default now(),
  event_base bigint not null default 0,
  storage_path text,
  event_days int not null default 14 check (event_days between 1 and 14),
  node_expiry interval default '7 days',
  wake_key uuid not null default gen_random_uuid(),
  primary key (shard_id)
);
comment on column hwqueue.shard.event_base is
  'added to the ids of events, so that they rise on a server whose transaction ids do not';
comment on column hwqueue.shard.storage_path is
  'file of this table when server_started_at was written: every copy and every restore has another one';
comment on column hwqueue.shard.event_days is
  'for how many whole days prune keeps events; set_event_retention';
comment on column hwqueue.shard.node_expiry is
  'how long a node may be silent before prune deregisters it; null: for ever; set_node_expiry';
comment on column hwqueue.shard.wake_key is 'keeps names of queues out of notifications';
insert into hwqueue.shard (shard_id) values (0);


-- == Queues ==

-- A queue and its policy.
create table hwqueue.queue (
  shard_id int not null,
  queue_id int generated always as identity,
  name text not null,
  claim_timeout interval not null,
  heartbeat_interval interval not null,
  poll_interval interval not null,
  max_attempts smallint not null check (max_attempts between 1 and 1000),
  retry jsonb not null,
  ageing_step interval not null check (ageing_step >= interval '0'),
  notify boolean not null,
  reap_grace interval not null check (reap_grace >= interval '0'),
  max_params_bytes int not null check (max_params_bytes between 1 and 104857600),
  max_result_bytes int not null check (max_result_bytes between 1 and 104857600),
  window_size int not null check (window_size between 1 and 10000),
  probe_size int not null check (probe_size between 0 and 100000),
  weight_affinity double precision not null check (weight_affinity between 0 and 1000),
  weight_fit double precision not null check (weight_fit between 0 and 1000),
  weight_spread double precision not null check (weight_spread between 0 and 1000),
  retain_completed interval not null check (retain_completed >= interval '0'),
  retain_failed interval not null check (retain_failed >= interval '0'),
  paused_at timestamptz,
  dropped_at timestamptz,
  dropped_before xid8,
  created_at timestamptz not null,
  patience interval not null default '2 seconds',
  failure_domain text not null default 'rack',
  primary key (shard_id, queue_id)
);
create unique index queue_name on hwqueue.queue (shard_id, name) where dropped_at is null;
comment on column hwqueue.queue.window_size is 'entries of the global order that a claim walks';
comment on column hwqueue.queue.probe_size is 'classes whose head a claim may look up beyond the window';
comment on column hwqueue.queue.dropped_before is
  'transactions from this one on cannot have found the queue (purge_queues)';
comment on column hwqueue.queue.failure_domain is
  'of services that have none of their own: node, rack or label:KEY';

-- Set by a claim that found its queue empty. The spawn that sees it sends a notification and clears it.
create table hwqueue.queue_signal (
  shard_id int not null,
  queue_id int not null,
  waiting_since timestamptz,
  primary key (shard_id, queue_id)
) with (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- The spawn options that the leases of a task have by default (set_task).
create table hwqueue.task (
  shard_id int not null,
  name text not null,
  defaults jsonb not null,
  set_at timestamptz not null,
  set_by text not null,
  primary key (shard_id, name)
);
comment on column hwqueue.task.defaults is 'spawn options, as they were given; a spawn''s own options win';


-- == Classes ==

-- Everything that decides where and whether a lease may run: leases that ask the same share a class. Two
-- sessions that meet the same new class at once insert a row each and do not wait for each other: later
-- spawns use the lower class_id, the other one drains and is pruned.
create table hwqueue.placement_class (
  shard_id int not null,
  class_id bigint generated always as identity,
  digest bytea not null,
  queue_id int not null,
  task_name text not null,
  tenant text not null,
  service_id uuid,
  labels jsonb not null,
  placement jsonb not null,
  required jsonb not null,
  preferred jsonb not null,
  anchors text[] not null,
  is_pinned boolean not null,
  cpu_milli bigint not null default 0 check (cpu_milli >= 0),
  memory_mib bigint not null default 0 check (memory_mib >= 0),
  gpu_count int not null default 0 check (gpu_count >= 0),
  gpu_milli int not null default 0 check (gpu_milli between 0 and 999),
  gpu_wanted uuid[] not null default '{}',
  custom jsonb,
  created_xid xid8 not null,
  created_at timestamptz not null,
  retired_at timestamptz,
  retired_before xid8,
  spread jsonb not null default '[]',
  terms jsonb not null default '[]',
  target uuid,
  terms_written boolean not null default false,
  away_from uuid[] not null default '{}',
  patience interval,
  tolerate jsonb not null default '[]',
  trusts text[] not null default '{}',
  cpu_isolation text,
  gpu_exclusivity text,
  waits boolean not null default false,
  is_woken boolean not null default false,
  cost int not null default 1 check (cost > 0)
);
create index placement_class_digest on hwqueue.placement_class (shard_id, digest);
create index placement_class_retired on hwqueue.placement_class (shard_id, retired_at)
  where retired_at is not null;
create index placement_class_anchors on hwqueue.placement_class using gin (anchors);
create index placement_class_labels on hwqueue.placement_class using gin (labels jsonb_path_ops);
-- for prune: what belongs to a dropped queue
create index placement_class_queue on hwqueue.placement_class (shard_id, queue_id);
alter table hwqueue.placement_class add primary key (shard_id, class_id);
create index placement_class_asks on hwqueue.placement_class using gin (terms jsonb_path_ops)
  where terms <> '[]';
create index placement_class_service on hwqueue.placement_class (shard_id, service_id)
  where service_id is not null;
create index placement_class_terms on hwqueue.placement_class (shard_id, class_id)
  where terms <> '[]' and not terms_written;
create index placement_class_waits on hwqueue.placement_class (shard_id, class_id) where waits;
create index placement_class_created on hwqueue.placement_class (shard_id, created_xid, class_id);
comment on column hwqueue.placement_class.anchors is
  'the alternatives of one required positive equality, {*} if there is none: what a node is looked up by';
comment on column hwqueue.placement_class.is_pinned is
  'names a node or a resource: judged per node, not per profile';
comment on column hwqueue.placement_class.gpu_milli is
  'share of one device in thousandths; gpu_count is then 1';
comment on column hwqueue.placement_class.created_xid is
  'lets a claim find the classes it has not judged yet';
comment on column hwqueue.placement_class.retired_before is
  'transactions from this one on cannot have found the class unretired (prune_classes)';
comment on column hwqueue.placement_class.terms is
  'what it asks about other leases, in the order of the indexes in required, preferred and spread';
comment on column hwqueue.placement_class.target is 'the only lease of this class: a term names it';
comment on column hwqueue.placement_class.away_from is
  'services that its own one keeps away from: required of it, too';
comment on column hwqueue.placement_class.patience is 'null: the queue''s';
comment on column hwqueue.placement_class.trusts is
  'trust domains that its requirements mention: attestations expire, so a claim looks again';
comment on column hwqueue.placement_class.cpu_isolation is
  'the class asked for; null: whatever the node''s default is. Likewise gpu_exclusivity';
comment on column hwqueue.placement_class.waits is
  'it must be with a lease that has not started yet: nobody judges it before that';
comment on column hwqueue.placement_class.is_woken is
  'created_xid is of the transaction that made it a candidate, not of the one that wrote it';
comment on column hwqueue.placement_class.cost is
  'what judging a node for it costs at most, in plain expressions (placement_cost)';

-- What operators said about a service.
create table hwqueue.service (
  shard_id int not null,
  service_id uuid not null,
  failure_domain text,
  away_from uuid[] not null default '{}',
  primary key (shard_id, service_id)
);
comment on column hwqueue.service.failure_domain is 'node, rack or label:KEY; null: that of the queue';
comment on column hwqueue.service.away_from is 'services that its leases keep away from';


-- == Nodes and profiles ==

-- All nodes with the same labels, rack, taints and isolation: classes are judged once for a profile, not
-- once for each node. A judge notes how far it has come in the classes: next_xid and the running
-- transactions of its snapshot, and within one transaction the last class.
create table hwqueue.profile (
  shard_id int not null,
  profile_id bigint generated always as identity,
  digest bytea not null,
  labels jsonb not null,
  rack bigint,
  anchors text[] not null,
  classes_seen xid8 not null default '0',
  created_at timestamptz not null,
  taints jsonb not null default '[]',
  cpu_isolation text[] not null default '{best_effort}',
  gpu_exclusivity text[] not null default '{shared}',
  default_cpu_isolation text not null default 'best_effort',
  gpu_share_mode text not null default 'fractional',
  classes_unseen xid8[] not null default '{}',
  judged_xid xid8,
  judged_class bigint,
  judged_as bigint,
  left_out text[] not null default '{}',
  check ((judged_xid is null) = (judged_class is null)),
  unique (shard_id, digest)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);
alter table hwqueue.profile add primary key (shard_id, profile_id);
create index profile_judged_as on hwqueue.profile (shard_id, judged_as) where judged_as is not null;
comment on column hwqueue.profile.classes_seen is
  'classes of transactions below this one have been judged, but for those of classes_unseen; next_xid of'
  ' what the last judge has seen';
comment on column hwqueue.profile.taints is 'those of the nodes and those of operators, without their times';
comment on column hwqueue.profile.classes_unseen is 'transactions that ran when classes were last judged';
comment on column hwqueue.profile.judged_xid is
  'of the classes of this transaction, those up to judged_class have been judged, too';
comment on column hwqueue.profile.judged_as is
  'the profile that is judged for this one: the same without some labels; null: itself';
comment on column hwqueue.profile.left_out is
  'labels that nodes of the profiles which are judged as this one have besides; no class that mentions one'
  ' suits it';

-- Labels with very many values. Nodes that differ only in such labels, which no class mentions, are judged
-- as one.
create table hwqueue.ignored_label (
  shard_id int not null,
  key text not null,
  is_mentioned boolean not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, key)
);
comment on column hwqueue.ignored_label.is_mentioned is 'some class mentions it: it is left out no more';
comment on column hwqueue.ignored_label.next_xid is
  'with unseen: what was seen of the classes when they were last asked';

-- What a node is. Written by registration and operators only.
create table hwqueue.node (
  shard_id int not null,
  node_id uuid not null,
  name text not null,
  instance_id text not null,
  profile_id bigint not null,
  labels jsonb not null,
  rack bigint check (rack between 0 and 4294967295),
  resources uuid[] not null default '{}',
  cpu_milli bigint check (cpu_milli >= 0),
  memory_mib bigint check (memory_mib >= 0),
  custom jsonb not null default '{}',
  slots int check (slots >= 0),
  gpu_ids uuid[] not null default '{}',
  gpu_models text[] not null default '{}',
  gpu_memory_mib bigint[] not null default '{}',
  cores jsonb not null default '[]',
  anchors text[] not null,
  heartbeat_timeout interval not null check (heartbeat_timeout > interval '0'),
  cordoned_at timestamptz,
  drain_by timestamptz,
  registered_at timestamptz not null,
  deregistered_at timestamptz,
  taints jsonb not null default '[]',
  operator_taints jsonb not null default '[]',
  attested text[] not null default '{}',
  attested_until timestamptz[] not null default '{}',
  cpu_isolation text[] not null default '{best_effort}',
  gpu_exclusivity text[] not null default '{shared}',
  default_cpu_isolation text not null default 'best_effort',
  gpu_share_mode text not null default 'fractional',
  core_ids int[] not null default '{}',
  core_numa int[] not null default '{}',
  gpu_parents uuid[] not null default '{}'
);
create unique index node_name on hwqueue.node (shard_id, name) where deregistered_at is null;
create index node_profile on hwqueue.node (shard_id, profile_id);
-- for prune: which nodes left long ago
create index node_deregistered on hwqueue.node (shard_id, deregistered_at) where deregistered_at is not null;
alter table hwqueue.node add primary key (shard_id, node_id);
-- for reap: whose claims may have to stop after a time
create index node_no_execute on hwqueue.node (shard_id, node_id)
  where (taints || operator_taints) @> '[{"effect": "no_execute"}]';
comment on column hwqueue.node.taints is
  'those it registered with, each with the time it came ("since"); a registration replaces them';
comment on column hwqueue.node.operator_taints is
  'those that operators put on it; no registration takes them away';
comment on column hwqueue.node.attested is
  'trust domains of its attestations, for claims; what has expired stays until it is revoked';
comment on column hwqueue.node.attested_until is 'when each of them expires; infinity: never';
comment on column hwqueue.node.cpu_isolation is
  'classes honoured, as is gpu_exclusivity; best_effort and shared always are';
comment on column hwqueue.node.core_ids is
  'cores that are counted one by one, in the order of cores; empty unless whole cores are honoured';
comment on column hwqueue.node.gpu_parents is
  'of each device, the one that it is a part of; null: a whole device; empty: all are whole';

-- The row that a claim, a settlement and every change of the node lock first. It holds what most claims
-- must know of the node, and is updated only when that changes or when the last sign of life is old. login
-- is a name of a role: a dump keeps names, and oids are different on another server.
create table hwqueue.node_state (
  shard_id int not null,
  node_id uuid not null,
  node_epoch bigint not null check (node_epoch > 0),
  seen_at timestamptz not null,
  classes_seen xid8 not null default '0',
  profile_id bigint,
  on_fast_path boolean not null default false,
  has_limits boolean not null default false,
  heartbeat_timeout interval,
  pinned_queues int[] not null default '{}',
  generation bigint not null default 0,
  server_started_at timestamptz,
  met_blocked boolean not null default false,
  moved_xid xid8 not null default '0',
  next_constrained_class bigint not null default 0,
  awaits_terms boolean not null default false,
  classes_unseen xid8[] not null default '{}',
  judged_xid xid8,
  judged_class bigint,
  storage_path text,
  login text,
  check ((judged_xid is null) = (judged_class is null)),
  primary key (shard_id, node_id)
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
create index node_state_moved on hwqueue.node_state (moved_xid);
comment on column hwqueue.node_state.classes_seen is
  'as of a profile, for classes that are judged per node; likewise classes_unseen, judged_xid';
comment on column hwqueue.node_state.on_fast_path is
  'registered, not cordoned, without GPUs, custom countables and counted cores: its claims go mostly by age';
comment on column hwqueue.node_state.has_limits is 'claims on the node may allocate something';
comment on column hwqueue.node_state.pinned_queues is
  'queues in which node_eligibility has rows of this node';
comment on column hwqueue.node_state.generation is
  'of the shard, as long as the server has not been started since server_started_at';
comment on column hwqueue.node_state.met_blocked is
  'its last claims came upon classes that may not run there now: the next one asks all at once first';
comment on column hwqueue.node_state.moved_xid is
  'the transaction that last changed what the node is, or in which it came back to life';
comment on column hwqueue.node_state.next_constrained_class is
  'the class that its last claim tried when it gave up; the next such claim begins behind it';
comment on column hwqueue.node_state.awaits_terms is
  'its claims take a step for terms that wait to be published, as long as there are any';
comment on column hwqueue.node_state.storage_path is 'of the shard, when generation was read';
comment on column hwqueue.node_state.login is
  'the role whose members may act for the node; null: any worker, until it registers again';

-- What is in use on a node, apart from node_state, since it changes with every counted claim. The newest
-- version counts; after 32 updates comes a new one. No column may be null: with a null among its columns
-- an update of the row writes more of it to the WAL.
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
  core_used int[] not null default '{}',
  primary key (shard_id, node_id, version)
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on column hwqueue.node_load.claim_count is
  'counted claims; claims that set nothing aside are not counted';
comment on column hwqueue.node_load.gpu_used is
  'thousandths in use, device by device, in the order of node.gpu_ids';
comment on column hwqueue.node_load.core_used is
  'thousandths in use, core by core, in the order of node.core_ids';

-- What a node's worker announced when it registered. Claims never read it.
create table hwqueue.served (
  shard_id int not null,
  node_id uuid not null,
  queues text[],
  tasks text[],
  primary key (shard_id, node_id)
);
comment on column hwqueue.served.queues is 'queues that it polls; null: it has not said';
comment on column hwqueue.served.tasks is 'tasks that it has handlers for; null: it has not said';

-- Who vouches for a node: what operators said. Claims read the copy in node.
create table hwqueue.attestation (
  shard_id int not null,
  node_id uuid not null,
  domain text not null,
  expires_at timestamptz,
  attested_at timestamptz not null,
  attested_by text not null,
  any_instance boolean not null default false,
  suspended_at timestamptz,
  suspended_why text,
  primary key (shard_id, node_id, domain)
);
comment on column hwqueue.attestation.any_instance is
  'it holds for whatever instance the node''s login registers';
comment on column hwqueue.attestation.suspended_at is
  'it does not count from then on, until an operator confirms it';


-- == Leases and their entries ==

-- The states of a lease and the only transitions between them. The README's diagram and the tests read it.
create table hwqueue.lease_transition (
  from_state text not null,
  to_state text not null,
  cause text not null,
  primary key (from_state, to_state, cause)
);

insert into hwqueue.lease_transition (from_state, to_state, cause) values
  ('none', 'pending', 'spawn'),
  ('none', 'scheduled', 'spawn'),
  ('none', 'claimed', 'adopt'),
  ('scheduled', 'pending', 'due'),
  ('scheduled', 'pending', 'update'),
  ('pending', 'scheduled', 'update'),
  ('pending', 'claimed', 'claim'),
  ('claimed', 'completed', 'complete'),
  ('claimed', 'pending', 'fail'),
  ('claimed', 'scheduled', 'fail'),
  ('claimed', 'failed', 'fail'),
  ('claimed', 'cancelled', 'fail'),
  ('claimed', 'pending', 'release'),
  ('claimed', 'scheduled', 'release'),
  ('claimed', 'cancelled', 'release'),
  ('claimed', 'pending', 'expire'),
  ('claimed', 'scheduled', 'expire'),
  ('claimed', 'failed', 'expire'),
  ('claimed', 'cancelled', 'expire'),
  ('pending', 'cancelled', 'cancel'),
  ('scheduled', 'cancelled', 'cancel'),
  ('pending', 'failed', 'deadline'),
  ('scheduled', 'failed', 'deadline'),
  ('failed', 'pending', 'requeue'),
  ('cancelled', 'pending', 'requeue');

-- The permanent record of a unit of work. Neither a claim nor a completion writes to it: it is updated
-- when the lease goes back to its queue, falls due or is changed, and the fill factor leaves room for
-- that. wire holds the params blob as it was sent, for audit; null costs nothing.
create table hwqueue.lease (
  shard_id int not null,
  lease_id uuid not null,
  queue_id int not null,
  class_id bigint not null,
  task_name text not null,
  params jsonb not null,
  headers jsonb,
  priority smallint not null,
  tier smallint not null,
  rank bigint not null,
  position bigint not null,
  attempt_count smallint not null default 0,
  claim_token bigint not null default 0,
  max_attempts smallint,
  retry jsonb,
  claim_timeout interval,
  deadline timestamptz,
  idempotency_key text,
  available_at timestamptz not null,
  created_at timestamptz not null,
  node_id uuid,
  claimed_at timestamptz,
  wire bytea,
  primary key (shard_id, lease_id)
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05,
        fillfactor = 90);
create index lease_class on hwqueue.lease (class_id);
comment on column hwqueue.lease.priority is 'higher runs first';
comment on column hwqueue.lease.position is
  'sequence of its entry in ready; fresh whenever it becomes claimable again';
comment on column hwqueue.lease.claim_token is
  'of the last claim that ended without ending the lease; 0: none did. So with attempt_count, node_id,'
  ' claimed_at';

-- Claimable now. Rows are inserted and deleted; only class_id is ever updated, when a new term names the
-- lease. Apart from its class, an entry is as it was read once it is locked.
create table hwqueue.ready (
  shard_id int not null,
  queue_id int not null,
  tier smallint not null,
  attempt_count smallint not null,
  claim_count int not null,
  rank bigint not null,
  position bigint generated always as identity,
  class_id bigint not null,
  lease_id uuid not null,
  eligible_at timestamptz not null,
  deadline timestamptz,
  primary key (shard_id, queue_id, tier, rank, position) include (class_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
create unique index ready_class on hwqueue.ready (shard_id, class_id, tier, rank, position);
-- when a lease fails, but never before its entry was written: a new entry comes behind reap's mark
create index ready_deadline on hwqueue.ready (shard_id, greatest(deadline, eligible_at))
  where deadline is not null;
comment on column hwqueue.ready.claim_count is
  'claims granted so far: the lower 40 bits of the next token, less one';

-- Not claimable before available_at. Rows are inserted and deleted; only class_id is ever updated.
create table hwqueue.scheduled (
  shard_id int not null,
  queue_id int not null,
  tier smallint not null,
  attempt_count smallint not null,
  claim_count int not null,
  rank bigint not null,
  class_id bigint not null,
  lease_id uuid not null,
  available_at timestamptz not null,
  deadline timestamptz,
  primary key (shard_id, queue_id, available_at, lease_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
create index scheduled_deadline on hwqueue.scheduled (shard_id, deadline) where deadline is not null;

-- A producer's key, which promises that the content is the same. It lives as long as the lease.
create table hwqueue.idempotency (
  shard_id int not null,
  tenant text not null,
  queue_id int not null,
  idempotency_key text not null,
  lease_id uuid not null,
  content bytea not null,
  held_until timestamptz,
  primary key (shard_id, tenant, queue_id, idempotency_key)
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
comment on column hwqueue.idempotency.held_until is
  'of the option unique: until then another spawn finds the lease; infinity: while it is open. Null: of an'
  ' idempotency key, for as long as the lease is kept';

-- Low-water marks: where scans of ready start, one mark for each tier and rank. Below a mark nothing lives
-- and nothing can come. class_id 0: the order of the whole queue. A class has marks of its own while the
-- head of its queue is blocked, so that the queue's mark cannot move. The newest version counts.
create table hwqueue.low_water (
  shard_id int not null,
  queue_id int not null,
  class_id bigint not null,
  version bigint not null,
  tiers smallint[] not null default '{}',
  ranks bigint[] not null default '{}',
  positions bigint[] not null default '{}',
  moved bigint[] not null default '{}',
  blocked_to_version bigint not null default 0,
  primary key (shard_id, queue_id, class_id, version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on column hwqueue.low_water.moved is 'the version that moved each mark last';
comment on column hwqueue.low_water.blocked_to_version is
  'of a queue (class_id 0): below this version its head is blocked, and claims read the marks of classes';

-- How far low-water marks may move. Positions up to drawn_position were drawn by transactions below
-- drawn_before; once those have ended it becomes safe_position: no uncommitted spawn, of any length, can
-- bring a lower one. The newest version counts.
create table hwqueue.position_horizon (
  shard_id int not null,
  version bigint not null,
  safe_position bigint not null,
  drawn_position bigint not null,
  drawn_before xid8 not null,
  primary key (shard_id, version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
insert into hwqueue.position_horizon (shard_id, version, safe_position, drawn_position, drawn_before)
values (0, 0, 0, 0, '0');


-- == Claims ==

-- Running. check_at is when reap should look next: it trails expires_at, so that heartbeats change no
-- index (HOT).
create table hwqueue.claim (
  shard_id int not null,
  lease_id uuid not null,
  queue_id int not null,
  class_id bigint not null,
  node_id uuid not null,
  node_epoch bigint not null,
  claim_token bigint not null,
  attempt smallint not null,
  claim_timeout interval not null,
  claimed_at timestamptz not null,
  expires_at timestamptz not null,
  check_at timestamptz not null,
  assignment jsonb,
  stop_requested_at timestamptz,
  stop_reason text,
  stop_by timestamptz,
  stop_detail text,
  term_deltas jsonb,
  login text,
  eligible_at timestamptz,
  is_awaited boolean not null default false,
  primary key (shard_id, lease_id)
) with (fillfactor = 60, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_threshold = -1);
create index claim_node on hwqueue.claim (node_id);
create index claim_check on hwqueue.claim (check_at);
create index claim_stopping on hwqueue.claim (class_id) where stop_requested_at is not null;
comment on column hwqueue.claim.assignment is 'what was allocated; null when nothing is counted for it';
comment on column hwqueue.claim.stop_requested_at is
  'when the worker is told; in the future while a taint is tolerated for a time';
comment on column hwqueue.claim.term_deltas is
  'what it has added to term_counter; null when no term has to do with it';
comment on column hwqueue.claim.login is
  'that of its node, copied: who settles a claim reads this row and not the node''s';
comment on column hwqueue.claim.is_awaited is
  'somebody listens for the end of the lease (await_leases)';
comment on column hwqueue.claim.eligible_at is
  'since when its lease could be claimed; null: the lease stays when it completes, as its queue says or'
  ' its idempotency key wants it';

-- How a lease ended, so that a settlement deletes the claim, inserts this row and leaves the lease's row
-- alone.
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
  error jsonb,
  eligible_at timestamptz
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
-- for prune, requeue_failed and the figures
create index outcome_finished on hwqueue.outcome (queue_id, shard_id, state, finished_at);
alter table hwqueue.outcome add primary key (lease_id, shard_id);
comment on table hwqueue.outcome is 'how a lease ended; a lease without a row here is open: it waits or runs';
comment on column hwqueue.outcome.claim_token is
  'of the last claim that the lease had; 0: it was never claimed';
comment on column hwqueue.outcome.attempt is
  'how many attempts the lease had used up; so with claimed_at and node_id';
comment on column hwqueue.outcome.state is 'completed, failed or cancelled';
comment on column hwqueue.outcome.eligible_at is
  'of a lease that went when it completed: since when it could be claimed; null: the lease is there';

-- Claims that ended without completing.
create table hwqueue.attempt (
  shard_id int not null,
  lease_id uuid not null,
  claim_token bigint not null,
  attempt smallint not null,
  node_id uuid not null,
  outcome text not null check (outcome in ('failed', 'expired', 'superseded', 'released', 'cancelled')),
  claimed_at timestamptz not null,
  ended_at timestamptz not null,
  error jsonb,
  primary key (shard_id, lease_id, claim_token)
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
-- for roll_up
create index attempt_ended on hwqueue.attempt (ended_at);

-- How far claims have come, as their handlers say: a row for each claim that reports.
create table hwqueue.progress (
  shard_id int not null,
  lease_id uuid not null,
  claim_token bigint not null,
  reported_at timestamptz not null,
  fraction double precision,
  done bigint,
  total bigint,
  message text,
  primary key (shard_id, lease_id, claim_token)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.progress is
  'how far a claim has come, as its handler said last; it stays when the claim ends, until the lease goes';
comment on column hwqueue.progress.fraction is 'from 0 to 1; null: not known';
comment on column hwqueue.progress.done is 'of total, in a unit of the handler''s; null: it does not count';



-- == Affinity terms and their counters ==
-- What leases ask about other leases.

-- One term: a selection of leases, and the domain (node, rack, label) in which they are counted. Equal
-- terms of several classes are one row. It is published, and its leases are counted, once published_at is
-- set.
create table hwqueue.affinity_term (
  shard_id int not null,
  term_id bigint generated always as identity,
  digest bigint not null,
  spec jsonb not null,
  use text not null,
  domain text not null,
  anchors text[] not null,
  written_xid xid8 not null,
  publish_after_xid xid8,
  was_published boolean not null default false,
  created_at timestamptz not null,
  published_at timestamptz,
  primary key (shard_id, term_id)
);
create unique index term_digest on hwqueue.affinity_term (shard_id, digest);
create index term_anchors on hwqueue.affinity_term using gin (anchors);
-- for the steps that bring terms into force
create index term_unpublished on hwqueue.affinity_term (shard_id, term_id) where published_at is null;
comment on column hwqueue.affinity_term.written_xid is
  'the transaction that last told a class of it; 0 before the first';
comment on column hwqueue.affinity_term.publish_after_xid is
  'published once all transactions below this one have ended: they may not know of it';
comment on column hwqueue.affinity_term.was_published is
  'it was published before and is counted again: the leases that it selects wait as well';

-- Which classes a term selects.
create table hwqueue.class_term (
  shard_id int not null,
  class_id bigint not null,
  term_id bigint not null
);
create index class_term_term on hwqueue.class_term (shard_id, term_id);
create index class_term_class on hwqueue.class_term (shard_id, class_id);
comment on table hwqueue.class_term is
  'the term selects leases of the class; the same row twice does no harm';

-- The required terms of a class, so that many classes can be decided by one statement.
create table hwqueue.class_rule (
  shard_id int not null,
  class_id bigint not null,
  term_id bigint not null,
  use text not null,
  most bigint,
  is_self boolean not null,
  lease_id uuid
);
create index class_rule_class on hwqueue.class_rule (shard_id, class_id);
create index class_rule_lease on hwqueue.class_rule (shard_id, lease_id) where lease_id is not null;
comment on table hwqueue.class_rule is
  'the terms of a class: away, toward, cap and skew that are required on their own keep it from a node by'
  ' what runs in its place (most: of cap and skew, the limit); known: any other, of which it must be known'
  ' what runs';
comment on column hwqueue.class_rule.lease_id is
  'the lease that the term names; null: it selects by what classes are';

-- How many leases of a term run in one place of its domain, and how many holders (leases that ask for it).
create table hwqueue.term_counter (
  shard_id int not null,
  term_id bigint not null,
  place text not null,
  leases int not null,
  holders int not null,
  updates int not null,
  dropped_xid xid8
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
create index term_counter_place on hwqueue.term_counter (shard_id, term_id, place);
create index term_counter_dropped on hwqueue.term_counter (term_id, dropped_xid)
  where dropped_xid is not null;
comment on table hwqueue.term_counter is 'what runs of a term in a place: the sum over all rows of both';
comment on column hwqueue.term_counter.dropped_xid is
  'of max_skew: the transaction that last took leases away; null for other terms';

-- Lock stripes: each row stands for some (term, place) pairs. A claim that decides by a count locks the
-- pair's row alone, one that only changes the count shares it. No claim waits for a stripe: it leaves the
-- lease to the next claim.
create table hwqueue.lock_stripe (
  shard_id int not null,
  stripe_id int not null,
  primary key (shard_id, stripe_id)
);
comment on table hwqueue.lock_stripe is 'rows to be locked, each for some (term, place) pairs; never written';
insert into hwqueue.lock_stripe (shard_id, stripe_id)
select 0, g from generate_series(0, 16383) g;

-- These tables have no key. A publication for all tables would refuse updates and deletes of their rows,
-- so the whole row is their identity. That costs something only while a publication has them, at wal_level
-- logical.
alter table hwqueue.class_term replica identity full;
alter table hwqueue.class_rule replica identity full;
alter table hwqueue.term_counter replica identity full;


-- == Caches ==
-- What claims and upkeep have found out and can find out again.

-- Classes that nodes of a profile may run, with the affinity score and, copied from the class, what a
-- claim filters and scores by: a claim reads one row for each class instead of three.
create table hwqueue.profile_eligibility (
  shard_id int not null,
  profile_id bigint not null,
  queue_id int not null,
  class_id bigint not null,
  affinity double precision,
  task_name text not null,
  cpu_milli bigint not null,
  memory_mib bigint not null,
  gpu_count int not null,
  gpu_milli int not null,
  gpu_wanted uuid[] not null,
  custom jsonb,
  is_checked boolean not null default false,
  cpu_isolation text,
  gpu_exclusivity text
);
create index profile_eligibility_class on hwqueue.profile_eligibility (shard_id, class_id);
alter table hwqueue.profile_eligibility add primary key (shard_id, profile_id, queue_id, class_id);
comment on column hwqueue.profile_eligibility.affinity is
  'null: it depends on other leases, and each claim looks';
comment on column hwqueue.profile_eligibility.cpu_isolation is
  'what the class comes to here, the default filled in; null: best_effort. Likewise gpu_exclusivity: null'
  ' is shared';

-- The same of one node, for classes that name nodes or resources.
create table hwqueue.node_eligibility (
  shard_id int not null,
  node_id uuid not null,
  queue_id int not null,
  class_id bigint not null,
  affinity double precision,
  task_name text not null,
  cpu_milli bigint not null,
  memory_mib bigint not null,
  gpu_count int not null,
  gpu_milli int not null,
  gpu_wanted uuid[] not null,
  custom jsonb,
  is_checked boolean not null default false,
  trusts text[] not null default '{}',
  cpu_isolation text,
  gpu_exclusivity text
);
create index node_eligibility_class on hwqueue.node_eligibility (shard_id, class_id);
alter table hwqueue.node_eligibility add primary key (shard_id, node_id, queue_id, class_id);
comment on column hwqueue.node_eligibility.trusts is
  'as in placement_class; judged with every attestation, expired or not';
comment on column hwqueue.node_eligibility.cpu_isolation is 'as in profile_eligibility';

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
  checked bigint[] not null default '{}',
  classes_unseen xid8[] not null default '{}',
  primary key (shard_id, profile_id, queue_id)
);
comment on column hwqueue.profile_queue.classes is 'up to 200 of them; 201 when there are more';
comment on column hwqueue.profile_queue.task_names is
  'up to 50 of their tasks, each once; 51 when there are more';
comment on column hwqueue.profile_queue.most_cpu_milli is 'no class needs more; likewise memory';
comment on column hwqueue.profile_queue.scores_equal is
  'no class is liked more or less than others: what comes first is a matter of age';
comment on column hwqueue.profile_queue.classes_seen is 'that of the profile';
comment on column hwqueue.profile_queue.checked is
  'those of classes that are to be checked at the claim, since they or others ask something about other'
  ' leases';
comment on column hwqueue.profile_queue.classes_unseen is 'that of the profile';

-- Which part of the nodes suits a class: orders scarce work first. Claims estimate it, upkeep finds it
-- out.
create table hwqueue.class_fleet (
  shard_id int not null,
  class_id bigint not null,
  reach double precision not null check (reach between 0 and 1),
  looked_at timestamptz not null,
  digest bigint,
  reported_at timestamptz,
  unmatched boolean not null default false,
  primary key (shard_id, class_id)
);
create index class_fleet_age on hwqueue.class_fleet (shard_id, looked_at);
create index class_fleet_unmatched on hwqueue.class_fleet (shard_id, class_id)
  where unmatched or reported_at is not null;
comment on table hwqueue.class_fleet is 'the reach of a class: which share of the nodes suits it';
comment on column hwqueue.class_fleet.digest is
  'of the nodes it was found out of (scan_nodes); null: a claim has estimated the reach, and nobody the'
  ' rest';
comment on column hwqueue.class_fleet.reported_at is
  'when an event told that leases wait that no live node may run; null: none does';
comment on column hwqueue.class_fleet.unmatched is
  'no live node that is not cordoned suited it when that was found out';

-- Which nodes suit a class, a bit for each node. Apart from class_fleet, of which claims read many rows.
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
comment on table hwqueue.class_nodes is
  'the nodes that suit a class, and what is in the way, by the numbers that nodes have with this digest';

-- The best and the worst node for a class, so that a lease that waits for a better node asks the fleet
-- once and not in each claim.
create table hwqueue.class_range (
  shard_id int not null,
  class_id bigint not null,
  range_id bigint generated always as identity,
  best double precision,
  worst double precision,
  live_until timestamptz not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  best_node uuid,
  worst_node uuid,
  primary key (shard_id, class_id, range_id)
);
comment on table hwqueue.class_range is
  'how well the best and the worst of the live nodes that could run a class suit it, when somebody last'
  ' looked; the newest row counts';
comment on column hwqueue.class_range.live_until is
  'infinity, unless a node may prove to be alive that has been silent for too long';

-- The places of live nodes, so that max_skew needs no walk over all nodes.
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
comment on table hwqueue.spread_fleet is
  'where leases may spread to: the places of live nodes, for a domain and a kind of nodes; the newest row'
  ' counts';
comment on column hwqueue.spread_fleet.dead is 'nodes there that were dead and had claims';
comment on column hwqueue.spread_fleet.doubtful is
  'nodes there that were dead, but for a sign of life that might not have been committed yet';
comment on column hwqueue.spread_fleet.live_until is 'until then no node can have died that lived';
comment on column hwqueue.spread_fleet.next_xid is
  'it knows nothing of transactions from this one on, nor of those in unseen';

-- The lowest count of a max_skew term over the places of its spread_fleet.
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
comment on table hwqueue.spread_floor is
  'the fewest leases of a max_skew term in one of the places of spread_fleet, when somebody last looked;'
  ' the newest row counts';
comment on column hwqueue.spread_floor.lowest is 'up to 64 of the places that had so few';

-- The classes that a claim of a node still has to read, where others are blocked, with what proves that
-- those still are.
create table hwqueue.node_candidates (
  shard_id int not null,
  node_id uuid not null,
  version bigint generated always as identity,
  queue_ids int[] not null,
  classes bigint[] not null,
  has_unproved boolean not null,
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
  valid_until timestamptz not null,
  primary key (shard_id, node_id, version)
);
comment on table hwqueue.node_candidates is
  'classes that a claim of a node has to look at in these queues: all that it may run but those that are'
  ' blocked, which the other columns prove. The newest version counts';
comment on column hwqueue.node_candidates.has_unproved is
  'some of the classes were blocked, and nothing here proves it';
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
comment on column hwqueue.node_candidates.valid_until is
  'when the first lease may have waited enough, or in 10 seconds: then a claim finds out again what is'
  ' blocked';


-- == Upkeep ==

-- When reap last ran, where its scans start, and how far its walks over classes, nodes and profiles have
-- come. The newest version counts.
create table hwqueue.reap_cursor (
  shard_id int not null,
  version bigint not null,
  reaped_at timestamptz not null default '-infinity',
  full_scan_at timestamptz not null default '-infinity',
  claims_from timestamptz not null default '-infinity',
  deadlines_from timestamptz not null default '-infinity',
  scheduled_from timestamptz not null default '-infinity',
  next_from timestamptz not null default '-infinity',
  next_after_xid xid8 not null default '0',
  estimated_at timestamptz not null default '-infinity',
  class_id bigint not null default 0,
  counted_to timestamptz not null default '-infinity',
  count_next_to timestamptz not null default '-infinity',
  count_next_after_xid xid8 not null default '0',
  watched_node uuid not null default '00000000-0000-0000-0000-000000000000',
  watched_class bigint not null default 0,
  judged_profile bigint not null default 0,
  primary key (shard_id, version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on column hwqueue.reap_cursor.full_scan_at is 'when the scans last began at the very start';
comment on column hwqueue.reap_cursor.claims_from is 'no claim has an earlier check_at, and none can get one';
comment on column hwqueue.reap_cursor.deadlines_from is 'the same of ready entries and their deadlines';
comment on column hwqueue.reap_cursor.scheduled_from is 'the same of scheduled entries and available_at';
comment on column hwqueue.reap_cursor.next_after_xid is
  'only transactions below this one can still bring what lies before next_from: once they have ended, marks'
  ' may go up to it';
comment on column hwqueue.reap_cursor.class_id is
  'how far classes have been looked at that may have no estimate of their reach';
comment on column hwqueue.reap_cursor.counted_to is
  'what ended before is in minute_stat, and nothing more can come from before';
comment on column hwqueue.reap_cursor.count_next_after_xid is
  'only transactions below this one can still bring what ended before count_next_to (roll_up)';
comment on column hwqueue.reap_cursor.watched_node is
  'how far nodes have been looked at; likewise watched_class';
comment on column hwqueue.reap_cursor.judged_profile is
  'the last profile that was looked at for classes to judge';
insert into hwqueue.reap_cursor (shard_id, version) values (0, 0);

-- When prune last ran, and how far it has looked for classes and profiles that nothing needs: one row for
-- each shard. Any number of workers prune, one at a time: the one that holds the row.
create table hwqueue.prune_cursor (
  shard_id int not null,
  class_id bigint not null default 0,
  profile_id bigint not null default 0,
  pruned_at timestamptz not null default '-infinity',
  primary key (shard_id)
);
comment on column hwqueue.prune_cursor.pruned_at is 'when somebody last pruned';
insert into hwqueue.prune_cursor (shard_id) values (0);

-- Nodes of which reap has told that they are silent, until they are back: each change is told once.
create table hwqueue.silent_node (
  shard_id int not null,
  node_id uuid not null,
  reported_at timestamptz not null,
  primary key (shard_id, node_id)
);


-- == Events ==

-- Who did what. A ring of 16 days: slot, the number of the day modulo 16, says which partition a row goes
-- to. The partitions are made once, since making or dropping one later would lock the table against all
-- sessions; prune truncates the old ones.
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
  detail jsonb,
  login text
) partition by list (slot);
create index event_order on hwqueue.event (shard_id, event_id);
create index event_lease on hwqueue.event (shard_id, lease_id, event_id) where lease_id is not null;
create index event_node on hwqueue.event (shard_id, node_id, event_id) where node_id is not null;
create index event_queue on hwqueue.event (shard_id, queue, event_id) where queue is not null;
create index event_class on hwqueue.event (shard_id, class_id, event_id) where class_id is not null;
create index event_code on hwqueue.event (shard_id, code, event_id);
create index event_actor on hwqueue.event (shard_id, actor, event_id);
comment on table hwqueue.event is 'who did what; not for claims and completions';
comment on column hwqueue.event.slot is 'number of its day, modulo 16';
comment on column hwqueue.event.event_id is 'the transaction''s id x 2^20, and a running number';
comment on column hwqueue.event.queue is 'its name: ids of queues that are gone say nothing';
comment on column hwqueue.event.login is 'session_user of who wrote it; null: of an earlier release';
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


-- == Tokens ==

-- Who may call the HTTP API. Of a token's secret only the sha256 is stored. Tenant null: all tenants. A
-- name is never used twice, so that what its bearer did stays known.
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
  created_login text,
  revoked_login text,
  primary key (shard_id, name)
);
create unique index api_token_secret on hwqueue.api_token (shard_id, secret_sha256);
comment on column hwqueue.api_token.used_at is
  'to the hour: a row that is updated at every request would be read ever slower';
comment on column hwqueue.api_token.created_login is 'session_user, beside what the caller said (created_by)';


-- == Statistics ==

-- Running totals of a queue at the end of a minute (of the newest minute: so far). What happened in a
-- minute is the difference to the row before; a minute in which nothing ended has no row. Written by
-- roll_up alone.
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
comment on column hwqueue.minute_stat.attempts_failed is
  'claims that ended so, whether or not another attempt followed; likewise the others';
comment on column hwqueue.minute_stat.retried is
  'claims that failed, expired or were superseded and whose lease went back';
comment on column hwqueue.minute_stat.wait_seconds is
  'of completed leases: from claimable to claimed, summed up';
comment on column hwqueue.minute_stat.wait_counts is
  'how many of them waited how long, by histogram_bounds; the last one: longer';
comment on column hwqueue.minute_stat.run_seconds is
  'of completed leases: from claimed to completed; likewise run_counts';

-- Ended leases that were requeued, until they have been counted. No key, as in class_term.
create table hwqueue.requeued (
  shard_id int not null,
  queue_id int not null,
  state text not null,
  finished_at timestamptz not null,
  lease_id uuid not null
);
-- for roll_up
create index requeued_finished on hwqueue.requeued (finished_at);
alter table hwqueue.requeued replica identity full;


-- == Composite types used by functions ==

-- A spawn that has been read and checked and only needs writing down. What its class says is not copied.
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
  stands_for uuid,  -- the lease that the key names, when that is another one
  notify boolean,
  wire bytea,
  held_until timestamptz,
  on_conflict text
);

-- Where a spawn goes. defaults: those of its task; null: it has none, or the spawn is a batch.
create type hwqueue.spawn_target as (
  queue hwqueue.queue,
  defaults jsonb
);

-- What decides which class a lease has: leases of equal content share one. placement is in normal form.
-- patience: null is the queue's. target: the only lease that the class is for, or null.
create type hwqueue.class_content as (
  queue_id int,
  task_name text,
  tenant text,
  service_id uuid,
  labels jsonb,
  placement jsonb,
  patience interval,
  target uuid
);

-- Which leases a list holds (read_lease_filter); null: any.
create type hwqueue.lease_filter as (
  queue_id int,
  state text,
  task_name text,
  tenants text[],
  service_id uuid,
  node_id uuid,
  lease_ids uuid[],
  labels jsonb,
  created_from timestamptz,
  created_before timestamptz,
  finished_from timestamptz,
  finished_before timestamptz,
  error_type text
);

-- A page of the leases that a bulk call means. next_cursor: where the next page begins; null: at the end.
create type hwqueue.lease_page as (
  lease_ids uuid[],
  state text,
  next_cursor jsonb
);

-- What a node has left now; null means not counted. Built by node_headroom.
create type hwqueue.headroom as (
  cpu_milli bigint,
  memory_mib bigint,
  custom jsonb,
  slots int,
  gpu_ids uuid[],
  gpu_free int[],
  gpu_sorted int[],
  gpu_total int,
  gpu_most int,
  gpu_whole int,
  core_milli bigint,
  core_whole int,
  core_numa int,
  gpu_parts int[],
  gpu_parts_free int
);

-- How far a caller has come in judging classes.
create type hwqueue.judging_progress as (
  next_xid xid8,
  unseen xid8[],
  xid xid8,
  class_id bigint
);

-- What a claim asks for. queue_ids: the ids of queues, of those that are open, once the claim has read
-- them. tasks: null is any. claim_timeout: null is each queue's. now: when the claim had its node.
create type hwqueue.claim_request as (
  shard_id int,
  node_id uuid,
  node_epoch bigint,
  queues text[],
  tasks text[],
  qty int,
  claim_timeout interval,
  queue_ids int[],
  now timestamptz
);

-- What a claim reads of a queue before it scans (read_queue_head, read_queue_heads).
create type hwqueue.queue_head as (
  queue_id int,
  name text,
  claim_timeout interval,
  window_size int,
  classes bigint[],
  task_names text[],
  most_cpu_milli bigint,
  most_memory_mib bigint,
  marks int,
  tier smallint,
  rank bigint,
  position bigint,
  last bigint,
  first_is_best boolean,
  takes_first boolean,
  checked bigint[],
  queue_ids int[],
  drops_completed boolean,
  is_tried boolean  -- this claim has tried to lock an entry there, in vain
);

-- Where scans start: the heads of the queues that have entries, the first of all first. are_blocked: which
-- queues have a blocked head. by_class: start each class at its own mark; class_scan_starts
-- then fills class_* for a list of classes.
create type hwqueue.scan_starts as (
  queue_ids int[],
  tiers smallint[],
  ranks bigint[],
  positions bigint[],
  are_blocked boolean[],
  by_class boolean,
  class_tiers smallint[],
  class_ranks bigint[],
  class_positions bigint[]
);

-- The first of some entries: its lease, and since when that could be claimed.
create type hwqueue.entry_ref as (
  lease_id uuid,
  eligible_at timestamptz
);

-- Entries that a claim has read and not locked, oldest first, of one tier, rank and score. checked: which
-- of their classes must be checked, maybe with others. head: what was read of the first entry.
create type hwqueue.seen_entries as (
  tier smallint,
  rank bigint,
  positions bigint[],
  classes bigint[],
  checked bigint[],
  head hwqueue.entry_ref
);

-- Classes that a node may run and has room for now, best score first (fitting_classes). checked: those of
-- them that must be checked at the claim, in no order.
create type hwqueue.scored_classes as (
  classes bigint[],
  scores double precision[],
  checked bigint[]
);

-- A class whose leases may only be claimed after they have waited for a better node, and the tier and rank
-- of its head.
create type hwqueue.later_class as (
  class_id bigint,
  tier smallint,
  rank bigint
);

-- Entries that a claim has chosen, by ctid. One that the claim has deleted already stands in entry.
-- on_fast_path: the claim may try the queue head again.
create type hwqueue.picked_entries as (
  ctids tid[],
  score double precision,
  term_deltas jsonb,
  entry hwqueue.ready,
  on_fast_path boolean
);

-- A term that a claim touches, read once. by_counters_alone: counts alone decide it.
create type hwqueue.touched_term as (
  term_id bigint,
  use text,
  domain text,
  place text,
  decides boolean,
  counts boolean,
  by_counters_alone boolean
);

-- All registered nodes at a moment: their ids, and which of them are live and open, as bits in that order.
create type hwqueue.fleet_snapshot as (
  registered int,
  node_ids uuid[],
  none bit varying,
  live bit varying,
  open bit varying,
  digest bigint
);

-- Which nodes match a class, and what is in the way of the others.
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

-- A rule that a node fails (all_failures). predicate: what failed, as the class has it. lacks: what is
-- short, as bits (see shortage).
create type hwqueue.failure as (
  stage text,
  code text,
  permanent boolean,
  message text,
  predicate jsonb,
  lacks int
);

-- What to say first about something that is pending: a code, and the words.
create type hwqueue.headline as (
  code text,
  message text
);

-- A pending class with what is known of the nodes for it (pending_classes): how many have room now, how
-- many of those have no known conflict (free), and its place in the report (turn).
create type hwqueue.pending_class as (
  pending bigint,
  oldest_at timestamptz,
  class_id bigint,
  nodes_matching int,
  nodes_cordoned int,
  nodes_silent int,
  part text,
  expr jsonb,
  near bit varying,
  nodes_near int,
  nodes_meeting int,
  nodes_serving int,
  with_room int,
  free int,
  conflict text,
  turn bigint
);
