-- A queue has a mark from the start, that of the tier and rank of most leases: the first claims find its head as later ones do.
update hwqueue.low_water w set tiers = '{0}', ranks = '{0}', positions = '{0}', moved = array[w.version]
where w.class_id = 0 and w.tiers = '{}';

-- Nobody looks classes up by what they require: the index slowed spawns of new classes for nothing.
drop index hwqueue.placement_class_required;

-- What read_queue_head and read_queue_heads say.
create type hwqueue.queue_head as (
  queue_id int, name text, claim_timeout interval, window_size int, classes bigint[], task_names text[], most_cpu_milli bigint,
  most_memory_mib bigint, marks int, tier smallint, rank bigint, position bigint, last bigint, is_front boolean, is_first boolean,
  checked bigint[], queue_ids int[], drops_completed boolean
);

-- A queue with retain_completed 0 keeps no completed lease.
alter table hwqueue.claim add column eligible_at timestamptz;
comment on column hwqueue.claim.eligible_at is
  'since when its lease could be claimed; null: the lease stays when it completes, as its queue says or its idempotency key wants it';
alter table hwqueue.outcome add column eligible_at timestamptz;
comment on column hwqueue.outcome.eligible_at is
  'of a lease that went when it completed: since when it could be claimed; null: the lease is there';

-- The first of some entries: whose it is, and since when it could be claimed.
create type hwqueue.entry_ref as (lease_id uuid, eligible_at timestamptz);
-- A class of which only a lease that has waited for a better node may be claimed, and where that stands.
create type hwqueue.later_class as (class_id bigint, tier smallint, rank bigint);
-- Whether a term is a matter of counts alone.
alter type hwqueue.touched_term add attribute by_counters_alone boolean;
-- Functions that give more than they did.
drop function if exists hwqueue.touched_terms(hwqueue.placement_class, uuid, hwqueue.node, int);
drop function if exists hwqueue.lock_stripes(text[], text[], int);
drop function if exists hwqueue.admit_class(hwqueue.placement_class, uuid, hwqueue.node, boolean, timestamptz, int);
drop function if exists hwqueue.names_lease(bigint, int);
drop function if exists hwqueue.add_counts(jsonb, int, int);
drop function if exists hwqueue.entries_at_head(hwqueue.profile_queue, hwqueue.node_state, text[], int, bigint[], hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.entries_in_window(hwqueue.profile_queue, text[], hwqueue.headroom, smallint, bigint, bigint, int, int, timestamptz, int);
drop function if exists hwqueue.take_entries(bigint[], bigint[], bigint[], smallint, bigint, int, hwqueue.node, timestamptz, int);
drop function if exists hwqueue.take_at_head(hwqueue.profile_queue, hwqueue.node_state, text[], int, hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.pick_entries(hwqueue.node_state, hwqueue.node_load, hwqueue.headroom, boolean, int[], text[], int, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.read_queue_head(text, bigint, xid8, xid8[], timestamptz, int);
drop function if exists hwqueue.waits_for(hwqueue.placement_class, hwqueue.node, timestamptz, timestamptz, int);
drop function if exists hwqueue.take_front(bigint, xid8, xid8[], int, text[], int, bigint, bigint, bigint[], hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.take_at_head(hwqueue.profile_queue, hwqueue.node_state, hwqueue.queue_head, text[], int, hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.decide_class(bigint, uuid, timestamptz, smallint, bigint, hwqueue.node, timestamptz, int);
drop function if exists hwqueue.try_score_groups(bigint[], double precision[], bigint[], hwqueue.node, hwqueue.scan_starts, int, int, int, timestamptz, int);
drop function if exists hwqueue.take_entries(bigint[], bigint[], bigint[], smallint, bigint, hwqueue.entry_ref, int, hwqueue.node, timestamptz, int);
