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
-- * Few checks. Postgres parses a table's checks again in each statement that writes to it, which costs
--   some microseconds of a claim. What lease, claim and outcome may hold is checked by the functions,
--   which are the only way in, and by the tests.
-- * Settings of autovacuum and fill factors: docs/explanation/upkeep.md says why.


-- == What is installed ==

create table hwqueue.schema_info (
  singleton boolean not null default true check (singleton),
  revision text not null,
  bundle_sha256 text not null,
  package_version text not null,
  roles_installed boolean not null,
  applied_at timestamptz not null default now(),
  primary key (singleton)
);
comment on table hwqueue.schema_info is
  'what hwqueue db upgrade installed last; clients read it when they start';

-- One row. No claim has a lower token than its generation, which rises at each start of the server and in a
-- copy.
create table hwqueue.installation (
  singleton boolean not null default true check (singleton),
  generation bigint not null default 0,
  system_identifier bigint,
  timeline int,
  server_started_at timestamptz,
  created_at timestamptz not null default now(),
  event_base bigint not null default 0,
  storage_path text,
  event_days int not null default 14 check (event_days between 1 and 14),
  node_expiry interval default '168 hours',
  wake_key uuid not null default gen_random_uuid(),
  node_epoch_floor bigint not null default 0,
  former_event_base bigint not null default 0,
  event_base_xid xid8 not null default '0',
  recovered_to pg_lsn,
  primary key (singleton)
);
comment on table hwqueue.installation is
  'one row: the generation, with which claim tokens begin, and settings of the installation';
comment on column hwqueue.installation.generation is
  'the token of a first claim: it rises at each start of the server, and in a copy';
comment on column hwqueue.installation.timeline is
  'with the next three: the start of a server that generation is of';
comment on column hwqueue.installation.event_base is
  'added to the ids of events, so that they rise on a server whose transaction ids do not';
comment on column hwqueue.installation.storage_path is
  'file of this table when server_started_at was written: every copy and every restore has another one';
comment on column hwqueue.installation.event_days is
  'for how many whole days prune keeps events; set_event_retention';
comment on column hwqueue.installation.node_expiry is
  'how long a node may be silent before prune deregisters it; null: for ever; set_node_expiry';
comment on column hwqueue.installation.wake_key is 'keeps names of queues out of notifications';
comment on column hwqueue.installation.node_epoch_floor is
  'the highest epoch of a node that prune has deleted; a new node begins above it';
comment on column hwqueue.installation.event_base_xid is
  'the transaction that raised event_base; ids of those that were open then follow former_event_base';
comment on column hwqueue.installation.recovered_to is
  'up to where the server had recovered when generation was written; null: it had no need to';
insert into hwqueue.installation default values;

-- Each time that the clock was set back, seen by roll_up. Ends before counted_to that were visible to
-- counted_as had been counted by then, and the count goes on at goes_on_at.


-- == Queues ==

-- The policy tuning. window_size: entries of the global order that a claim scans. probe_size: classes whose
-- head it may read beyond them. weight_*: of the parts of the score. notify: spawns wake workers.
-- earmark_time: how long room is kept at most when it is not known by when it is enough; then for as long not
-- again.
create type hwqueue.queue_tuning as (
  window_size int,
  probe_size int,
  weight_affinity double precision,
  weight_fit double precision,
  weight_spread double precision,
  notify boolean,
  earmark_time interval
);
create table hwqueue.queue (
  queue_id int generated always as identity,
  name text not null,
  claim_timeout interval not null,
  poll_interval interval not null,
  max_attempts smallint not null check (max_attempts between 1 and 1000),
  retry jsonb not null,
  ageing_step interval not null check (ageing_step >= interval '0'),
  max_params_bytes int not null check (max_params_bytes between 1 and 104857600),
  max_result_bytes int not null check (max_result_bytes between 1 and 104857600),
  retain_completed interval not null check (retain_completed >= interval '0'),
  retain_failed interval not null check (retain_failed >= interval '0'),
  paused_at timestamptz,
  dropped_at timestamptz,
  dropped_before xid8,
  created_at timestamptz not null,
  patience interval not null default '2 seconds',
  failure_domain text not null default 'rack',
  earmarks smallint not null default 1,
  has_prices boolean not null default false,
  everywhere_tenants text[] not null default '{}',
  everywhere_limit int not null default 20,
  tuning hwqueue.queue_tuning not null,
  preempt jsonb,
  preemptible jsonb,
  limits text[] not null default '{}',
  has_lanes boolean not null default false,
  primary key (queue_id)
);
create unique index queue_name on hwqueue.queue (name) where dropped_at is null;
comment on table hwqueue.queue is 'a queue and its policy';
comment on column hwqueue.queue.dropped_before is
  'transactions from this one on cannot have found the queue (purge_queues)';
comment on column hwqueue.queue.failure_domain is
  'of services that have none of their own: node, rack or label:KEY';
comment on column hwqueue.queue.earmarks is
  'how many gangs may have room kept for them on nodes that they could share; 0: none of this queue';
comment on column hwqueue.queue.has_prices is
  'claims read its prices; set with the first ones, cleared an hour after the last ones ran out';
comment on column hwqueue.queue.everywhere_tenants is
  'tenants whose callers may spawn everywhere tasks; *: all tenants';
comment on column hwqueue.queue.everywhere_limit is 'how many everywhere tasks such a tenant has at most';
comment on column hwqueue.queue.tuning is 'the policy for experts';
create index queue_preempt on hwqueue.queue (queue_id) where preempt is not null;
comment on column hwqueue.queue.preempt is 'how its leases preempt those of later tiers; null: not at all';
comment on column hwqueue.queue.preemptible is 'when its leases may be preempted; null: as by default';
comment on column hwqueue.queue.limits is 'limits of all leases that are spawned into it';
comment on column hwqueue.queue.has_lanes is
  'it has had leases that wait in lanes, so claims fold changes of lanes';

create table hwqueue.queue_signal (
  queue_id int not null,
  waiting_since timestamptz,
  primary key (queue_id)
) with (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.queue_signal is
  'set by a claim that found the queue empty; the next spawn sends a notification and clears it';

create table hwqueue.task (
  name text not null,
  defaults jsonb not null,
  set_at timestamptz not null,
  set_by text not null,
  by_hand boolean not null default true,
  version text,
  earlier bytea[] not null default '{}',
  primary key (name)
);
comment on table hwqueue.task is 'the spawn options that leases of a task have by default';
comment on column hwqueue.task.defaults is 'spawn options, as they were given; a spawn''s own options win';
comment on column hwqueue.task.by_hand is 'set_task has set them: a worker does not replace them';
comment on column hwqueue.task.version is 'of the app that declares them; null: it has not said';
comment on column hwqueue.task.earlier is
  'digests of the last 100 defaults that it had before: an app that declares one of them is older';


-- == Classes ==

-- Two sessions that meet the same new class at once insert a row each and do not wait for each other: later
-- spawns use the lower class_id, the other one drains and is pruned.
create table hwqueue.placement_class (
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
  cost int not null default 1 check (cost > 0),
  max_run interval,
  is_choice boolean not null default false,
  asked bytea
);
create index placement_class_anchors on hwqueue.placement_class using gin (anchors);
create index placement_class_labels on hwqueue.placement_class using gin (labels jsonb_path_ops);
create index placement_class_asks on hwqueue.placement_class using gin (terms jsonb_path_ops)
  where terms <> '[]';
alter table hwqueue.placement_class add primary key (class_id);
create index placement_class_asked on hwqueue.placement_class (asked) where asked is not null;
create index placement_class_bounded on hwqueue.placement_class (queue_id, max_run) where max_run is not null;
create index placement_class_created on hwqueue.placement_class (created_xid, class_id);
create index placement_class_digest on hwqueue.placement_class (digest);
-- for prune: what belongs to a dropped queue
create index placement_class_queue on hwqueue.placement_class (queue_id);
create index placement_class_retired on hwqueue.placement_class (retired_at) where retired_at is not null;
create index placement_class_service on hwqueue.placement_class (service_id) where service_id is not null;
create index placement_class_terms on hwqueue.placement_class (created_at, class_id)
  where terms <> '[]' and not terms_written;
create index placement_class_waits on hwqueue.placement_class (class_id) where waits;
comment on table hwqueue.placement_class is
  'what decides where and whether a lease may run; leases that ask the same share a class';
comment on column hwqueue.placement_class.labels is
  'null for a key: hidden, since no term names it (constraints/labels)';
comment on column hwqueue.placement_class.anchors is
  'the alternatives of one required positive equality, {*} if there is none: an index over them finds the '
  'classes of a node';
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
  'trust domains that its requirements mention: attestations expire, so a claim checks them again';
comment on column hwqueue.placement_class.cpu_isolation is
  'the class asked for; null: the node''s default. Likewise gpu_exclusivity';
comment on column hwqueue.placement_class.waits is
  'it must be with a lease that has not started yet: no claim judges it before that';
comment on column hwqueue.placement_class.is_woken is
  'created_xid is of the transaction that made it a candidate, not of the one that wrote it';
comment on column hwqueue.placement_class.cost is
  'what judging a node for it costs at most, in plain expressions (placement_cost)';
comment on column hwqueue.placement_class.max_run is
  'how long a lease may run; then it is asked to stop, and its attempt fails; null: as long as it takes';
comment on column hwqueue.placement_class.asked is
  'digest of the options of the spawn that wrote it, as they were given: the next one need not read them';
comment on column hwqueue.placement_class.is_choice is
  'its leases are alternatives: each claim of one has to be the first of its choice';

create table hwqueue.service (
  service_id uuid not null,
  failure_domain text,
  away_from uuid[] not null default '{}',
  primary key (service_id)
);
comment on table hwqueue.service is 'what operators said about a service';
comment on column hwqueue.service.failure_domain is 'node, rack or label:KEY; null: that of the queue';
comment on column hwqueue.service.away_from is 'services that its leases keep away from';


-- == Nodes and profiles ==

-- A judge notes how far it has come in the classes: next_xid and the running transactions of its snapshot,
-- and within one transaction the last class.
create table hwqueue.profile (
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
  primary key (profile_id),
  unique (digest)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500);
create index profile_judged_as on hwqueue.profile (judged_as) where judged_as is not null;
comment on table hwqueue.profile is
  'all nodes with the same labels, rack, taints and isolation; a class is judged once for a profile';
comment on column hwqueue.profile.classes_seen is
  'classes of transactions below this one have been judged, but for those of classes_unseen; next_xid of '
  'what the last judge has seen';
comment on column hwqueue.profile.taints is 'those of the nodes and those of operators, without their times';
comment on column hwqueue.profile.classes_unseen is 'transactions that ran when classes were last judged';
comment on column hwqueue.profile.judged_xid is
  'of the classes of this transaction, those up to judged_class have been judged, too';
comment on column hwqueue.profile.judged_as is
  'the profile that is judged for this one: the same without some labels; null: itself';
comment on column hwqueue.profile.left_out is
  'labels that nodes judged as this profile have in addition; a class that mentions one does not match it';

-- Nodes that differ only in such labels, which no class mentions, are judged as one.
create table hwqueue.ignored_label (
  key text not null,
  is_mentioned boolean not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (key)
);
comment on table hwqueue.ignored_label is
  'a label with very many values; nodes that differ only in such labels are judged as one';
comment on column hwqueue.ignored_label.is_mentioned is 'some class mentions it: it is left out no more';
comment on column hwqueue.ignored_label.next_xid is
  'with unseen: what was seen of the classes when they were last asked';

-- Written by registration and operators; of silence reap takes note.
create table hwqueue.node (
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
  attestations jsonb not null default '{}',
  attested text[] not null default '{}',
  attested_until timestamptz[] not null default '{}',
  cpu_isolation text[] not null default '{best_effort}',
  gpu_exclusivity text[] not null default '{shared}',
  default_cpu_isolation text not null default 'best_effort',
  gpu_share_mode text not null default 'fractional',
  core_ids int[] not null default '{}',
  core_numa int[] not null default '{}',
  gpu_parents uuid[] not null default '{}',
  queues text[],
  tasks text[],
  concurrency int check (concurrency > 0),
  hears_deaths boolean not null default false,
  declared text[],
  silent_since timestamptz,
  primary key (node_id)
);
-- The nodes whose workers take deaths. Most fleets have none.
create index node_hearing on hwqueue.node (node_id) where hears_deaths;
create index node_silent on hwqueue.node (node_id) where silent_since is not null;
-- for prune: which nodes left long ago
create index node_deregistered on hwqueue.node (deregistered_at) where deregistered_at is not null;
create unique index node_name on hwqueue.node (name) where deregistered_at is null;
-- for reap: whose claims may have to stop after a time
create index node_no_execute on hwqueue.node (node_id)
  where (taints || operator_taints) @> '[{"effect": "no_execute"}]';
create index node_profile on hwqueue.node (profile_id);
comment on table hwqueue.node is
  'what a node is, and what its worker announced; registration and operators write it';
comment on column hwqueue.node.taints is
  'those it registered with, each with the time it came ("since"); a registration replaces them';
comment on column hwqueue.node.operator_taints is
  'those that operators put on it; no registration takes them away';
comment on column hwqueue.node.attestations is
  'what operators said of the trust domains that it is in: {DOMAIN: {"expires_at", "attested_at", '
  '"attested_by", "any_instance": for each that its login registers, "suspended_at": since when it does not '
  'count, until an operator confirms it, "suspended_why"}}';
comment on column hwqueue.node.attested is
  'trust domains of its attestations, for claims; what has expired stays until it is revoked';
comment on column hwqueue.node.attested_until is 'when each of them expires; infinity: never';
comment on column hwqueue.node.cpu_isolation is
  'classes honoured, as is gpu_exclusivity; best_effort and shared always are';
comment on column hwqueue.node.core_ids is
  'cores that are counted one by one, in the order of cores; empty unless whole cores are honoured';
comment on column hwqueue.node.gpu_parents is
  'of each device, the one that it is a part of; null: a whole device; empty: all are whole';
comment on column hwqueue.node.queues is
  'queues that its worker polls; null: it has not said; likewise the next four, until the node leaves';
comment on column hwqueue.node.tasks is 'tasks that it has handlers for';
comment on column hwqueue.node.concurrency is 'how many leases its worker runs at a time';
comment on column hwqueue.node.hears_deaths is 'its worker takes from death what it serves';
comment on column hwqueue.node.declared is 'tasks for which its app declares defaults';
comment on column hwqueue.node.silent_since is
  'when reap reported that it is silent; null: it has not, or the node is back: each change once';

-- It holds what most claims must know of the node, and is updated only when that changes or when the last
-- sign of life is old. login is a name of a role: a dump keeps names, and oids are different on another
-- server.
create table hwqueue.node_state (
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
  has_reserved boolean not null default false,
  expands_until timestamptz,
  recovered_to pg_lsn,
  token_name text,
  secret_sha256 bytea,
  check ((judged_xid is null) = (judged_class is null))
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
create index node_state_moved on hwqueue.node_state (moved_xid);
alter table hwqueue.node_state add primary key (node_id);
create index node_state_expands on hwqueue.node_state (node_id) where expands_until is not null;
comment on table hwqueue.node_state is
  'what a claim must know of the node; claims, settlements and changes of the node lock this row first';
comment on column hwqueue.node_state.classes_seen is
  'as of a profile, for classes that are judged per node; likewise classes_unseen, judged_xid';
comment on column hwqueue.node_state.on_fast_path is
  'registered, not cordoned, without GPUs, custom countables and cores counted one by one: most of its '
  'claims take the oldest entry';
comment on column hwqueue.node_state.has_limits is 'claims on the node may allocate something';
comment on column hwqueue.node_state.pinned_queues is
  'queues in which eligibility has rows of this node';
comment on column hwqueue.node_state.generation is
  'of the installation, as long as the server has neither been started nor recovered since';
comment on column hwqueue.node_state.met_blocked is
  'its last claims met classes that are blocked now: the next one reads all that are blocked before it '
  'starts';
comment on column hwqueue.node_state.moved_xid is
  'the transaction that last changed what the node is, or in which it became live again';
comment on column hwqueue.node_state.next_constrained_class is
  'the class that its last claim tried when it gave up; the next such claim begins behind it';
comment on column hwqueue.node_state.awaits_terms is
  'its claims take a step for terms that wait to be published, as long as there are any';
comment on column hwqueue.node_state.storage_path is 'of the installation, when generation was read';
comment on column hwqueue.node_state.login is
  'the role whose members may act for the node; null: any worker, until it registers again';
comment on column hwqueue.node_state.has_reserved is 'claims of the node may be reserved';
comment on column hwqueue.node_state.expands_until is
  'it has registered: until then only everywhere tasks get its room; null: they have it';
comment on column hwqueue.node_state.recovered_to is 'of the installation, when generation was read';
comment on column hwqueue.node_state.token_name is
  'of a worker over HTTP: whose node it is; its login is that of the server';
comment on column hwqueue.node_state.secret_sha256 is 'of the secret that its last registration made';

-- What is in use on a node, apart from node_state, since it changes with every counted claim. The newest
-- version counts; after 32 updates comes a new one. No column may be null: with a null among its columns an
-- update of the row writes more of it to the WAL.
create table hwqueue.node_load (
  node_id uuid not null,
  version bigint not null,
  updates int not null default 0,
  claim_count int not null default 0,
  cpu_used bigint not null default 0,
  memory_used bigint not null default 0,
  gpu_used int[] not null default '{}',
  custom_used jsonb not null default '{}',
  core_used int[] not null default '{}',
  primary key (node_id, version)
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.node_load is 'what claims have allocated on a node; the newest version counts';
comment on column hwqueue.node_load.claim_count is
  'claims that allocated something; the others are not counted';
comment on column hwqueue.node_load.gpu_used is
  'thousandths in use, device by device, in the order of node.gpu_ids';
comment on column hwqueue.node_load.core_used is
  'thousandths in use, core by core, in the order of node.core_ids';


-- == Tenants ==

create table hwqueue.tenant (
  name text not null,
  spec jsonb not null,
  tier smallint generated always as (
    case spec ->> 'tier' when 'scavenger' then 2 when 'best_effort' then 1 else 0 end) stored,
  usage jsonb not null default '{}',
  counted_at timestamptz,
  created_at timestamptz not null,
  primary key (name)
);
comment on table hwqueue.tenant is
  'what a tenant may have; one without a row is guaranteed, or what the row * says';
comment on column hwqueue.tenant.spec is 'the specification in normal form';
comment on column hwqueue.tenant.tier is 'of its leases from now on: those of an earlier tier run first';
comment on column hwqueue.tenant.usage is
  '{name: {what: how many}} of what has a quota, as reap has counted it; in the row * of those tenants '
  'without a row that have all they may';

-- Rows are inserted by spawns, and deleted by reap, which adds them to the tenant's usage.
create table hwqueue.spawn_count (
  count_id bigint generated always as identity,
  tenant text not null,
  spawned int not null,
  primary key (count_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
comment on table hwqueue.spawn_count is
  'leases that a call has spawned for a tenant whose spawns are bounded, not yet in tenant.usage';

create table hwqueue.tenant_login (
  login text not null,
  tenant text not null,
  rights text[] not null,
  granted_at timestamptz not null,
  primary key (login, tenant)
);
comment on table hwqueue.tenant_login is
  'for which tenants a bound login, a member of hwqueue_tenants, calls; read by no other login';
comment on column hwqueue.tenant_login.login is 'a name, so that a dump and a restore keep it';
comment on column hwqueue.tenant_login.rights is 'read, and of spawn and operate what was granted';


-- == Limits ==

create type hwqueue.limit_kind as enum ('slots', 'fair', 'rate');

create table hwqueue.limit_rule (
  limit_id int generated always as identity,
  name text not null,
  kind hwqueue.limit_kind not null,
  spec jsonb not null default '{}',
  most int not null check (most > 0),
  per interval check (per > interval '0'),
  turn interval check (turn > interval '0'),
  changed_from bigint,
  created_at timestamptz not null,
  dropped_at timestamptz,
  check ((per is not null) = (kind = 'rate') and (turn is not null) = (kind = 'slots')),
  primary key (limit_id)
);
create unique index limit_rule_name on hwqueue.limit_rule (name) where dropped_at is null;
comment on table hwqueue.limit_rule is 'a limit: how many of its leases run, take turns, or start in a time';
comment on column hwqueue.limit_rule.spec is
  'the specification in normal form; what claims need of it stands in columns: it may be long';
comment on column hwqueue.limit_rule.most is
  'how many run at a time (slots), may start at once (rate), or stand in line for a key of weight 1 (fair)';
comment on column hwqueue.limit_rule.per is 'of kind rate: from one start to the next, in the long run';
comment on column hwqueue.limit_rule.turn is
  'of kind slots: for how long a lease that no node takes keeps its slot';
comment on column hwqueue.limit_rule.changed_from is
  'reap has yet to fold the lanes from this one on, because the limit was changed; null: none';

-- A place in the line of a lane.
create type hwqueue.lane_place as (
  tier smallint,
  rank bigint,
  turn bigint
);

-- The line of one key of a limit. Two low bits of lane_id are the kind (0 slots, 1 fair, 2 rate), the others
-- a hash of limit, tenant and key, so that a spawn looks nothing up. used counts what the lane has let
-- through: of slots the leases that are ready or run, of the others those that no claim has taken yet. It
-- lags behind lane_change. Who folds the first change of a key writes its row.
create table hwqueue.lane (
  lane_id bigint not null,
  limit_id int not null,
  tenant text,
  key text,
  weight real not null default 1 check (weight > 0),
  used int not null default 0,
  tat timestamptz not null default '-infinity',
  closed_until timestamptz,
  head hwqueue.lane_place not null default '(-32768,-9223372036854775808,-9223372036854775808)',
  primary key (lane_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);
create index lane_limit on hwqueue.lane (limit_id, lane_id);
create index lane_closed on hwqueue.lane (closed_until) where closed_until is not null;
comment on table hwqueue.lane is 'the line of one key of a limit; a limit without keys has one lane';
comment on column hwqueue.lane.tenant is 'whose key it is; null: of a limit without keys, so of all tenants';
comment on column hwqueue.lane.tat is 'of kind rate: when the next lease may start, if the burst is used up';
comment on column hwqueue.lane.closed_until is 'it lets no lease through until then (throttle_limit)';
comment on column hwqueue.lane.head is
  'no lease is parked before this place, but for those whose lane_change says so: where scans start';

-- Rows are inserted, and deleted by who holds the lane. limit_id, tenant, key: with what its lane is written,
-- if it is new. tenant '': of a lane of all tenants, or of one to be looked at; tenants take turns.
create table hwqueue.lane_change (
  change_id bigint generated always as identity,
  tenant text not null default '',
  lane_id bigint not null,
  delta int not null default 0,
  limit_id int,
  key text,
  head hwqueue.lane_place,
  primary key (change_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
create index lane_change_lane on hwqueue.lane_change (lane_id, change_id);
create index lane_change_tenant on hwqueue.lane_change (tenant, change_id);
comment on table hwqueue.lane_change is 'leases that came to a lane or left it, not yet counted in lane.used';
comment on column hwqueue.lane_change.delta is '0: a lease came, or the lane is to be folded';
comment on column hwqueue.lane_change.head is 'of the leases that came, the place of the first';

-- A lane of a lease. of_queue: by the policy of its queue, not by its own option.
create type hwqueue.lane_ref as (
  lane_id bigint,
  limit_id int,
  key text,
  of_queue boolean
);

-- What a spawn has for itself and its caller has read: its lanes, the tier of its tenant, its labels.
create type hwqueue.spawn_own as (
  lanes hwqueue.lane_ref[],
  tier smallint,
  labels jsonb
);


-- == Leases and their entries ==

-- Neither a claim nor a completion writes to it: it is updated when the lease goes back to its queue, falls
-- due or is changed, and the fill factor leaves room for that. wire holds the params blob as it was sent, for
-- audit; null costs nothing.
create table hwqueue.lease (
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
  run_id uuid,
  step_no int,
  item_no int,
  near_node uuid,
  team_id uuid,
  choice_id uuid,
  tenant text,
  lanes hwqueue.lane_ref[],
  lanes_passed smallint,
  labels jsonb
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05,
        fillfactor = 90);
create index lease_class on hwqueue.lease (class_id);
create index lease_item on hwqueue.lease (run_id, step_no, item_no) where item_no is not null;
alter table hwqueue.lease add primary key (lease_id);
comment on table hwqueue.lease is
  'the permanent record of a unit of work; neither a claim nor a completion writes to it';
comment on column hwqueue.lease.priority is 'higher runs first';
comment on column hwqueue.lease.position is
  'sequence of its entry in ready; fresh whenever it becomes claimable again';
comment on column hwqueue.lease.claim_token is
  'of the last claim that ended without ending the lease; 0: none did. So with attempt_count, node_id, '
  'claimed_at';
comment on column hwqueue.lease.run_id is 'the run whose step this is; null: a lease of its own';
comment on column hwqueue.lease.item_no is
  'its place in the list of a map, from 0, its rank in the gang that its step is, or its place among the '
  'items that its step has added; -1: the own lease of a step that has added items; null: of no such step';
comment on column hwqueue.lease.near_node is
  'the node that its class prefers because its handler was suspended there; null: none for that reason';
comment on column hwqueue.lease.team_id is
  'the gang that it starts with; its own id: it is of an everywhere task; null: it starts alone';
comment on column hwqueue.lease.choice_id is 'the choice that it is an alternative of; null: of none';
comment on column hwqueue.lease.tenant is 'that of the run whose step this is; null: a lease of its own';
comment on column hwqueue.lease.lanes is
  'the lanes that it has to pass, one after the other, before it is ready; null: none';
comment on column hwqueue.lease.labels is
  'all of its labels, also those that its class hides; null: they are those of its class';
comment on column hwqueue.lease.lanes_passed is
  'how many of them it has passed, as long as it waits or is reserved; null: none';

-- Rows are inserted and deleted; only class_id is ever updated, when a new term names the lease. Apart from
-- its class, an entry is as it was read once it is locked.
create table hwqueue.ready (
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
  is_limited boolean,
  primary key (queue_id, tier, rank, position) include (class_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = -1);
create unique index ready_class on hwqueue.ready (class_id, tier, rank, position);
create index ready_limited on hwqueue.ready (queue_id, position) where is_limited;
-- when a lease fails, but never before its entry was written: a new entry comes behind reap's mark
create index ready_deadline on hwqueue.ready (greatest(deadline, eligible_at)) where deadline is not null;
comment on table hwqueue.ready is
  'a lease that is claimable now; rows are inserted and deleted, never updated';
comment on column hwqueue.ready.claim_count is
  'claims granted so far: the lower 40 bits of the next token, less one';
comment on column hwqueue.ready.is_limited is 'it has passed the lanes of its lease; null: there are none';

-- What an entry waits for: a time; room for its gang, or on the node of its everywhere task (team); the room
-- of the lease that it replaces (place, and that one's, once held back); a signal that may come at any time;
-- its lane (limit): it is parked there, and its turn is its place in the lane; or that its queue goes on: its
-- lane is that of the queue then (claim/lanes).
create type hwqueue.held_by as enum ('time', 'team', 'place', 'signal', 'limit');

-- Rows are inserted and deleted; only class_id and turn are ever updated. held_by fills a gap before rank.
-- turn: not null if the lease has lanes to pass, so that who makes it due looks at them.
create table hwqueue.scheduled (
  queue_id int not null,
  tier smallint not null,
  attempt_count smallint not null,
  claim_count int not null,
  held_by hwqueue.held_by not null default 'time',
  rank bigint not null,
  class_id bigint not null,
  lease_id uuid not null,
  available_at timestamptz not null check ((available_at < 'infinity') = (held_by = 'time')),
  deadline timestamptz,
  lane_id bigint check ((lane_id is not null) = (held_by = 'limit')),
  turn bigint check (turn is not null or lane_id is null),
  primary key (queue_id, available_at, lease_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
create index scheduled_deadline on hwqueue.scheduled (deadline) where deadline is not null;
create index scheduled_lane on hwqueue.scheduled (lane_id, tier, rank, turn) where lane_id is not null;
comment on table hwqueue.scheduled is 'a lease that waits for what held_by says, and until available_at';

-- A producer's key, which promises that the content is the same. It lives as long as the lease.
create table hwqueue.idempotency (
  tenant text not null,
  queue_id int not null,
  idempotency_key text not null,
  lease_id uuid not null,
  content bytea not null,
  held_until timestamptz,
  primary key (tenant, queue_id, idempotency_key)
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
comment on table hwqueue.idempotency is 'the idempotency key of a producer, or the key of the option unique';
comment on column hwqueue.idempotency.held_until is
  'of the option unique: until then another spawn finds the lease; infinity: while it is open. Null: of an '
  'idempotency key, for as long as the lease is kept';

-- Below a mark nothing lives and nothing can come. class_id 0: the order of the whole queue. A class has
-- marks of its own while the head of its queue is blocked, so that the queue's mark cannot move.
create table hwqueue.low_water (
  queue_id int not null,
  class_id bigint not null,
  version bigint not null,
  tiers smallint[] not null default '{}',
  ranks bigint[] not null default '{}',
  positions bigint[] not null default '{}',
  moved bigint[] not null default '{}',
  blocked_to_version bigint not null default 0,
  is_single boolean generated always as (cardinality(tiers) = 1) stored,
  tier smallint generated always as (tiers[1]) stored,
  rank bigint generated always as (ranks[1]) stored,
  position bigint generated always as (positions[1]) stored,
  primary key (queue_id, class_id, version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.low_water is
  'low-water marks: where scans of ready start, one mark for each tier and rank; the newest version counts';
comment on column hwqueue.low_water.moved is 'the version that moved each mark last';
comment on column hwqueue.low_water.is_single is
  'there is one mark; tier, rank, position: the first one';
comment on column hwqueue.low_water.blocked_to_version is
  'of a queue (class_id 0): below this version its head is blocked, and claims read the marks of classes';

-- Positions up to drawn_position were drawn by transactions below drawn_before; once those have ended it
-- becomes safe_position: no uncommitted spawn, of any length, can bring a lower one.
create table hwqueue.position_horizon (
  version bigint not null,
  safe_position bigint not null,
  drawn_position bigint not null,
  drawn_before xid8 not null,
  primary key (version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.position_horizon is 'how far low-water marks may move; the newest version counts';
insert into hwqueue.position_horizon (version, safe_position, drawn_position, drawn_before)
  values (0, 0, 0, '0');


-- == Claims ==

-- check_at is when reap should look next: it trails expires_at, so that heartbeats change no index (HOT).
create table hwqueue.claim (
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
  is_step boolean,
  team_id uuid,
  is_reserved boolean,
  is_earmark boolean,
  yields_at timestamptz,
  lanes bigint[]
) with (fillfactor = 60, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_threshold = -1);
create index claim_node on hwqueue.claim (node_id);
create index claim_check on hwqueue.claim (check_at);
create index claim_stopping on hwqueue.claim (class_id) where stop_requested_at is not null;
alter table hwqueue.claim add primary key (lease_id);
comment on table hwqueue.claim is 'a running lease: which node runs it, with which token, until when';
comment on column hwqueue.claim.assignment is 'what was allocated; null when nothing is counted for it';
comment on column hwqueue.claim.stop_requested_at is
  'when the worker is asked to stop; in the future while a taint is tolerated for a time, or a grace runs';
comment on column hwqueue.claim.stop_reason is
  'cancelled; preempted: its node is drained or tainted, or not trusted any more, or its gang does not run '
  'as a whole; tier_preempted: an earlier tier needs its room; run_time_exceeded; placement_broken: a '
  'requirement during execution does not hold any more';
comment on column hwqueue.claim.term_deltas is
  'what it has added to term_counter; null when no term selects it';
comment on column hwqueue.claim.login is
  'that of its node, copied: who settles a claim reads this row and not the node''s';
comment on column hwqueue.claim.eligible_at is
  'since when its lease could be claimed; null: the lease stays when it completes, as its queue says or its'
  ' idempotency key wants it';
comment on column hwqueue.claim.is_awaited is 'a session listens for the end of the lease (await_leases)';
comment on column hwqueue.claim.is_step is
  'not null: the settlement continues a run (lease.run_id); false: of an item of a map; null: no run waits '
  'for this lease';
comment on column hwqueue.claim.team_id is 'as in lease: of an everywhere task the lease''s own id';
comment on column hwqueue.claim.is_reserved is
  'its node has not fetched it yet; null: it has, as every claim that a node has asked for';
comment on column hwqueue.claim.is_earmark is
  'reserved, and its room is still in use by others: its node cannot fetch it yet; null: of all others';
comment on column hwqueue.claim.yields_at is
  'of an earmark: when it had room and waited for leases that come before it';
comment on column hwqueue.claim.lanes is
  'the lanes of kind slots whose slots it has; null: none, or reserved (lease.lanes_passed)';

create table hwqueue.placement_check (
  lease_id uuid not null,
  claim_no int not null,
  broken jsonb not null default '[]',
  primary key (lease_id, claim_no)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.placement_check is
  'a claim with requirements that must hold as long as it runs: reap checks them';
comment on column hwqueue.placement_check.claim_no is 'the lower 31 bits of its claim token';
comment on column hwqueue.placement_check.broken is
  'those that do not hold: [{"at": place in placement_class.required, from 0, "code", "since"}]';

-- How a lease ended, so that a settlement deletes the claim, inserts this row and leaves the lease's row
-- alone.
create table hwqueue.outcome (
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
  eligible_at timestamptz,
  is_step boolean,
  assignment jsonb,
  primary key (lease_id)
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
-- for prune, requeue_failed and the figures
create index outcome_finished on hwqueue.outcome (queue_id, state, finished_at);
comment on table hwqueue.outcome is 'how a lease ended; a lease without a row here is open: it waits or runs';
comment on column hwqueue.outcome.claim_token is
  'of the last claim that the lease had; 0: it was never claimed';
comment on column hwqueue.outcome.attempt is
  'how many attempts the lease had used up; so with claimed_at and node_id';
comment on column hwqueue.outcome.state is 'completed, failed or cancelled';
comment on column hwqueue.outcome.eligible_at is
  'of a lease that went when it completed: since when it could be claimed; null: the lease is there';
comment on column hwqueue.outcome.is_step is
  'true: it is kept until its run goes; null: of a lease of its own';
comment on column hwqueue.outcome.assignment is
  'what was allocated for the last claim; null when nothing was counted for it';

create table hwqueue.attempt (
  lease_id uuid not null,
  claim_token bigint not null,
  attempt smallint not null,
  node_id uuid not null,
  outcome text not null check (outcome in ('completed', 'failed', 'expired', 'superseded', 'released',
    'cancelled')),
  claimed_at timestamptz not null,
  ended_at timestamptz not null,
  error jsonb,
  assignment jsonb
) with (autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05,
        autovacuum_vacuum_insert_threshold = 10000, autovacuum_vacuum_insert_scale_factor = 0.05);
-- for roll_up
create index attempt_ended on hwqueue.attempt (ended_at);
alter table hwqueue.attempt add primary key (lease_id, claim_token);
comment on table hwqueue.attempt is 'a claim that ended without completing its lease';
comment on column hwqueue.attempt.assignment is 'what was allocated; null when nothing was counted for it';

create table hwqueue.attempt_log (
  lease_id uuid not null,
  claim_token bigint not null,
  line int not null,
  attempt smallint not null,
  logged_at timestamptz not null,
  level text not null,
  message text not null,
  fields jsonb,
  primary key (lease_id, claim_token, line)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.attempt_log is
  'what the handler of a claim logged, its last 1,000 lines; they stay when the claim ends, until the lease'
  ' goes';
comment on column hwqueue.attempt_log.line is
  'the number of the line in its claim, from 1; a gap means lines that were dropped';
comment on column hwqueue.attempt_log.logged_at is 'by the clock of the node';

-- How far claims have come, as their handlers say: a row for each claim that reports.
create table hwqueue.progress (
  lease_id uuid not null,
  claim_token bigint not null,
  reported_at timestamptz not null,
  fraction double precision,
  done bigint,
  total bigint,
  message text,
  primary key (lease_id, claim_token)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.progress is
  'how far a claim has come, as its handler reported last; it stays when the claim ends, until the lease '
  'goes';
comment on column hwqueue.progress.fraction is 'from 0 to 1; null: not known';
comment on column hwqueue.progress.done is 'of total, in a unit of the handler''s; null: it does not count';

-- What handlers saved: a row for each step that has ended and for each wait.
create table hwqueue.checkpoint (
  lease_id uuid not null,
  name text not null,
  claim_token bigint not null,
  saved_at timestamptz not null,
  is_open boolean not null,
  state jsonb,
  signal text,
  waits_until timestamptz,
  number int not null default 0,
  primary key (lease_id, name)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
-- partial, so that a search by name has but the primary key: others begin with the lease, too
create index checkpoint_number on hwqueue.checkpoint (lease_id, number) where number > 0;
create index checkpoint_open on hwqueue.checkpoint (lease_id) where is_open;
comment on table hwqueue.checkpoint is
  'what the handler of a lease has saved, by name: results of steps, and waits; the rows stay until the '
  'lease goes';
comment on column hwqueue.checkpoint.claim_token is 'the claim that wrote the row last';
comment on column hwqueue.checkpoint.is_open is
  'a wait that has not ended; the one that the last claim ended with suspends the lease';
comment on column hwqueue.checkpoint.state is
  'the result of the step, or the payload of the signal; null: an open wait, a sleep, or a wait that timed '
  'out';
comment on column hwqueue.checkpoint.signal is 'of a wait: the signal that it waits for';
comment on column hwqueue.checkpoint.waits_until is
  'of a wait: when it ends at the latest; null: it has no timeout';
comment on column hwqueue.checkpoint.number is
  'from 1 in each lease, in the order in which names were saved first';

-- Signals of leases, in the order in which they were sent.
create table hwqueue.lease_signal (
  lease_id uuid not null,
  number int not null,
  name text not null,
  key text,
  sent_at timestamptz not null,
  taken_as text,
  payload jsonb,
  primary key (lease_id, number)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
create unique index lease_signal_key on hwqueue.lease_signal (lease_id, name, key) where key is not null;
create index lease_signal_open on hwqueue.lease_signal (lease_id, name, number) where taken_as is null;
comment on table hwqueue.lease_signal is
  'signals that leases were sent, numbered from 1 in each lease; the rows stay until the lease goes';
comment on column hwqueue.lease_signal.key is
  'the sender''s name for the signal: a lease takes a signal of this name and key once';
comment on column hwqueue.lease_signal.taken_as is
  'the checkpoint that has the payload now; null: no wait has taken the signal yet';

-- A row goes when a worker takes it, or after an hour. Without a worker that has such hooks there are none.
create table hwqueue.death (
  lease_id uuid not null,
  queue_id int not null,
  task_name text not null,
  claim_token bigint not null,
  died_at timestamptz not null,
  primary key (lease_id)
);
create index death_oldest on hwqueue.death (died_at);
comment on table hwqueue.death is
  'leases that died without a handler, until a worker with hooks for that takes them; an hour at most';


-- == Affinity terms and their counters ==
-- What leases ask about other leases.

-- Equal terms of several classes are one row. It is published, and its leases are counted, once published_at
-- is set.
create table hwqueue.affinity_term (
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
  published_at timestamptz
);
create index term_anchors on hwqueue.affinity_term using gin (anchors);
alter table hwqueue.affinity_term add primary key (term_id);
create unique index term_digest on hwqueue.affinity_term (digest);
-- for the steps that bring terms into force
create index term_unpublished on hwqueue.affinity_term (created_at, term_id) where published_at is null;
comment on table hwqueue.affinity_term is
  'a selection of leases, and the domain (node, rack, label) in which they are counted';
comment on column hwqueue.affinity_term.written_xid is
  'the transaction that last linked a class to it; 0 before the first';
comment on column hwqueue.affinity_term.publish_after_xid is
  'published once all transactions below this one have ended: they may not know of it';
comment on column hwqueue.affinity_term.was_published is
  'it was published before and is counted again: the leases that it selects wait as well';

create table hwqueue.class_term (
  class_id bigint not null,
  term_id bigint not null,
  is_own boolean not null default false,
  use text,
  most bigint,
  is_self boolean,
  lease_id uuid
);
create index class_term_class on hwqueue.class_term (class_id, is_own);
create index class_term_lease on hwqueue.class_term (lease_id) where lease_id is not null;
create index class_term_term on hwqueue.class_term (term_id);
-- Without a key: a publication for all tables would refuse updates and deletes of its rows, so the whole row
-- is their identity. That costs something only while a publication has the table, at wal_level logical. So
-- with other tables that have no key.
alter table hwqueue.class_term replica identity full;
comment on table hwqueue.class_term is
  'the term selects leases of the class, the same row twice does no harm; or, with is_own, the class has the '
  'term: one statement decides about many classes by these rows';
comment on column hwqueue.class_term.use is
  'of its own: away, toward, cap and skew that are required on their own keep it from a node by what runs in '
  'its place (most: of cap and skew, the limit); known: any other, of which it must be known what runs';
comment on column hwqueue.class_term.lease_id is
  'of its own: the lease that the term names; null: it selects by what classes are';

-- How many leases of a term run in one place of its domain, and how many holders (leases that ask for it).
create table hwqueue.term_counter (
  term_id bigint not null,
  place text not null,
  leases int not null,
  holders int not null,
  updates int not null,
  dropped_xid xid8
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
create index term_counter_dropped on hwqueue.term_counter (term_id, dropped_xid)
  where dropped_xid is not null;
create index term_counter_place on hwqueue.term_counter (term_id, place);
alter table hwqueue.term_counter replica identity full;
comment on table hwqueue.term_counter is 'what runs of a term in a place: the sum over all rows of both';
comment on column hwqueue.term_counter.dropped_xid is
  'of max_skew: the transaction that last took leases away; null for other terms';

-- Lock stripes: each row stands for some (term, place) pairs. A claim that decides by a count locks the
-- pair's row alone, one that only changes the count shares it. No claim waits for a stripe: it leaves the
-- lease to the next claim.
create table hwqueue.lock_stripe (
  stripe_id int not null,
  primary key (stripe_id)
);
comment on table hwqueue.lock_stripe is 'rows to be locked, each for some (term, place) pairs; never written';
insert into hwqueue.lock_stripe (stripe_id)
select g from generate_series(0, 16383) g;


-- == Caches ==
-- What claims and upkeep have found out and can find out again.

-- Which classes nodes may run, judged for a profile, or for one node if the class names nodes, resources or
-- trust domains. With the affinity score and, copied from the class, what a claim filters and scores by: a
-- claim reads one row for each class instead of three. node_id is the last column: what follows a null is
-- slower to read.
create table hwqueue.eligibility (
  profile_id bigint,
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
  trusts text[],
  cpu_isolation text,
  gpu_exclusivity text,
  node_id uuid,
  check ((profile_id is null) <> (node_id is null))
);
create unique index eligibility_profile on hwqueue.eligibility (profile_id, queue_id, class_id)
  where profile_id is not null;
create unique index eligibility_node on hwqueue.eligibility (node_id, queue_id, class_id)
  where node_id is not null;
create index eligibility_class on hwqueue.eligibility (class_id);
alter table hwqueue.eligibility replica identity full;  -- as class_term
comment on table hwqueue.eligibility is
  'a class that a node, or nodes of a profile, may run, with its affinity score';
comment on column hwqueue.eligibility.affinity is
  'null: it depends on other leases, and each claim computes it';
comment on column hwqueue.eligibility.trusts is
  'as in placement_class, null for none; judged with every attestation, expired or not';
comment on column hwqueue.eligibility.cpu_isolation is
  'the class as judged here, the default filled in; null: best_effort. Likewise gpu_exclusivity: null is '
  'shared';

create table hwqueue.profile_queue (
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
  others bigint[] not null default '{}',
  needs_no_check boolean generated always as (checked = '{}' and cardinality(classes) <= 200) stored,
  only_class bigint[] generated always as (
    case when cardinality(classes || others) = 1 then classes || others else '{}' end) stored,
  primary key (profile_id, queue_id)
);
comment on table hwqueue.profile_queue is
  'all classes of a queue that nodes of a profile without GPUs and custom countables may run';
comment on column hwqueue.profile_queue.others is 'up to two of those with GPUs or custom countables';
comment on column hwqueue.profile_queue.only_class is 'of classes and others, if there is one in all';
comment on column hwqueue.profile_queue.classes is 'up to 200 of them; 201 when there are more';
comment on column hwqueue.profile_queue.task_names is
  'up to 50 of their tasks, each once; 51 when there are more';
comment on column hwqueue.profile_queue.most_cpu_milli is 'no class needs more; likewise memory';
comment on column hwqueue.profile_queue.scores_equal is
  'all classes have the same score: entries are ordered by age alone';
comment on column hwqueue.profile_queue.classes_seen is 'that of the profile';
comment on column hwqueue.profile_queue.checked is
  'those of classes that are to be checked at the claim, since they or others ask something about other '
  'leases';
comment on column hwqueue.profile_queue.classes_unseen is 'that of the profile';

-- Which nodes suit a class, a bit for each node, and which part of them that is: it orders scarce work first.
create table hwqueue.class_fleet (
  class_id bigint not null,
  reach double precision not null check (reach between 0 and 1),
  looked_at timestamptz not null,
  digest bigint not null,
  reported_at timestamptz,
  unmatched boolean not null,
  is_known boolean not null,
  nodes bit varying not null,
  part text,
  expr jsonb,
  others bit varying,
  meeting bit varying,
  serving bit varying,
  primary key (class_id)
);
create index class_fleet_age on hwqueue.class_fleet (looked_at);
create index class_fleet_unmatched on hwqueue.class_fleet (class_id)
  where unmatched or reported_at is not null;
comment on table hwqueue.class_fleet is
  'the nodes that meet a class, and why the others do not, as bit strings over the nodes with this digest';
comment on column hwqueue.class_fleet.reach is 'the share of nodes that meets the class';
comment on column hwqueue.class_fleet.digest is
  'of the nodes that the row was computed from (scan_nodes)';
comment on column hwqueue.class_fleet.reported_at is
  'when an event reported that leases of it wait and no live node may run them; null: not reported';
comment on column hwqueue.class_fleet.unmatched is
  'no live node that is not cordoned met it at the last scan';

-- The best and the worst node for a class, so that a lease that waits for a better node asks the fleet once
-- and not in each claim.
create table hwqueue.class_range (
  class_id bigint not null,
  range_id bigint generated always as identity,
  best double precision,
  worst double precision,
  live_until timestamptz not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  best_node uuid,
  worst_node uuid,
  primary key (class_id, range_id)
);
comment on table hwqueue.class_range is
  'the scores of the best and the worst live node for a class, as of the last scan; the newest row counts';
comment on column hwqueue.class_range.live_until is
  'infinity, unless a node may prove to be alive that has been silent for too long';

-- The places of live nodes, so that max_skew needs no walk over all nodes.
create table hwqueue.spread_fleet (
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
  primary key (fleet_key, fleet_id)
);
comment on table hwqueue.spread_fleet is
  'where leases may spread to: the places of live nodes, for a domain and a kind of nodes; the newest row '
  'counts';
comment on column hwqueue.spread_fleet.dead is 'nodes there that were dead and had claims';
comment on column hwqueue.spread_fleet.doubtful is
  'nodes there that were dead, but for a sign of life that might not have been committed yet';
comment on column hwqueue.spread_fleet.live_until is 'until then no node can have died that lived';
comment on column hwqueue.spread_fleet.next_xid is
  'computed without transactions from this one on, and without those in unseen';

create table hwqueue.spread_floor (
  term_id bigint not null,
  floor_id bigint generated always as identity,
  places_digest bigint not null,
  least bigint not null,
  lowest text[] not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (term_id, floor_id)
);
comment on table hwqueue.spread_floor is
  'the lowest count of a max_skew term over the places of spread_fleet, as of the last scan; the newest row'
  ' counts';
comment on column hwqueue.spread_floor.lowest is 'up to 64 of the places that had so few';

create table hwqueue.node_candidates (
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
  primary key (node_id, version)
);
comment on table hwqueue.node_candidates is
  'classes that a claim of a node still has to read in these queues: all that it may run but those that are'
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
  'when the first lease reaches its patience, or in 10 seconds: then a claim reads again what is blocked';


-- == Workflows ==
-- A definition is a graph of steps; a run is one execution of it. A step's lease is spawned when the step is
-- released, so steps that wait are no rows that a claim could meet. A step of another kind than task has no
-- lease of its own: it ends at a time, or by what others do. A map runs its task once for each item of a
-- list: its items are leases of the same step, spawned a window at a time, and those that are not spawned yet
-- are no rows. A handler that runs as a step may add items to it, or runs: the step ends when its own lease
-- and all that it added have ended.

-- It never changes: another content is another version. Those of ad hoc runs have neither name nor version;
-- runs of equal content share one.
create table hwqueue.workflow (
  workflow_id bigint generated always as identity,
  name text not null,
  version int,
  digest bytea not null,
  settings jsonb not null,
  steps jsonb not null,
  created_at timestamptz not null,
  retired_at timestamptz,
  retired_before xid8,
  primary key (workflow_id)
);
create index workflow_digest on hwqueue.workflow (digest);
create index workflow_retired on hwqueue.workflow (retired_at) where retired_at is not null;
create unique index workflow_version on hwqueue.workflow (name, version) where version is not null;
comment on table hwqueue.workflow is 'a version of a definition of a workflow; it never changes';
comment on column hwqueue.workflow.version is 'from 1; null: the definition of ad hoc runs';
comment on column hwqueue.workflow.settings is 'the specification without its steps';
comment on column hwqueue.workflow.retired_before is
  'transactions from this one on cannot have found the definition (prune_part)';

-- Numbers are in topological order: the parents of a step have lower ones.
create table hwqueue.workflow_step (
  workflow_id bigint not null,
  step_no int not null,
  name text not null,
  kind text not null,
  task_name text,
  class_no int,
  parent_count int not null,
  is_any boolean not null,
  on_failure text not null,
  runs_at_end text,
  params jsonb not null,
  reads int[],
  run_if jsonb,
  options jsonb,
  parents int[] not null,
  children int[] not null,
  wants text[],
  near jsonb,
  settings jsonb,
  primary key (workflow_id, step_no)
);
comment on table hwqueue.workflow_step is 'a step of a definition; numbers are in topological order';
comment on column hwqueue.workflow_step.class_no is
  'steps of equal numbers ask the same placement: their leases share a class; null: it spawns none';
comment on column hwqueue.workflow_step.is_any is 'released by the first edge that holds, not by the last';
comment on column hwqueue.workflow_step.on_failure is
  'what its failure does: fail_run (as its run says), go_on (other branches go on; the run ends failed) or '
  'ignore: from on_failure of step and definition (fail, continue, ignore), and edges that want its failure';
comment on column hwqueue.workflow_step.runs_at_end is
  'a finally step: runs once when all else has ended, if the run completed, failed, was cancelled, or in '
  'any case (ended)';
comment on column hwqueue.workflow_step.reads is
  'steps whose results its params or conditions name; null: there is nothing to bind, not even the input';
comment on column hwqueue.workflow_step.parents is 'the steps that it comes after';
comment on column hwqueue.workflow_step.children is 'the steps that come after it';
comment on column hwqueue.workflow_step.wants is
  'of each child how this step must end: completed, failed (or cancelled), or ended in any way; null: each '
  'comes after it alone and wants it completed';
comment on column hwqueue.workflow_step.near is
  'the steps in whose places it runs, by number: {"steps", "what", "mode", "away", "gone", "weight"}';
comment on column hwqueue.workflow_step.settings is 'what its kind needs, if it is no task';

-- One execution of a definition. Written at submission, when its state changes and when it ends, never by a
-- step that completes.
create table hwqueue.run (
  run_id uuid not null,
  workflow_id bigint not null,
  name text not null,
  tenant text not null,
  input jsonb not null,
  level jsonb not null,
  policy jsonb not null,
  headers jsonb not null,
  labels jsonb not null,
  priority smallint,
  state text not null check (state in ('running', 'paused', 'failing', 'cancelling', 'completed', 'failed',
    'cancelled')),
  reason text,
  detail jsonb,
  stops boolean not null default false,
  is_finishing boolean not null default false,
  attempt int not null default 1,
  root_run_id uuid not null,
  deadline timestamptz,
  result jsonb,
  submitted_at timestamptz not null,
  finished_at timestamptz,
  prune_at timestamptz,
  parent_run_id uuid,
  parent_step_no int,
  parent_attempt int,
  depth smallint not null default 0
) with (fillfactor = 80);
create index run_workflow on hwqueue.run (workflow_id);
create index run_parent on hwqueue.run (parent_run_id, run_id) where parent_run_id is not null;
create index run_of_step on hwqueue.run (parent_run_id, parent_step_no) where parent_run_id is not null;
create index run_root on hwqueue.run (root_run_id, run_id) where parent_run_id is not null;
alter table hwqueue.run add primary key (run_id);
create index run_deadline on hwqueue.run (deadline) where deadline is not null and finished_at is null;
create index run_finished on hwqueue.run (finished_at) where finished_at is not null;
create index run_name on hwqueue.run (name, run_id);
create index run_open on hwqueue.run (name, state) where finished_at is null;
create index run_prune on hwqueue.run (prune_at) where prune_at is not null;
comment on table hwqueue.run is 'one execution of a workflow; the settlement of a step does not write it';
comment on column hwqueue.run.level is 'where all its steps are to run, as workflow and submission ask';
comment on column hwqueue.run.policy is 
  'on_failure, retain and result, from its definition; retry_mode: of its last retry';
comment on column hwqueue.run.reason is 'why it is not running, or did not complete';
comment on column hwqueue.run.stops is 'steps that run are asked to stop, and none is released';
comment on column hwqueue.run.is_finishing is 'its finally steps are released: the next end is the last';
comment on column hwqueue.run.attempt is 'from 1; retry_workflow_run adds one';
comment on column hwqueue.run.parent_run_id is
  'the run whose step this is, or has added it; null: it was submitted';
comment on column hwqueue.run.parent_attempt is
  'the attempt of that run in which this one was begun or retried: the step waits for it';
comment on column hwqueue.run.depth is 'how many runs are above it';

-- A producer's key of a run, which promises that the content is the same. It lives as long as the run.
create table hwqueue.run_key (
  tenant text not null,
  name text not null,
  idempotency_key text not null,
  run_id uuid not null,
  content bytea not null,
  while_running boolean
);
create index run_key_run on hwqueue.run_key (run_id);
alter table hwqueue.run_key add primary key (tenant, name, idempotency_key);
comment on table hwqueue.run_key is 'a producer''s key of a run: an idempotency key, or a unique one';
comment on column hwqueue.run_key.while_running is 'true: it goes when its run ends; null: with its run';

-- Classes that a run may still need: they are not pruned while a step waits.
create table hwqueue.run_class (
  class_id bigint not null,
  run_id uuid not null
);
create index run_class_run on hwqueue.run_class (run_id);
alter table hwqueue.run_class add primary key (class_id, run_id);
comment on table hwqueue.run_class is 'a placement class that a run may still need; it is not pruned before';

-- Signals of runs, in the order in which they were sent; those of leases are in lease_signal.
create table hwqueue.run_signal (
  run_id uuid not null,
  signal_id bigint generated always as identity,
  name text not null,
  key text,
  sent_at timestamptz not null,
  taken_by int,
  payload jsonb,
  primary key (run_id, signal_id)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
create unique index run_signal_key on hwqueue.run_signal (run_id, name, key) where key is not null;
create index run_signal_open on hwqueue.run_signal (run_id, name, signal_id) where taken_by is null;
comment on table hwqueue.run_signal is 'signals that runs were sent; the rows stay until the run goes';
comment on column hwqueue.run_signal.key is
  'the sender''s name for the signal: a run takes a signal of this name and key once';
comment on column hwqueue.run_signal.taken_by is
  'the number of the step that has the payload now; null: no step has taken the signal yet';

-- A step of a run, from its submission on. Its lease exists once it is released.
create table hwqueue.step (
  run_id uuid not null,
  step_no int not null,
  state text not null,
  reason text,
  lease_id uuid,
  class_id bigint,
  queue_id int,
  own jsonb,
  result jsonb,
  error jsonb,
  ended_at timestamptz,
  due_at timestamptz,
  traceparent text,
  began_at timestamptz,
  primary key (run_id, step_no)
) with (fillfactor = 80, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0.05);
create index step_due on hwqueue.step (due_at) where due_at is not null;
comment on table hwqueue.step is 'a step of a run, and its state';
comment on column hwqueue.step.state is
  'waiting, held (due, but the run is paused), running, completed, failed, cancelled or skipped';
comment on column hwqueue.step.lease_id is 'null: of a kind without a lease of its own';
comment on column hwqueue.step.own is
  'what the submission has said for this step alone: options, level; base_class: the class before the place'
  ' of other steps came in (near)';
comment on column hwqueue.step.result is 'given by an operator (skip_step); else the result is its lease''s';
comment on column hwqueue.step.error is 'why it failed before it had a lease';
comment on column hwqueue.step.due_at is 'while it runs: when reap ends it; null: never';
comment on column hwqueue.step.traceparent is
  'W3C trace context of the attempt that ended it, if its worker has a tracer provider';
comment on column hwqueue.step.began_at is 'when it was released last';

-- A count: the parents of a step that have ended (step_no above 0, for steps with two parents or more), or
-- the open work of a run (step_no 0): need counts steps released, arrived those that have ended.
create table hwqueue.tally (
  run_id uuid not null,
  step_no int not null,
  part smallint not null default 0,
  need int not null default 0,
  arrived int not null default 0,
  unmet int not null default 0,
  failed int not null default 0,
  skipped int not null default 0,
  is_decided boolean not null default false,
  low int,
  primary key (run_id, step_no, part)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.tally is
  'a count: parents of a step that have ended, open work of a run, or items of a map';
comment on column hwqueue.tally.part is
  '0: parents, or the open work of the run; above: items, one row, with a new part every 64 items: need is '
  'the number of the next one, arrived counts those that have ended. For a task that has added items both '
  'begin at -1, which is its own lease';
comment on column hwqueue.tally.unmet is
  'parents whose edge does not hold; of items: not 0 when some were added since the window was filled';
comment on column hwqueue.tally.failed is
  'of those unmet, the ones that failed or were cancelled; of open work: failures that nothing ignores; of '
  'items: those that failed';
comment on column hwqueue.tally.skipped is
  'of those unmet, the ones in state skipped; of items, which are never skipped: those that were cancelled';
comment on column hwqueue.tally.is_decided is 'the step was released or skipped';
comment on column hwqueue.tally.low is
  'of items: while more of them are open, their ends are counted and nothing else; null: parents or open '
  'work';

-- What a session could not do at once, because another one held the row: the next one that holds it, or
-- advance_workflows, does it. Mostly empty.
create table hwqueue.arrival (
  arrival_id bigint generated always as identity,
  run_id uuid not null,
  step_no int not null,
  kind text not null,
  need int not null default 0,
  arrived int not null default 0,
  unmet int not null default 0,
  failed int not null default 0,
  skipped int not null default 0,
  reason text,
  at timestamptz not null,
  after_xid xid8,
  tenant text not null default ''
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_threshold = -1);
create index arrival_of on hwqueue.arrival (run_id, step_no, kind);
alter table hwqueue.arrival add primary key (arrival_id);
create index arrival_at on hwqueue.arrival (at) where after_xid is null;
create index arrival_kept on hwqueue.arrival (arrival_id) where after_xid is not null;
create index arrival_tenant on hwqueue.arrival (tenant, at) where after_xid is null;
comment on table hwqueue.arrival is
  'what a session could not count or release because another one held the row; the next holder or reap does'
  ' it';
comment on column hwqueue.arrival.kind is
  'count: for a tally; item: for that of a map; release, skip: of a step; fail: the run; state: the run''s '
  'state has changed; signal: a step may have a signal to take; nested: a step and its nested run, or '
  '(step_no 0) a nested run and its parent, are to be compared';
comment on column hwqueue.arrival.after_xid is
  'of kind state: transactions below this one may have read the state before';
comment on column hwqueue.arrival.tenant is 'that of the run: sweeps take turns';

-- Its items are counted in the tally of its step, in the part above 0.
create table hwqueue.map (
  run_id uuid not null,
  step_no int not null,
  items int not null,
  over_step int,
  params jsonb not null,
  kept_below int not null default 0,
  stopped_below int not null default 0,
  added int not null default 0,
  runs_since int,
  primary key (run_id, step_no)
);
comment on table hwqueue.map is
  'a map or a gang that was released, or a task that has added items: then the step has a lease of its own,'
  ' too';
comment on column hwqueue.map.items is 'the length of its list, with what was added; of a gang its size';
comment on column hwqueue.map.over_step is
  'the map whose results are its list; null: the list is in map_list';
comment on column hwqueue.map.params is 'those of its items, with all bound but the item itself';
comment on column hwqueue.map.kept_below is
  'of a retry: items below this that have completed in an earlier attempt are not run again';
comment on column hwqueue.map.stopped_below is
  'of a run that stops: items below this have been asked to stop';
comment on column hwqueue.map.added is 'how many of its items were added: the last ones';
comment on column hwqueue.map.runs_since is
  'the attempt of its run in which the first run was added to the step; null: none was';

create table hwqueue.map_list (
  run_id uuid not null,
  step_no int not null,
  first_item int not null,
  items jsonb not null,
  primary key (run_id, step_no, first_item)
);
comment on table hwqueue.map_list is 'a hundred items of the list of a map';

-- Items that leases of a step have added to it, numbered behind the list of a map.
create table hwqueue.added (
  run_id uuid not null,
  step_no int not null,
  item_no int not null,
  name text not null,
  task_name text not null,
  params jsonb not null,
  primary key (run_id, step_no, item_no)
);
create unique index added_name on hwqueue.added (run_id, step_no, name);
comment on table hwqueue.added is 'an item that a handler has added to its step, by name';
comment on column hwqueue.added.name is
  'says once what it is: a handler that runs again adds it no more';

-- What tenants have open, of those that have much. Written by reap about every ten seconds, and by
-- submissions in between.
create table hwqueue.tenant_work (
  tenant text not null,
  steps bigint not null,
  nested bigint not null,
  primary key (tenant)
) with (fillfactor = 50);
comment on table hwqueue.tenant_work is
  'steps of open runs, and open nested runs, of tenants that have a thousand steps or more';
comment on column hwqueue.tenant_work.tenant is 'empty: runs without a tenant';


-- == Gangs ==
-- Leases that start together or not at all. Members that wait are scheduled, held by their
-- team; a reservation is a claim that its node has not fetched yet. An earmark is one whose room is
-- still in use: its node takes no other work into that room, and fetches the claim once the room is free.

create table hwqueue.gang (
  gang_id uuid not null,
  queue_id int not null,
  tenant text not null,
  tier smallint not null,
  rank bigint not null,
  position bigint generated always as identity,
  size int not null,
  members uuid[] not null,
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
  choice_id uuid,
  min_size int,
  missing int not null default 0,
  run_id uuid,
  step_no int,
  earmark_after timestamptz,
  primary key (gang_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
-- Pages of list_gangs, and counts of gangs that have not ended.
create index gang_created on hwqueue.gang (created_at, gang_id);
create index gang_due on hwqueue.gang (next_try_at)
  where state = 'waiting' or state = 'running' and missing > 0;
create index gang_earmarked on hwqueue.gang (tier, rank, position) where state = 'earmarked';
create index gang_finished on hwqueue.gang (finished_at) where finished_at is not null;
create index gang_open on hwqueue.gang (state, created_at) where finished_at is null;
create index gang_waiting on hwqueue.gang (tier, rank, position)
  where state = 'waiting' or state = 'running' and missing > 0;
comment on table hwqueue.gang is 'leases that start together: those with its id as team_id';
comment on column hwqueue.gang.tier is
  'that of its first member, as rank is: what starts first; then position';
comment on column hwqueue.gang.members is
  'its leases, in the order of their ranks, from 0: the first is rank 0; leases may go before the gang does';
comment on column hwqueue.gang.together is
  'domains, the first that will do: all members run in one place of it; {}: anywhere';
comment on column hwqueue.gang.same is 'node labels whose values are equal for all members';
comment on column hwqueue.gang.on_lost is
  'what happens when a member that was running does not complete: stop (the others start again with it), '
  'replace (the others go on, and it is placed again) or continue (it has failed, and the others go on)';
comment on column hwqueue.gang.hold is 'how long its nodes have for fetching their members';
comment on column hwqueue.gang.state is
  'waiting, earmarked, reserved, running, stopping, cancelling; then completed, failed or cancelled';
comment on column hwqueue.gang.reason is 'why it was not reserved at the last try, or why it stops';
comment on column hwqueue.gang.tries is 'how often it was not reserved since it waits';
comment on column hwqueue.gang.losses is 'how often it has lost a member, or a reservation';
comment on column hwqueue.gang.place is 'where its members are, of the domain that they are together in';
comment on column hwqueue.gang.choice_id is 'as in lease';
comment on column hwqueue.gang.min_size is
  'how many members must be there for it to start, and to go on; null: all';
comment on column hwqueue.gang.missing is
  'how many members wait to join the others, while it is earmarked, reserved or running';
comment on column hwqueue.gang.run_id is 'the run whose step it is; null: it was spawned by itself';
comment on column hwqueue.gang.step_no is 'which step of that run: its members are the items of the step';
comment on column hwqueue.gang.earmark_after is 'it was earmarked for too long, and is not before then';

-- Inserted by whatever ends, puts back or fetches a member, so that no such call waits for the team.
create table hwqueue.team_change (
  change_id bigint generated always as identity,
  team_id uuid not null,
  kind text not null default 'gang',
  retry_at timestamptz
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
create index team_change_team on hwqueue.team_change (team_id);
alter table hwqueue.team_change add primary key (kind, change_id);
comment on table hwqueue.team_change is
  'a member was fetched, put back or has ended, or a choice was taken: reap does what follows';
comment on column hwqueue.team_change.team_id is 'the gang, the choice, or a lease of an everywhere task';
comment on column hwqueue.team_change.kind is 'which of these: gang, choice or everywhere';
comment on column hwqueue.team_change.retry_at is
  'for a lease of an everywhere task that was put back: when it may run again';


-- == Tasks on every node ==
-- An everywhere task has one lease on each node that suits it. Its leases wait, are reserved and fetched as
-- members of gangs are. The team_id of such a lease is its own id, so that team_change says which one it was.

create table hwqueue.everywhere (
  everywhere_id uuid not null,
  queue_id int not null,
  class_id bigint not null,
  tenant text not null,
  task_name text not null,
  params jsonb not null,
  options jsonb not null,
  mode text not null,
  on_unmatched text not null,
  on_cordoned boolean not null,
  created_at timestamptz not null,
  stopped_at timestamptz,
  stops_running boolean not null default false,
  finished_at timestamptz,
  swept_at timestamptz not null default '-infinity',
  swept_node uuid not null default '00000000-0000-0000-0000-000000000000',
  anchors text[],
  primary key (everywhere_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index everywhere_class on hwqueue.everywhere (class_id);
create index everywhere_finished on hwqueue.everywhere (finished_at) where finished_at is not null;
create index everywhere_open on hwqueue.everywhere (swept_at) where finished_at is null;
comment on table hwqueue.everywhere is 'tasks that have one lease on each node that matches them';
comment on column hwqueue.everywhere.class_id is 'that of all its leases: the node is in the reservation';
comment on column hwqueue.everywhere.options is 'of each lease, with the defaults that its task had';
comment on column hwqueue.everywhere.mode is
  'once: one lease a node, until it ends. always: another one when it has ended';
comment on column hwqueue.everywhere.on_unmatched is
  'what becomes of a running lease whose node does not match any more: keep or stop';
comment on column hwqueue.everywhere.on_cordoned is 'on cordoned nodes, too, but on none that is drained';
comment on column hwqueue.everywhere.stops_running is 'leases that ran when it was stopped are asked to stop';
comment on column hwqueue.everywhere.finished_at is 'when the last lease of a stopped one had ended';
comment on column hwqueue.everywhere.swept_node is 'nodes up to this one were checked in this round';
comment on column hwqueue.everywhere.anchors is
  'those of its class: a profile with none of them cannot run it';

create table hwqueue.everywhere_node (
  everywhere_id uuid not null,
  node_id uuid not null,
  lease_id uuid not null,
  due_at timestamptz,
  tries int not null default 0,
  failures int not null default 0,
  starts int not null default 1,
  reason text,
  ended_as text,
  earmark_after timestamptz,
  primary key (everywhere_id, node_id)
) with (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index everywhere_node_due on hwqueue.everywhere_node (due_at) where due_at is not null;
create unique index everywhere_node_lease on hwqueue.everywhere_node (lease_id);
comment on table hwqueue.everywhere_node is
  'the lease of an everywhere task on a node: its key is why a node never has two that are open';
comment on column hwqueue.everywhere_node.lease_id is 'the open lease, or the last one';
comment on column hwqueue.everywhere_node.due_at is
  'when reap checks it next; null: when something happens to it';
comment on column hwqueue.everywhere_node.tries is 'how often its room was not reserved since it waits';
comment on column hwqueue.everywhere_node.failures is 'how many of its leases have failed in a row';
comment on column hwqueue.everywhere_node.starts is 'how many leases it has had';
comment on column hwqueue.everywhere_node.reason is 'why its room was not reserved at the last try';
comment on column hwqueue.everywhere_node.ended_as is 'how the last lease has ended; null: it is open';
comment on column hwqueue.everywhere_node.earmark_after is
  'its lease was earmarked for too long, and is not before then';


-- == Alternatives and replacements ==
-- Of alternatives, leases or gangs, the first that gets room runs: its claim, or the reservation of a gang,
-- writes which it is, and upkeep cancels the others. A replacement takes the place of another lease: on its
-- node, in its room, which is booked before the other one is asked to stop.

create table hwqueue.choice (
  choice_id uuid not null,
  tenant text not null,
  members uuid[] not null,
  taken uuid,
  checked_at timestamptz not null,
  primary key (choice_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index choice_checked on hwqueue.choice (checked_at);
comment on table hwqueue.choice is 'a choice: of its alternatives one runs (spawn option one_of)';
comment on column hwqueue.choice.taken is
  'the lease or gang that was claimed or reserved first; it stays the choice when it waits again';
comment on column hwqueue.choice.members is 'its alternatives: leases and gangs';
comment on column hwqueue.choice.checked_at is 'when prune last checked whether its leases are gone';

create table hwqueue.replacement (
  lease_id uuid not null,
  old_lease uuid,
  service_id uuid,
  old_goes text not null,
  is_overlapping boolean not null,
  state text not null default 'waiting',
  old_token bigint,
  old_at timestamptz,
  reason text,
  tries int not null default 0,
  next_try_at timestamptz not null,
  primary key (lease_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
create index replacement_due on hwqueue.replacement (next_try_at);
create index replacement_old on hwqueue.replacement (old_lease);
comment on table hwqueue.replacement is
  'a lease that is to take the place of another one (spawn option replaces); deleted once it has';
comment on column hwqueue.replacement.old_lease is
  'the lease that it replaces; null: none is chosen yet, or it preempts others';
comment on column hwqueue.replacement.service_id is 'it replaces a lease of this service; null: that lease';
comment on column hwqueue.replacement.old_goes is 'what becomes of the other one: cancel or requeue';
comment on column hwqueue.replacement.is_overlapping is
  'where there is room for both, the other one is asked to stop once this one runs';
comment on column hwqueue.replacement.state is
  'waiting; held (the other one waited, and waits on until this one is claimed); stopping (the other one is'
  ' asked to stop); overlapping (it is asked once this one runs); preempting (it seeks victims)';
comment on column hwqueue.replacement.old_token is 'the claim of the other one that is asked to stop';
comment on column hwqueue.replacement.old_at is 'while it is held: since when the other one was claimable';
comment on column hwqueue.replacement.reason is 'why the place could not be taken at the last try';

-- == Planner ==

create table hwqueue.planner (
  epoch bigint not null,
  holder text not null,
  round bigint not null,
  expires_at timestamptz not null,
  gpus double precision,
  allocated double precision,
  bound double precision,
  room_until timestamptz,
  leases jsonb not null default '{}',
  seconds jsonb,
  resting int,
  singleton boolean not null default true check (singleton),
  primary key (singleton)
) with (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.planner is 'the process that plans, one of those that run';
comment on column hwqueue.planner.epoch is 'the fencing token of the leader: a new one gets a higher epoch';
comment on column hwqueue.planner.holder is 'the name that the process gave itself';
comment on column hwqueue.planner.round is 'the last round of this epoch that wrote something';
comment on column hwqueue.planner.expires_at is 'when another process may lead, unless it is renewed';
comment on column hwqueue.planner.gpus is
  'GPUs of live nodes, as of the last round that said so; null: none has';
comment on column hwqueue.planner.allocated is 'how many of them were in use; shares count as parts';
comment on column hwqueue.planner.bound is
  'how many could have been in use at most, if what waited was placed at best beside what ran';
comment on column hwqueue.planner.room_until is 'the figures count until then';
comment on column hwqueue.planner.leases is
  'how many single leases planners have proposed, reserved and so on, in all, by what became of them';
comment on column hwqueue.planner.seconds is 'how long each part of the last round took that said so';
comment on column hwqueue.planner.resting is
  'how many nodes got no leases in that round, because they had not fetched some';

create table hwqueue.queue_price (
  queue_id int not null,
  epoch bigint not null,
  round bigint not null,
  device_worth double precision[] not null check (cardinality(device_worth) = 101),
  worth_until timestamptz not null,
  primary key (queue_id, epoch, round)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.queue_price is
  'what room on a device is worth to a queue, as a planner set it; the newest epoch and round count';
comment on column hwqueue.queue_price.device_worth is
  'what a device with 0, 10, 20, ... 1000 thousandths left is worth, in devices';
comment on column hwqueue.queue_price.worth_until is 'claims use it until then';


-- == Upkeep ==

-- When reap last ran, where its scans start, and how far its walks over classes, nodes and profiles have
-- come.
create type hwqueue.clock_step as (
  step_no bigint,
  counted_to timestamptz,
  counted_as pg_snapshot,
  goes_on_at timestamptz
);
comment on type hwqueue.clock_step is
  'a time that the clock was set back: how far ends had been counted, a snapshot that sees those that had, '
  'and where the count goes on; step_no: the version of the reap_cursor that tells it first';

create table hwqueue.reap_cursor (
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
  arrivals_from timestamptz not null default '-infinity',
  steps_from timestamptz not null default '-infinity',
  checked_lease uuid not null default '00000000-0000-0000-0000-000000000000',
  counted_from timestamptz not null default '-infinity',
  counted_as pg_snapshot,
  counted_on bigint,
  deliveries_from timestamptz not null default '-infinity',
  changes_from bigint not null default 0,
  next_change bigint not null default 0,
  kept_from bigint not null default 0,
  next_arrival bigint not null default 0,
  gangs_from timestamptz not null default '-infinity',
  replacements_from timestamptz not null default '-infinity',
  terms_from timestamptz not null default '-infinity',
  lanes_from bigint not null default 0,
  next_lane bigint not null default 0,
  folded_tenant text not null default '',
  clock_steps hwqueue.clock_step[] not null default '{}',
  primary key (version)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
comment on table hwqueue.reap_cursor is
  'when reap last ran, and where its scans start; the newest version counts';
comment on column hwqueue.reap_cursor.full_scan_at is 'when the scans last began at the very start';
comment on column hwqueue.reap_cursor.claims_from is 'no claim has an earlier check_at, and none can get one';
comment on column hwqueue.reap_cursor.deadlines_from is
  'no ready entry has an earlier deadline, and none can get one';
comment on column hwqueue.reap_cursor.scheduled_from is
  'no scheduled entry has an earlier available_at, and none can get one';
comment on column hwqueue.reap_cursor.next_after_xid is
  'only transactions below this one can still insert before next_from: once they have ended, the scans may '
  'start there';
comment on column hwqueue.reap_cursor.class_id is
  'the last class that was checked for a missing estimate of its reach';
comment on column hwqueue.reap_cursor.counted_to is
  'what ended before is in minute_stat, and nothing more can come from before';
comment on column hwqueue.reap_cursor.count_next_after_xid is
  'only transactions below this one can still insert what ended before count_next_to (roll_up)';
comment on column hwqueue.reap_cursor.watched_node is
  'the last node that was checked for a change to report; likewise watched_class';
comment on column hwqueue.reap_cursor.judged_profile is
  'the last profile that was checked for classes to judge';
comment on column hwqueue.reap_cursor.arrivals_from is 'no arrival has an earlier at, and none can get one';
comment on column hwqueue.reap_cursor.steps_from is
  'no running step has an earlier due_at, and none can get one';
comment on column hwqueue.reap_cursor.checked_lease is 'where checks of placement_check go on';
comment on column hwqueue.reap_cursor.counted_from is 'from where the last count went that moved counted_to';
comment on column hwqueue.reap_cursor.counted_as is 'it saw all that has been counted';
comment on column hwqueue.reap_cursor.counted_on is
  'the server, by its system identifier, that counted_as is of';
comment on column hwqueue.reap_cursor.deliveries_from is
  'no delivery that waits has an earlier available_at, and none can get one';
comment on column hwqueue.reap_cursor.changes_from is
  'no change of a team has a lower change_id, and none can get one';
comment on column hwqueue.reap_cursor.next_change is
  'only transactions below next_after_xid can still insert a lower change_id; likewise next_arrival';
comment on column hwqueue.reap_cursor.clock_steps is
  'those of the last day, and those that a webhook has yet to go through';
comment on column hwqueue.reap_cursor.kept_from is 'no arrival has a lower arrival_id, and none can get one';
comment on column hwqueue.reap_cursor.gangs_from is
  'no gang that waits has an earlier next_try_at, and none can get one; likewise replacements_from';
comment on column hwqueue.reap_cursor.terms_from is
  'no class with terms to be written and no unpublished term has an earlier created_at, and none can get one';
comment on column hwqueue.reap_cursor.lanes_from is
  'no change of a lane has a lower change_id, and none can get one; next_lane: as next_change';
comment on column hwqueue.reap_cursor.folded_tenant is 'the last tenant whose changes of lanes were folded';
insert into hwqueue.reap_cursor (version) values (0);

-- When prune last ran, and how far it has looked for classes and profiles that nothing needs. Any number
-- of workers prune, one at a time: the one that holds the row.
create table hwqueue.prune_cursor (
  class_id bigint not null default 0,
  profile_id bigint not null default 0,
  pruned_at timestamptz not null default '-infinity',
  leases_at timestamptz not null default '-infinity',
  leases_counted timestamptz not null default '-infinity',
  leases_policy text,
  lane_id bigint not null default -9223372036854775808,
  singleton boolean not null default true check (singleton),
  primary key (singleton)
);
comment on table hwqueue.prune_cursor is
  'when prune last ran, and where its scans start; the session that locks the row prunes';
comment on column hwqueue.prune_cursor.pruned_at is 'when prune last ran';
comment on column hwqueue.prune_cursor.leases_at is
  'when a call last deleted all leases past their retention: what it left is kept for runs';
comment on column hwqueue.prune_cursor.leases_counted is 'up to where roll_up had counted by then';
comment on column hwqueue.prune_cursor.leases_policy is 'a digest of the retentions by then';
insert into hwqueue.prune_cursor default values;

create table hwqueue.postponed (
  part text not null,
  item uuid not null,
  tries int not null,
  at timestamptz not null,
  next_try_at timestamptz not null,
  sqlstate text,
  message text,
  primary key (part, item)
) with (fillfactor = 50);
comment on table hwqueue.postponed is
  'what of upkeep a timeout ended, or failed, for ten minutes: parts, gangs and others';
comment on column hwqueue.postponed.part is
  'such as "reap gangs" or "prune leases"; or gang, replacement, choice or everywhere';
comment on column hwqueue.postponed.item is
  'the gang, the lease, the choice, or a node without the lease yet; zeros: the part as a whole';
comment on column hwqueue.postponed.tries is
  'how often in a row; each time a part does half as much in a call';
comment on column hwqueue.postponed.sqlstate is
  'what ended it; null: nothing, but it used up the time of the call';


-- == Events ==

-- A ring of 16 days: slot, the number of the day modulo 16, says which partition a row goes to. The
-- partitions are made once, since making or dropping one later would lock the table against all sessions;
-- prune truncates the old ones.
create sequence hwqueue.event_number;
create table hwqueue.event (
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
create index event_actor on hwqueue.event (actor, event_id);
create index event_class on hwqueue.event (class_id, event_id) where class_id is not null;
create index event_code on hwqueue.event (code, event_id);
create index event_lease on hwqueue.event (lease_id, event_id) where lease_id is not null;
create index event_node on hwqueue.event (node_id, event_id) where node_id is not null;
create index event_order on hwqueue.event (event_id);
create index event_queue on hwqueue.event (queue, event_id) where queue is not null;
comment on table hwqueue.event is 'who did what; not for claims and completions';
comment on column hwqueue.event.slot is 'number of its day, modulo 16';
comment on column hwqueue.event.event_id is 'the transaction''s id x 2^20, and a running number';
comment on column hwqueue.event.queue is 'its name: ids of queues that are gone say nothing';
comment on column hwqueue.event.login is 'session_user of who wrote it';
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


-- == Webhooks ==

-- Routing reads the events after event_cursor and the completions after (completed_at, completed_lease), and
-- writes a delivery for each that the filter lets through. Settling a delivery updates the row, so the fill
-- factor leaves room.
create table hwqueue.webhook (
  name text not null,
  webhook_id uuid not null,
  url text not null,
  codes text[],
  queues text[],
  tenant text,
  labels jsonb,
  secret bytea not null check (octet_length(secret) = 32),
  old_secret bytea check (octet_length(old_secret) = 32),
  old_secret_until timestamptz,
  event_cursor bigint not null,
  completed_at timestamptz not null,
  completed_lease uuid not null,
  created_at timestamptz not null,
  created_by text not null,
  created_login text not null,
  paused_at timestamptz,
  paused_reason text,
  delivered_at timestamptz,
  failing_since timestamptz,
  delivered bigint not null default 0,
  failed bigint not null default 0,
  dead bigint not null default 0,
  clock_step bigint not null default 0,
  check ((old_secret is null) = (old_secret_until is null)),
  check ((paused_at is null) = (paused_reason is null)),
  primary key (name)
) with (fillfactor = 50);
comment on table hwqueue.webhook is
  'a receiver of events: its address, its filter, its secret, and what has been routed to it';
comment on column hwqueue.webhook.codes is 'of events, or lease_completed; null: every event';
comment on column hwqueue.webhook.tenant is 'null: all tenants, and events that are no tenant''s';
comment on column hwqueue.webhook.secret is 'the key of the signatures; no function returns it twice';
comment on column hwqueue.webhook.event_cursor is 'every event up to this id has been routed';
comment on column hwqueue.webhook.completed_at is
  'with completed_lease: every completion up to here has been routed';
comment on column hwqueue.webhook.paused_reason is 'asked: by an operator; gone: the receiver answered 410';
comment on column hwqueue.webhook.failing_since is 'the first attempt that failed since the last success';
comment on column hwqueue.webhook.failed is 'attempts that failed; dead: deliveries given up';
comment on column hwqueue.webhook.clock_step is 'the last step of the clock behind completed_at';

-- attempt_count is the fencing token of a claim: the process that records how an attempt ended names its
-- number. failures counts since the delivery was new or redelivered.
create table hwqueue.webhook_delivery (
  delivery_id uuid not null,
  webhook_id uuid not null,
  code text not null,
  event_id bigint,
  lease_id uuid,
  body text not null,
  state text not null check (state in ('waiting', 'delivered', 'dead')),
  attempt_count int not null default 0,
  failures smallint not null default 0,
  created_at timestamptz not null,
  available_at timestamptz not null,
  claimed_until timestamptz,
  attempted_at timestamptz,
  finished_at timestamptz,
  status smallint,
  response text,
  error text,
  check ((state = 'waiting') = (finished_at is null)),
  check (claimed_until is null or state = 'waiting'),
  primary key (delivery_id)
);
create index webhook_delivery_claimed on hwqueue.webhook_delivery (webhook_id, claimed_until)
  where claimed_until is not null;
create index webhook_delivery_due on hwqueue.webhook_delivery (webhook_id, available_at)
  where state = 'waiting';
create index webhook_delivery_finished on hwqueue.webhook_delivery (finished_at)
  where finished_at is not null;
create index webhook_delivery_of on hwqueue.webhook_delivery (webhook_id, delivery_id);
comment on table hwqueue.webhook_delivery is 'what is to be sent to a webhook, or was sent';
comment on column hwqueue.webhook_delivery.created_at is 'when the event happened';
comment on column hwqueue.webhook_delivery.available_at is 'when it may be sent next, while it waits';
comment on column hwqueue.webhook_delivery.status is 'of the last answer; null: there was none';
comment on column hwqueue.webhook_delivery.response is 'the beginning of the last answer''s body';


-- == Schedules ==

-- Fired by reap: what is due after cursor_at. times are those of a cron expression that a
-- process has planned, or the list that was given; of a span none are written. A fire updates the row, so the
-- fill factor leaves room.
create table hwqueue.schedule (
  name text not null,
  schedule_id uuid not null,
  spec jsonb not null,
  tenant text not null,
  origin text,
  revision bigint not null default 1,
  times timestamptz[] not null default '{}',
  next_at timestamptz,
  cursor_at timestamptz not null,
  plan_at timestamptz,
  plan_error text,
  missed bigint not null default 0,
  paused_at timestamptz,
  paused_by text,
  paused_reason text,
  created_at timestamptz not null,
  created_by text not null,
  check ((paused_at is null) = (paused_by is null)),
  primary key (name)
) with (fillfactor = 50);
create index schedule_due on hwqueue.schedule (next_at) where paused_at is null;
create index schedule_plan on hwqueue.schedule (plan_at) where paused_at is null and plan_at is not null;
comment on table hwqueue.schedule is 'what is spawned at which times, and which of them come next';
comment on column hwqueue.schedule.tenant is 'of what it spawns: tenants take turns';
comment on column hwqueue.schedule.origin is 'the app that declares it (sync_schedules); null: made by hand';
comment on column hwqueue.schedule.revision is 'rises at each change; a plan for another one is refused';
comment on column hwqueue.schedule.times is 'all from cursor_at up to the last; of a span none';
comment on column hwqueue.schedule.cursor_at is 'no time up to here is to fire any more';
comment on column hwqueue.schedule.plan_at is 'when its times are to be planned again; of cron alone';
comment on column hwqueue.schedule.missed is 'times that did not fire, because upkeep came too late';

-- The primary key is what makes a time fire once, however many sessions try.
create table hwqueue.schedule_fire (
  schedule_id uuid not null,
  fire_at timestamptz not null,
  cause text not null check (cause in ('due', 'backfill', 'trigger')),
  outcome text not null check (outcome in ('spawned', 'skipped_overlap', 'failed')),
  fired_at timestamptz not null,
  keep_until timestamptz not null,
  lease_id uuid,
  run_id uuid,
  error text,
  primary key (schedule_id, fire_at)
);
create index schedule_fire_kept on hwqueue.schedule_fire (keep_until);
comment on table hwqueue.schedule_fire is 'which times of schedules fired, and what came of it';
comment on column hwqueue.schedule_fire.fire_at is
  'the time of the schedule, not of the call; of a trigger the moment of the call, and a microsecond';
comment on column hwqueue.schedule_fire.lease_id is 'what was spawned, or is still open (skipped_overlap)';

-- == Tokens ==

-- Of a token's secret only the sha256 is stored. Tenant null: all tenants. A name is never used twice, so
-- that what its bearer did stays known.
create table hwqueue.api_token (
  name text not null,
  secret_sha256 bytea not null check (octet_length(secret_sha256) = 32),
  role text not null check (role in ('producer', 'viewer', 'operator', 'admin', 'worker')),
  tenant text,
  created_at timestamptz not null,
  created_by text not null,
  expires_at timestamptz,
  used_at timestamptz,
  revoked_at timestamptz,
  revoked_by text,
  created_login text,
  revoked_login text,
  nodes text[],
  check ((role = 'worker') = (nodes is not null)),
  primary key (name)
);
create unique index api_token_secret on hwqueue.api_token (secret_sha256);
comment on table hwqueue.api_token is 'who may call the HTTP API; of a secret only the sha256 is stored';
comment on column hwqueue.api_token.used_at is
  'to the hour: a row that is updated at every request would be read ever slower';
comment on column hwqueue.api_token.created_login is 'session_user, beside what the caller said (created_by)';
comment on column hwqueue.api_token.nodes is
  'of role worker: names of the nodes that it may register, or how they begin (edge-*)';


-- == Statistics ==

-- Running totals of a queue at the end of a minute (of the newest minute: so far). What happened in a minute
-- is the difference to the row before; a minute in which nothing ended has no row. Written by roll_up alone.
create table hwqueue.sample (
  kind text not null check (kind in ('gpus', 'waits')),
  is_hour boolean not null,
  at timestamptz not null,
  name text not null,
  used double precision not null,
  present double precision not null,
  waiting double precision not null,
  primary key (kind, is_hour, at, name)
);
comment on table hwqueue.sample is
  'GPUs by model, and what waits by reason, of minutes and of hours; take_samples writes them';
comment on column hwqueue.sample.is_hour is 'the mean of the hour that began at this time, not a minute';
comment on column hwqueue.sample.name is
  'gpus: the model, empty: of any. waits: what keeps leases from running, empty: all';

create table hwqueue.minute_stat (
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
  primary key (queue_id, minute)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.minute_stat is
  'running totals of a queue at the end of a minute; roll_up writes them';
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
create table hwqueue.undone_end (
  finished_at timestamptz not null,
  state text not null,
  xid xid,
  queue_id int,
  lease_id uuid,
  workflow_id bigint,
  workflow text,
  submitted_at timestamptz
);
-- for roll_up
create index undone_end_finished on hwqueue.undone_end (finished_at);
alter table hwqueue.undone_end replica identity full;
comment on table hwqueue.undone_end is
  'an end that is one no more, until roll_up has counted it: its lease was requeued or deleted, its run '
  'retried';
comment on column hwqueue.undone_end.xid is 'the transaction that the lease or the run ended in';
comment on column hwqueue.undone_end.queue_id is
  'of a lease; likewise lease_id; of runs the columns that follow';
comment on column hwqueue.undone_end.workflow is 'the name of its workflow';

create table hwqueue.run_total (
  workflow text not null,
  outcome text not null,
  seconds double precision not null,
  counts bigint[] not null,
  counted_at timestamptz not null,
  primary key (workflow, outcome)
) with (fillfactor = 50);
comment on table hwqueue.run_total is
  'running totals of the runs of a workflow with one outcome: how many, and how long they took';
comment on column hwqueue.run_total.workflow is 'its name; (other): those that have no row of their own';
comment on column hwqueue.run_total.seconds is 'from submission to end, summed up';
comment on column hwqueue.run_total.counts is
  'how many runs took how long, by histogram_bounds; the last one: longer';
comment on column hwqueue.run_total.counted_at is 'when the last of them ended';

create table hwqueue.traced_run (
  run_id uuid not null,
  attempt int not null,
  workflow text not null,
  state text not null,
  reason text,
  traceparent text not null,
  submitted_at timestamptz not null,
  finished_at timestamptz not null,
  primary key (run_id, attempt)
);
comment on table hwqueue.traced_run is
  'an end of a run whose submission was traced, until a worker sends a span of it';
comment on column hwqueue.traced_run.traceparent is 'W3C trace context of the submission';


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
  on_conflict text,
  run_id uuid,
  step_no int,
  item_no int,
  team_id uuid,
  choice_id uuid,
  replaces jsonb,
  tenant text,
  lanes hwqueue.lane_ref[],
  tier smallint,
  labels jsonb
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
  target uuid,
  max_run interval,
  is_choice boolean
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

-- What a claim asks for. queue_ids: the ids of queues, of those that are open, once the claim has read them.
-- tasks: null is any. claim_timeout: null is each queue's. now: when the claim had its node.
create type hwqueue.claim_request as (
  node_id uuid,
  node_epoch bigint,
  queues text[],
  tasks text[],
  qty int,
  claim_timeout interval,
  queue_ids int[],
  now timestamptz,
  folds boolean  -- it looks at changes of lanes: one of the queues has had leases in lanes
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
  tier smallint,
  rank bigint,
  position bigint,
  last bigint,
  is_blocked boolean,  -- head-of-line: dead tuples may follow the low-water mark
  first_is_best boolean,
  takes_first boolean,
  checked bigint[],
  queue_ids int[],
  drops_completed boolean,
  is_tried boolean,  -- the first entry is the one to take
  promoted int,  -- how many leases fell due in this claim; null: it has not looked
  is_over boolean,  -- nothing else waits in the queues of the claim
  has_lanes boolean  -- one of its queues
);

-- Where scans start: the heads of the queues that have entries, the first of all first. are_blocked: which
-- queues have a blocked head. by_class: each class starts elsewhere (class_start).
create type hwqueue.scan_starts as (
  queue_ids int[],
  tiers smallint[],
  ranks bigint[],
  positions bigint[],
  are_blocked boolean[],
  by_class boolean
);

-- The first of some entries: its lease, and since when that could be claimed.
create type hwqueue.entry_ref as (
  lease_id uuid,
  eligible_at timestamptz
);

-- Entries that a claim has read and not locked, oldest first, of one tier, rank and score. checked: which of
-- their classes must be checked, maybe with others. head: what was read of the first entry.
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

-- A class whose leases may only be claimed after they have waited for a better node, and the tier and rank of
-- its head.
create type hwqueue.later_class as (
  class_id bigint,
  tier smallint,
  rank bigint
);

-- Entries that a claim has chosen, by ctid. on_fast_path: the claim may try the queue head again.
create type hwqueue.picked_entries as (
  ctids tid[],
  score double precision,
  term_deltas jsonb,
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

-- What a settlement adds to a tally.
create type hwqueue.tally_delta as (
  need int,
  arrived int,
  unmet int,
  failed int,
  skipped int
);

-- What one call does to a run. ended, states: steps that have just ended, and how; released, skipped,
-- reasons: steps that are due; most: how many it releases at most, the rest later; opened, closed, failed:
-- what it adds to the open work of the run.
create type hwqueue.run_progress as (
  ended int[],
  states text[],
  released int[],
  skipped int[],
  reasons text[],
  most int,
  opened int,
  closed int,
  failed int
);

-- How a step began or ended: state running (it is open), completed, failed or skipped.
create type hwqueue.step_verdict as (
  state text,
  reason text,
  error jsonb,
  result jsonb,
  due_at timestamptz
);

-- Members of one class that a node has room for, between the functions that ask which places have room.
create type hwqueue.gang_room as (
  class_no int,
  members int,
  node_id uuid,
  copies int,
  emptied int
);
comment on type hwqueue.gang_room is
  'how many members of a class have room on a node now, and would have if nothing ran there';

-- what a call of reap or prune has done so far
create type hwqueue.upkeep_done as (
  holds boolean,
  sweeps boolean,
  again boolean,
  reap_cursor hwqueue.reap_cursor,
  prune_cursor hwqueue.prune_cursor,
  expired int,
  promoted int,
  deadlines int,
  reaches int,
  leases int,
  classes int,
  nodes int,
  more boolean
);

-- All registered nodes at a moment: their ids, and which of them are live and open, as bits in that order.
create type hwqueue.fleet_snapshot as (
  registered int,
  node_ids uuid[],
  none bit varying,
  live bit varying,
  open bit varying,
  digest bigint,
  seen_at timestamptz
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
  nodes_serving int
);

-- A rule that a node fails (fleet_failures). predicate: what failed, as the class has it. lacks: what is
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
