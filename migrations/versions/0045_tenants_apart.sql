-- == Tenants that do not stop each other ==

alter table hwqueue.queue add column everywhere_tenants text[] not null default '{}',
  add column everywhere_limit int not null default 20,
  add column earmark_time interval not null default '10 minutes';
comment on column hwqueue.queue.everywhere_tenants is
  'tenants whose callers may spawn everywhere tasks; *: all tenants';
comment on column hwqueue.queue.everywhere_limit is 'how many everywhere tasks such a tenant has at most';
comment on column hwqueue.queue.earmark_time is
  'how long room is kept at most when it is not known by when it is enough; then for as long not again';

alter table hwqueue.claim add column yields_at timestamptz;
comment on column hwqueue.claim.yields_at is
  'of an earmark: when it had room and waited for leases that come before it';
alter table hwqueue.gang add column earmark_after timestamptz;
comment on column hwqueue.gang.earmark_after is 'it was earmarked for too long, and is not before then';
alter table hwqueue.everywhere add column anchors text[];
comment on column hwqueue.everywhere.anchors is
  'those of its class: a profile with none of them cannot run it; null: from an older version';
alter table hwqueue.everywhere_node add column earmark_after timestamptz;
comment on column hwqueue.everywhere_node.earmark_after is
  'its lease was earmarked for too long, and is not before then';

alter table hwqueue.node_state add column expands_until timestamptz;
comment on column hwqueue.node_state.expands_until is
  'it has registered: until then only everywhere tasks get its room; null: they have it';
create index node_state_expands on hwqueue.node_state (shard_id, node_id) where expands_until is not null;

alter table hwqueue.arrival add column tenant text not null default '';
comment on column hwqueue.arrival.tenant is 'that of the run: sweeps take turns';
create index arrival_tenant on hwqueue.arrival (shard_id, tenant, at) where after_xid is null;

-- What tenants have open, of those that have much. Written by reap about every ten seconds, and by
-- submissions in between.
create table hwqueue.tenant_work (
  shard_id int not null,
  tenant text not null,
  steps bigint not null,
  nested bigint not null,
  counted_at timestamptz not null,
  primary key (shard_id, tenant)
) with (fillfactor = 50);
comment on table hwqueue.tenant_work is
  'open steps and nested runs of tenants that have more than a thousand';
comment on column hwqueue.tenant_work.tenant is 'empty: runs without a tenant';

-- other arguments
drop function if exists hwqueue.expand_on_node(uuid, timestamptz, int);
drop function if exists hwqueue.claim_backfill(hwqueue.claim_request, hwqueue.node_state);
drop function if exists hwqueue.earmarked_load(hwqueue.node);
drop function if exists hwqueue.pick_leases(hwqueue.claim_request, hwqueue.node_state, hwqueue.headroom, int,
  bigint[], boolean, bigint[]);
drop function if exists hwqueue.take_constrained(hwqueue.claim_request, hwqueue.scored_classes, hwqueue.node,
  boolean, int, int, int);
drop function if exists hwqueue.take_room_back(hwqueue.gang, timestamptz, int);
drop function if exists hwqueue.planned_steps(hwqueue.workflow, hwqueue.run, jsonb, int);
drop function if exists hwqueue.planned_step(hwqueue.workflow, hwqueue.run, jsonb, jsonb, int);
drop function if exists hwqueue.fresh_arrivals(int, timestamptz, int);  -- it has another column
