-- Classes have marks of their own while the front of their queue stands still.
alter table hwqueue.low_water add column stands_until bigint not null default 0;
comment on column hwqueue.low_water.stands_until is 'of a queue (class_id 0): below this version claims look for marks of classes';

-- Where scans start: at the fronts of the queues that have anything, the first of all first. stands: which of them stand still. differ: it is worth
-- while to start each class where it begins itself; then class_fronts says where, for a list of classes, in class_*.
create type hwqueue.scan_from as (
  queue_ids int[], tiers smallint[], ranks bigint[], positions bigint[], stands boolean[], differ boolean,
  class_tiers smallint[], class_ranks bigint[], class_positions bigint[]
);
drop function if exists hwqueue.queue_front(int, int);

drop function if exists hwqueue.move_low_water(int, bigint, smallint, bigint, int);
drop function if exists hwqueue.lock_heads(bigint[], smallint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.next_lane(bigint[], double precision[], int[], smallint, bigint, double precision, smallint, bigint, bigint, int, int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], bigint[], int[], smallint, bigint, bigint, int, timestamptz, int);

-- As they were in the first databases with 0006_completed.
drop function if exists hwqueue.front_lane(bigint[], double precision[], int[], smallint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], int[], smallint, bigint, bigint, int, timestamptz, int);

-- An entry that is checked at the claim is deleted in the try that locked it.
alter type hwqueue.first_entered add attribute entry hwqueue.ready;
create type hwqueue.picked as (places tid[], score double precision, counted jsonb, entry hwqueue.ready, is_plain boolean);
drop function if exists hwqueue.pick_places(hwqueue.node_state, hwqueue.node_load, hwqueue.headroom, boolean, int[], text[], int, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.pick_leases(hwqueue.node_state, hwqueue.node_load, int[], text[], int, bigint[], boolean, timestamptz, int);
drop function if exists hwqueue.take_checked(hwqueue.node, bigint[], double precision[], bigint[], boolean, int[], int, int, int, timestamptz, int);
