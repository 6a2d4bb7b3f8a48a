-- A CHECK is read anew by every statement that writes to its table: the functions and their tests keep the states what they are.
alter table hwqueue.lease drop constraint lease_state_check;

-- Marks only rise, so one that is read from here is never too high.
alter table hwqueue.low_water add column scheduled_from timestamptz not null default '-infinity';
comment on column hwqueue.low_water.scheduled_from is 'that of reap_mark when the marks were moved last';

drop function if exists hwqueue.only_queue(text[], int);
drop function if exists hwqueue.grant_lease(hwqueue.ready, uuid, bigint, jsonb, interval, bigint, timestamptz, int, text, interval);
drop function if exists hwqueue.complete_plain(uuid, bigint, uuid, int);
drop function if exists hwqueue.complete_plain_batch(jsonb, uuid, timestamptz, int);
drop function if exists hwqueue.finish_completed(hwqueue.claim, jsonb, timestamptz, int);

-- Many claims of a node make a small index, and on a table without statistics the planner would take the smaller index for the
-- shard alone. A node names its shard well enough.
drop index hwqueue.claim_node;
create index claim_node on hwqueue.claim (node_id, shard_id);
