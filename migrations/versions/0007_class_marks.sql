-- Classes have marks of their own while the front of their queue stands still.
alter table hwqueue.low_water add column blocked_until bigint not null default 0;
comment on column hwqueue.low_water.blocked_until is 'of a queue (class_id 0): below this version claims look for marks of classes';

-- Where scans start: at the fronts of the queues that have anything, the first of all first. stands: which of them stand still. differ: it is worth
-- while to start each class where it begins itself; then class_scan_starts says where, for a list of classes, in class_*.
create type hwqueue.scan_starts as (
  queue_ids int[], tiers smallint[], ranks bigint[], positions bigint[], stands boolean[], differ boolean,
  class_tiers smallint[], class_ranks bigint[], class_positions bigint[]
);
drop function if exists hwqueue.first_live_entry(int, int);

drop function if exists hwqueue.advance_low_water(int, bigint, smallint, bigint, int);
drop function if exists hwqueue.lock_class_heads(bigint[], smallint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.next_score_group(bigint[], double precision[], int[], smallint, bigint, double precision, smallint, bigint, bigint, int, int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], bigint[], int[], smallint, bigint, bigint, int, timestamptz, int);

-- As they were in the first databases with 0006_completed.
drop function if exists hwqueue.window_score_group(bigint[], double precision[], int[], smallint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], int[], smallint, bigint, bigint, int, timestamptz, int);

-- An entry that is checked at the claim is deleted in the try that locked it.
alter type hwqueue.first_entered add attribute entry hwqueue.ready;
create type hwqueue.picked_entries as (ctids tid[], score double precision, term_deltas jsonb, entry hwqueue.ready, on_fast_path boolean);
drop function if exists hwqueue.pick_entries(hwqueue.node_state, hwqueue.node_load, hwqueue.headroom, boolean, int[], text[], int, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.pick_leases(hwqueue.node_state, hwqueue.node_load, int[], text[], int, bigint[], boolean, timestamptz, int);
drop function if exists hwqueue.take_constrained(hwqueue.node, bigint[], double precision[], bigint[], boolean, int[], int, int, int, timestamptz, int);
