-- Classes have marks of their own while the front of their queue stands still.
alter table hwqueue.low_water add column stands_until bigint not null default 0;
comment on column hwqueue.low_water.stands_until is 'of a queue (class_id 0): below this version claims look for marks of classes';

-- Where scans start. Nothing that a claim may take comes before tier, rank and position. If the front stands still (stands): of the class
-- at some place of a list of classes nothing comes before what stands there in the arrays, once class_fronts has filled them.
create type hwqueue.scan_from as (
  tier smallint, rank bigint, "position" bigint, stands boolean, tiers smallint[], ranks bigint[], positions bigint[]
);

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
