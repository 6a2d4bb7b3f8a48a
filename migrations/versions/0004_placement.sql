drop function if exists hwqueue.find_profile(jsonb, bigint, timestamptz, int);

-- Terms: what leases ask about other leases.
drop function if exists hwqueue.expr_reason(jsonb, jsonb, bigint, uuid, uuid[]);
drop function if exists hwqueue.exprs_hold(jsonb, jsonb, bigint, uuid, uuid[]);
drop function if exists hwqueue.affinity_score(jsonb, jsonb, bigint, uuid, uuid[]);
drop function if exists hwqueue.pick_entries(hwqueue.node_state, hwqueue.node_load, hwqueue.headroom, boolean, int[], text[], int, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.pick_leases(hwqueue.node_state, hwqueue.node_load, int[], text[], int, timestamptz, int);
drop function if exists hwqueue.eligible_classes(bigint, uuid, int, int);
drop function if exists hwqueue.fitting_classes(hwqueue.node, hwqueue.headroom, int[], text[], jsonb, int);
drop function if exists hwqueue.read_queue_head(text, bigint, xid8, timestamptz, int);
drop function if exists hwqueue.class_reasons(hwqueue.placement_class, hwqueue.node, hwqueue.node_load);

alter table hwqueue.placement_class
  add column spread jsonb not null default '[]',
  add column terms jsonb not null default '[]',
  add column target uuid,
  add column terms_written boolean not null default false,
  add column away_from uuid[] not null default '{}';
comment on column hwqueue.placement_class.away_from is 'services that its own one keeps away from: required of it, too';
comment on column hwqueue.placement_class.terms is 'what it asks about other leases, in the order of the indexes in required, preferred and spread';
comment on column hwqueue.placement_class.target is 'the only lease of this class: a term names it';
create index placement_class_asks on hwqueue.placement_class using gin (terms jsonb_path_ops) where terms <> '[]';
create index placement_class_service on hwqueue.placement_class (shard_id, service_id) where service_id is not null;
create index placement_class_terms on hwqueue.placement_class (shard_id, class_id) where terms <> '[]' and not terms_written;

create table hwqueue.affinity_term (
  shard_id int not null,
  term_id bigint generated always as identity,
  digest bigint not null,
  spec jsonb not null,
  use text not null,
  domain text not null,
  anchors text[] not null,
  written_xid xid8 not null,
  barrier xid8,
  holds_up boolean not null default false,
  created_at timestamptz not null,
  published_at timestamptz,
  primary key (shard_id, term_id)
);
comment on column hwqueue.affinity_term.written_xid is 'the transaction that last told a class of it; 0 before the first';
comment on column hwqueue.affinity_term.barrier is 'transactions below this one may not know of it';
comment on column hwqueue.affinity_term.holds_up is 'it was in force before and is counted anew: what it selects waits as well';
create unique index term_digest on hwqueue.affinity_term (shard_id, digest);
create index term_anchors on hwqueue.affinity_term using gin (anchors);
create index term_unpublished on hwqueue.affinity_term (shard_id, term_id) where published_at is null;

create table hwqueue.class_term (
  shard_id int not null,
  class_id bigint not null,
  term_id bigint not null
);
comment on table hwqueue.class_term is 'the term selects leases of the class; the same row twice does no harm';
create index class_term_term on hwqueue.class_term (shard_id, term_id);
create index class_term_class on hwqueue.class_term (shard_id, class_id);

create table hwqueue.term_counter (
  shard_id int not null,
  term_id bigint not null,
  domain text not null,
  leases int not null,
  holders int not null,
  updates int not null
) with (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.term_counter is 'what runs of a term in a domain: the sum over all rows of both';
create index term_count_place on hwqueue.term_counter (shard_id, term_id, domain);

create table hwqueue.lock_stripe (
  shard_id int not null,
  stripe_id int not null,
  primary key (shard_id, stripe_id)
);
comment on table hwqueue.lock_stripe is 'rows to be locked, each for some (term, place) pairs; never written';
insert into hwqueue.lock_stripe (shard_id, stripe_id) select 0, g from generate_series(0, 16383) g;

-- What enter_first found: entries that may be claimed; what the claim of the only one counts; else the class that may not be.
create type hwqueue.first_entered as (kept tid[], term_deltas jsonb, blocked bigint[], is_new boolean);

alter table hwqueue.claim add column term_deltas jsonb;
comment on column hwqueue.claim.term_deltas is 'what it has added to term_count; null when no term has to do with it';
create index claim_stopping on hwqueue.claim (class_id) where stop_requested_at is not null;

alter table hwqueue.profile_eligibility add column is_checked boolean not null default false;
alter table hwqueue.node_eligibility add column is_checked boolean not null default false;
alter table hwqueue.profile_queue add column checked bigint[] not null default '{}';
comment on column hwqueue.profile_queue.checked is 'those of classes that are to be checked at the claim, since they or others ask something about other leases';
drop function if exists hwqueue.lease_score(double precision, double precision, double precision, double precision);
alter table hwqueue.profile_eligibility alter column affinity drop not null;
alter table hwqueue.node_eligibility alter column affinity drop not null;
comment on column hwqueue.profile_eligibility.affinity is 'null: it depends on other leases, and each claim looks';

-- Patience: how long a lease waits for a better node.
drop function if exists hwqueue.put_back(uuid, int, int, timestamptz, timestamptz, int);
drop function if exists hwqueue.class_digest(int, text, text, uuid, jsonb, jsonb);
drop function if exists hwqueue.draft_class(int, text, text, uuid, jsonb, jsonb, int);
drop function if exists hwqueue.find_class(int, text, text, uuid, jsonb, jsonb, int);
alter table hwqueue.placement_class add column patience interval;
comment on column hwqueue.placement_class.patience is 'null: the queue''s';
alter table hwqueue.queue add column patience interval not null default '2 seconds';
-- grammar: preferences are told from requirements; a placement has all its parts
drop function if exists hwqueue.normalise_expr(jsonb, text, int);
drop function if exists hwqueue.normalise_exprs(jsonb, text, int, int);
drop function if exists hwqueue.build_placement(jsonb, jsonb, jsonb);
-- wire: the params blob of a lease as it was sent, for audit; what it asks is in the lease's class. Null costs a lease nothing.
alter table hwqueue.lease add column wire bytea;
alter type hwqueue.spawn_request add attribute wire bytea;
drop function if exists hwqueue.get_lease(uuid, int);
-- nodes: taints and tolerations, trust, service policies
drop function if exists hwqueue.suits(hwqueue.placement_class, hwqueue.profile, uuid, uuid[]);
drop function if exists hwqueue.expr_reason(jsonb, jsonb, bigint, uuid, uuid[]);
drop function if exists hwqueue.exprs_hold(jsonb, jsonb, bigint, uuid, uuid[]);
drop function if exists hwqueue.affinity_score(jsonb, jsonb, bigint, uuid, uuid[]);
drop function if exists hwqueue.class_reasons(hwqueue.placement_class, hwqueue.node, hwqueue.node_load);
drop function if exists hwqueue.fitting_classes(hwqueue.node, hwqueue.headroom, int[], text[], jsonb, int);
drop function if exists hwqueue.eligible_classes(bigint, uuid, int, int);
drop function if exists hwqueue.list_nodes(text, int);
drop function if exists hwqueue.heartbeat_others(uuid, uuid[], bigint[], uuid[], int);

alter table hwqueue.node
  add column taints jsonb not null default '[]',
  add column operator_taints jsonb not null default '[]',
  add column attested text[] not null default '{}',
  add column attested_until timestamptz[] not null default '{}';
comment on column hwqueue.node.taints is 'those it registered with, each with the time it came ("since"); a registration replaces them';
comment on column hwqueue.node.operator_taints is 'those that operators put on it; no registration takes them away';
comment on column hwqueue.node.attested is 'trust domains of its attestations, for claims; what has expired stays until it is revoked';
comment on column hwqueue.node.attested_until is 'when each of them expires; infinity: never';
-- For reap: whose claims may have to stop after a time.
create index node_no_execute on hwqueue.node (shard_id, node_id)
  where (taints || operator_taints) @> '[{"effect": "no_execute"}]';

alter table hwqueue.profile add column taints jsonb not null default '[]';
comment on column hwqueue.profile.taints is 'those of the nodes and those of operators, without their times';

alter table hwqueue.placement_class
  add column tolerate jsonb not null default '[]',
  add column trusts text[] not null default '{}';
comment on column hwqueue.placement_class.trusts is 'trust domains that its requirements mention: attestations expire, so a claim looks again';
alter table hwqueue.node_eligibility add column trusts text[] not null default '{}';
comment on column hwqueue.node_eligibility.trusts is 'as in placement_class; judged with every attestation, expired or not';

comment on column hwqueue.claim.stop_requested_at is 'when the worker is told; in the future while a taint is tolerated for a time';

-- Who vouches for a node: what operators said. Claims read the copy in node.
create table hwqueue.attestation (
  shard_id int not null,
  node_id uuid not null,
  domain text not null,
  expires_at timestamptz,
  attested_at timestamptz not null,
  attested_by text not null,
  primary key (shard_id, node_id, domain)
);

-- What operators said of a service.
create table hwqueue.service (
  shard_id int not null,
  service_id uuid not null,
  failure_domain text,
  away_from uuid[] not null default '{}',
  primary key (shard_id, service_id)
);
comment on column hwqueue.service.failure_domain is 'node, rack or label:KEY; null: that of the queue';
comment on column hwqueue.service.away_from is 'services that its leases keep away from';

alter table hwqueue.queue add column failure_domain text not null default 'rack';
comment on column hwqueue.queue.failure_domain is 'of services that have none of their own: node, rack or label:KEY';

-- isolation: cores and devices that leases have to themselves
drop function if exists hwqueue.shortage(bigint, bigint, int, int, uuid[], jsonb, hwqueue.headroom);
drop function if exists hwqueue.lacking(hwqueue.placement_class, hwqueue.headroom);
drop function if exists hwqueue.choose_devices(int, int, uuid[], hwqueue.headroom);
drop function if exists hwqueue.suits(hwqueue.placement_class, hwqueue.profile, uuid, uuid[]);
drop function if exists hwqueue.eligible_classes(bigint, uuid, int, int);
drop function if exists hwqueue.claim_assignment(hwqueue.placement_class, hwqueue.node, jsonb);
drop function if exists hwqueue.allocate_room(hwqueue.placement_class, hwqueue.node, int[], hwqueue.node_load);
drop function if exists hwqueue.adopted_devices(hwqueue.placement_class, hwqueue.node, hwqueue.node_load, jsonb);
drop function if exists hwqueue.node_usage_of_claims(hwqueue.node);

alter table hwqueue.node
  add column cpu_isolation text[] not null default '{best_effort}',
  add column gpu_exclusivity text[] not null default '{shared}',
  add column default_cpu_isolation text not null default 'best_effort',
  add column gpu_share_mode text not null default 'fractional',
  add column core_ids int[] not null default '{}',
  add column core_numa int[] not null default '{}',
  add column gpu_parents uuid[] not null default '{}';
comment on column hwqueue.node.cpu_isolation is 'classes honoured, as is gpu_exclusivity; best_effort and shared always are';
comment on column hwqueue.node.core_ids is 'cores that are counted one by one, in the order of cores; empty unless whole cores are honoured';
comment on column hwqueue.node.gpu_parents is 'of each device, the one that it is a part of; null: a whole device; empty: all are whole';

alter table hwqueue.profile
  add column cpu_isolation text[] not null default '{best_effort}',
  add column gpu_exclusivity text[] not null default '{shared}',
  add column default_cpu_isolation text not null default 'best_effort',
  add column gpu_share_mode text not null default 'fractional';

-- not null: what changes in a row between two others would be written to the log again with a null
alter table hwqueue.node_load add column core_used int[] not null default '{}';
comment on column hwqueue.node_load.core_used is 'thousandths in use, core by core, in the order of node.core_ids';

alter table hwqueue.placement_class
  add column cpu_isolation text,
  add column gpu_exclusivity text;
comment on column hwqueue.placement_class.cpu_isolation is 'the class asked for; null: whatever the node''s default is. Likewise gpu_exclusivity';

alter table hwqueue.profile_eligibility
  add column cpu_isolation text,
  add column gpu_exclusivity text;
alter table hwqueue.node_eligibility
  add column cpu_isolation text,
  add column gpu_exclusivity text;
comment on column hwqueue.profile_eligibility.cpu_isolation is 'what the class comes to here, the default filled in; null: best_effort. Likewise gpu_exclusivity: null is shared';
comment on column hwqueue.node_eligibility.cpu_isolation is 'as in profile_eligibility';

alter type hwqueue.headroom
  add attribute core_milli bigint,
  add attribute core_whole int,
  add attribute core_numa int,
  add attribute gpu_parts int[],
  add attribute gpu_parts_free int;

-- What was judged before goes on to hold; leases that prefer something are checked at each claim from now on.
update hwqueue.profile_eligibility e set is_checked = true
from hwqueue.placement_class c where c.shard_id = e.shard_id and c.class_id = e.class_id and c.preferred <> '[]';
update hwqueue.node_eligibility e set is_checked = true
from hwqueue.placement_class c where c.shard_id = e.shard_id and c.class_id = e.class_id and c.preferred <> '[]';
update hwqueue.profile_queue s
set checked = array(
  select e.class_id from hwqueue.profile_eligibility e
  where e.shard_id = s.shard_id and e.profile_id = s.profile_id and e.queue_id = s.queue_id and e.is_checked limit 201);
