-- Tables of hwqueue. What lives where, and why, is told in docs/explanation/storage.md.
-- A lease that is not finished has exactly one entry in scheduled, ready or claim; that entry is its mutex.

-- What is installed. Written by `hwqueue db upgrade`, read by clients at start.
create table hwqueue.schema_info (
  singleton boolean primary key default true check (singleton),
  revision text not null,
  bundle_sha256 text not null,
  package_version text not null,
  roles_installed boolean not null,
  applied_at timestamptz not null default now()
);

-- The states of a lease and the only ways between them; the docs diagram and the state walk test read it.
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

-- One row a cell. The generation rises when the server's identity or timeline changes, so that claim tokens
-- keep growing over an asynchronous failover.
create table hwqueue.shard (
  shard_id int primary key check (shard_id >= 0),
  generation bigint not null default 1 check (generation between 1 and 4194303),
  system_identifier bigint,
  timeline int,
  server_started_at timestamptz,
  created_at timestamptz not null default now()
);
insert into hwqueue.shard (shard_id) values (0);

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
  primary key (shard_id, queue_id)
);
create unique index queue_name on hwqueue.queue (shard_id, name) where dropped_at is null;
comment on column hwqueue.queue.dropped_before is 'transactions from this one on cannot have found the queue (purge_queues)';
comment on column hwqueue.queue.window_size is 'entries of the global order that a claim walks';
comment on column hwqueue.queue.probe_size is 'classes whose head a claim may look up beyond the window';

-- "Somebody found this queue empty": the spawn that sees the mark notifies and clears it.
create table hwqueue.queue_signal (
  shard_id int not null,
  queue_id int not null,
  waiting_since timestamptz,
  primary key (shard_id, queue_id)
) with (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Everything that decides where and whether a lease may run. Never updated but for retiring it.
-- Two sessions that meet the same new class at once write a row each and wait for nobody: later spawns settle
-- on the lower class_id, the other drains and is pruned.
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
  primary key (shard_id, class_id)
);
comment on column hwqueue.placement_class.anchors is
  'the alternatives of one required positive equality, {*} if there is none: what a node is looked up by';
comment on column hwqueue.placement_class.is_pinned is 'names a node or a resource: judged per node, not per profile';
comment on column hwqueue.placement_class.gpu_milli is 'share of one device in thousandths; gpu_count is then 1';
comment on column hwqueue.placement_class.retired_before is
  'transactions from this one on cannot have found the class unretired (prune_classes)';
comment on column hwqueue.placement_class.created_xid is 'lets a claim find the classes it has not judged yet';
create index placement_class_digest on hwqueue.placement_class (shard_id, digest);
create index placement_class_created on hwqueue.placement_class (shard_id, created_xid);
create index placement_class_retired on hwqueue.placement_class (shard_id, retired_at) where retired_at is not null;
create index placement_class_anchors on hwqueue.placement_class using gin (anchors);
create index placement_class_labels on hwqueue.placement_class using gin (labels jsonb_path_ops);
create index placement_class_required on hwqueue.placement_class using gin (required jsonb_path_ops);

-- How many nodes could take a class: orders scarce work first. A hint, refreshed by claims and reap.
create table hwqueue.class_reach (
  shard_id int not null,
  class_id bigint not null,
  share double precision not null check (share between 0 and 1),
  refreshed_at timestamptz not null,
  primary key (shard_id, class_id)
);

-- All nodes with the same labels and rack: the other side of the remembered eligibility.
create table hwqueue.profile (
  shard_id int not null,
  profile_id bigint generated always as identity,
  digest bytea not null,
  labels jsonb not null,
  rack bigint,
  anchors text[] not null,
  classes_seen xid8 not null default '0',
  classes_judged bigint[] not null default '{}',
  created_at timestamptz not null,
  primary key (shard_id, profile_id),
  unique (shard_id, digest)
);
comment on column hwqueue.profile.classes_seen is 'classes written by transactions below this one have been judged';
comment on column hwqueue.profile.classes_judged is 'and so have these, written by later ones';

-- Classes that a profile (or, when they name nodes or resources, one node) may run, with the affinity score.
create table hwqueue.profile_eligibility (
  shard_id int not null,
  profile_id bigint not null,
  queue_id int not null,
  class_id bigint not null,
  affinity double precision not null,
  primary key (shard_id, profile_id, queue_id, class_id)
);
create index profile_eligibility_class on hwqueue.profile_eligibility (shard_id, class_id);

create table hwqueue.node_eligibility (
  shard_id int not null,
  node_id uuid not null,
  queue_id int not null,
  class_id bigint not null,
  affinity double precision not null,
  primary key (shard_id, node_id, queue_id, class_id)
);
create index node_eligibility_class on hwqueue.node_eligibility (shard_id, class_id);

-- What a node is. Written by registration and operators only; node_state holds all that moves.
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
  primary key (shard_id, node_id)
);
create unique index node_name on hwqueue.node (shard_id, name) where deregistered_at is null;
create index node_profile on hwqueue.node (shard_id, profile_id);

-- The row that a claim, a settlement and every edit of the node lock first. Narrow, and updated only when
-- something is counted or the last sign of life is old.
create table hwqueue.node_state (
  shard_id int not null,
  node_id uuid not null,
  node_epoch bigint not null check (node_epoch > 0),
  seen_at timestamptz not null,
  classes_seen xid8 not null default '0',
  classes_judged bigint[] not null default '{}',
  claim_count int not null default 0 check (claim_count >= 0),
  cpu_used bigint not null default 0 check (cpu_used >= 0),
  memory_used bigint not null default 0 check (memory_used >= 0),
  gpu_used int[] not null default '{}',
  custom_used jsonb not null default '{}',
  primary key (shard_id, node_id)
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on column hwqueue.node_state.gpu_used is 'thousandths in use, device by device, in the order of node.gpu_ids';
comment on column hwqueue.node_state.claim_count is 'counted claims; claims that set nothing aside are not counted';

-- The permanent record. Untouched by a claim: one update when the lease ends or goes back.
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
  state text not null default 'open' check (state in ('open', 'completed', 'failed', 'cancelled')),
  attempt_count smallint not null default 0 check (attempt_count >= 0),
  claim_token bigint not null default 0,
  max_attempts smallint check (max_attempts between 1 and 1000),
  retry jsonb,
  claim_timeout interval check (claim_timeout > interval '0'),
  deadline timestamptz,
  idempotency_key text,
  available_at timestamptz not null,
  created_at timestamptz not null,
  node_id uuid,
  claimed_at timestamptz,
  finished_at timestamptz,
  result jsonb,
  error jsonb,
  primary key (shard_id, lease_id),
  check ((state = 'open') = (finished_at is null)),
  check (result is null or state = 'completed')
) with (fillfactor = 90, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_scale_factor = 0.1);
comment on column hwqueue.lease.state is 'open until finished; the public state says where the open lease waits or runs';
comment on column hwqueue.lease.position is 'sequence of its entry in ready; fresh whenever it becomes claimable again';
comment on column hwqueue.lease.priority is 'higher runs first';
comment on column hwqueue.lease.claim_token is 'token of the last claim that has ended; 0 before';
create index lease_finished on hwqueue.lease (shard_id, queue_id, finished_at) where finished_at is not null;
create index lease_class on hwqueue.lease (shard_id, class_id);

-- Claimable now. Rows are inserted and deleted, never updated: whoever locks one knows that it is as it was read.
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
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);
create unique index ready_class on hwqueue.ready (shard_id, class_id, tier, rank, position);
create index ready_deadline on hwqueue.ready (shard_id, deadline) where deadline is not null;
comment on column hwqueue.ready.claim_count is 'claims granted so far: the lower 40 bits of the next token, less one';

-- Not claimable before available_at.
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
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
create index scheduled_deadline on hwqueue.scheduled (shard_id, deadline) where deadline is not null;

-- Running. check_at is when reap should look next: it trails expires_at, so that heartbeats stay HOT.
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
  stop_reason text check (stop_reason in ('cancelled', 'preempted')),
  stop_by timestamptz,
  stop_detail text,
  primary key (shard_id, lease_id),
  check ((stop_requested_at is null) = (stop_reason is null))
) with (fillfactor = 60, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_cost_delay = 0);
create index claim_node on hwqueue.claim (shard_id, node_id);
create index claim_check on hwqueue.claim (shard_id, check_at);
comment on column hwqueue.claim.assignment is 'what was set aside; null when nothing is counted for it';

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
);

-- A key is its producer's promise that the content is the same; it lives as long as the lease.
create table hwqueue.idempotency (
  shard_id int not null,
  tenant text not null,
  queue_id int not null,
  idempotency_key text not null,
  lease_id uuid not null,
  content bytea not null,
  primary key (shard_id, tenant, queue_id, idempotency_key)
);

-- What a node has left at this moment: null means not counted. Built by hwqueue.node_headroom.
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
  gpu_whole int
);

-- A spawn that has been read and checked and only needs writing down.
create type hwqueue.spawn_request as (
  ordinal int,
  lease_id uuid,
  own_id boolean,
  class_id bigint,
  task_name text,
  params jsonb,
  headers jsonb,
  priority smallint,
  rank bigint,
  max_attempts smallint,
  retry jsonb,
  claim_timeout interval,
  deadline timestamptz,
  available_at timestamptz,
  tenant text,
  idempotency_key text,
  content bytea,
  notify boolean
);
