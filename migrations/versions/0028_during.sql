-- == Requirements during execution ==
-- Rows of claims whose class has such requirements only: other claims pay nothing.

create table hwqueue.placement_check (
  shard_id int not null,
  lease_id uuid not null,
  claim_no int not null,
  broken jsonb not null default '[]',
  primary key (shard_id, lease_id, claim_no)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.placement_check is
  'a claim with requirements that must hold as long as it runs: reap checks them';
comment on column hwqueue.placement_check.claim_no is 'the lower 40 bits of its claim token';
comment on column hwqueue.placement_check.broken is
  'those that do not hold: [{"at": place in placement_class.required, from 0, "code", "since"}]';

alter table hwqueue.reap_cursor
  add column checked_lease uuid not null default '00000000-0000-0000-0000-000000000000';
comment on column hwqueue.reap_cursor.checked_lease is 'where checks of placement_check go on';
comment on column hwqueue.claim.stop_requested_at is
  'when the worker is asked to stop; in the future while a taint is tolerated for a time, or a grace runs';
comment on column hwqueue.claim.stop_reason is
  'cancelled; preempted: its node is drained or tainted, or not trusted any more, or its gang does not run'
  ' as a whole; placement_broken: a requirement during execution does not hold any more';

drop function if exists hwqueue.decide_class(bigint, uuid, timestamptz, smallint, bigint, hwqueue.node,
  timestamptz, int);
drop function if exists hwqueue.term_facts(hwqueue.placement_class, hwqueue.node, jsonb, timestamptz, int);
drop function if exists hwqueue.count_fact(bigint, text, boolean, text, jsonb, timestamptz, int);
drop function if exists hwqueue.recount_node(hwqueue.node, bigint, timestamptz, boolean, int);
drop function if exists hwqueue.set_taint_stops(hwqueue.node, uuid[], timestamptz, int);
