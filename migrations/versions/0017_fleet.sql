-- Functions that are gone, or take something else than they did: a claim that finds the front of a queue does so
-- in one way.
drop function if exists hwqueue.queue_front(int, int);
drop function if exists hwqueue.only_mark(int, int);
drop function if exists hwqueue.lock_stretch(bigint, int, bigint[], text[], hwqueue.headroom, smallint, bigint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.checked_at_front(bigint, int, int);
drop function if exists hwqueue.before_checked(tid[], bigint[]);
drop function if exists hwqueue.take_front(bigint, xid8, xid8[], int, text[], int, bigint, bigint, hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.front_entries(hwqueue.profile_queue, hwqueue.node_state, hwqueue.queue_look, text[], int, bigint[], hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.take_at_front(hwqueue.profile_queue, hwqueue.node_state, hwqueue.queue_look, text[], int, hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.pick_places(hwqueue.node_state, hwqueue.node_load, hwqueue.headroom, boolean, hwqueue.queue_look, int[], text[], int, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.take_best(bigint[], double precision[], int[], int, int, int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], bigint[], hwqueue.scan_from, smallint, bigint, int, timestamptz, int);
