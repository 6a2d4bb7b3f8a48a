-- Nodes and claims belong to a login.

-- Names of roles, as text: a dump keeps names, and oids are another server's after a restore. Null: nobody has registered the
-- node since these columns came; then any worker may act for it, as before.
alter table hwqueue.node_state add column login text;
alter table hwqueue.claim add column login text;
comment on column hwqueue.node_state.login is 'the role whose members may act for the node; null: any worker, until it registers again';
comment on column hwqueue.claim.login is 'that of its node, copied: who settles a claim reads this row and not the node''s';

alter table hwqueue.attestation
  add column any_instance boolean not null default false,
  add column suspended_at timestamptz,
  add column suspended_why text;
comment on column hwqueue.attestation.any_instance is 'it holds for whatever instance the node''s login registers';
comment on column hwqueue.attestation.suspended_at is 'it does not count from then on, until an operator confirms it';

drop function if exists hwqueue.attest_node(uuid, text, timestamptz, int);
drop function if exists hwqueue.list_nodes(text, uuid, text, int, int);
drop function if exists hwqueue.grant_batch(tid[], uuid, bigint, interval, bigint, timestamptz, int);
drop function if exists hwqueue.refuse_settlement(uuid, bigint, text, text);
