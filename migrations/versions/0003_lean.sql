-- A CHECK is read anew by every statement that writes to its table: the functions and their tests keep the states what they are.
alter table hwqueue.lease drop constraint lease_state_check;

drop function if exists hwqueue.only_queue(text[], int);
drop function if exists hwqueue.grant_lease(hwqueue.ready, uuid, bigint, jsonb, interval, bigint, timestamptz, int, text, interval);
drop function if exists hwqueue.complete_plain(uuid, bigint, uuid, int);
drop function if exists hwqueue.complete_plain_batch(jsonb, uuid, timestamptz, int);
drop function if exists hwqueue.finish_completed(hwqueue.claim, jsonb, timestamptz, int);
drop function if exists hwqueue.lock_window(hwqueue.profile_queue, text[], hwqueue.headroom, smallint, bigint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.settle_claim(uuid, bigint, jsonb, timestamptz, int);
drop function if exists hwqueue.take_front(bigint, xid8, int, text[], int, hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.lock_class_heads(bigint[], int, timestamptz, int);
drop function if exists hwqueue.next_score_group(bigint[], double precision[], int[], smallint, bigint, double precision, int, int, timestamptz, int);
drop function if exists hwqueue.window_score_group(bigint[], double precision[], int[], int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], int[], smallint, bigint, int, timestamptz, int);

-- Where few rows live among many dead ones (an old snapshot), the planner takes the index with the fewest pages that it can use at all,
-- for the shard alone. What is looked up by key must have no other index that begins with, or has, the shard: nodes, moments and
-- classes are not shared between shards anyway.
drop index hwqueue.claim_node;
create index claim_node on hwqueue.claim (node_id);
drop index hwqueue.claim_check;
create index claim_check on hwqueue.claim (check_at);
drop index hwqueue.lease_class;
create index lease_class on hwqueue.lease (class_id);

-- Among indexes of one page each the planner takes the one made last: by name, where a name is given.
drop index hwqueue.queue_name;
create unique index queue_name on hwqueue.queue (shard_id, name) where dropped_at is null;
