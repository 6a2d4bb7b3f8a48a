drop function if exists hwqueue.find_profile(jsonb, bigint, timestamptz, int);

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
