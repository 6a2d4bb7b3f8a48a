-- Composite types for what functions hand to each other together.

-- What decides which class a lease has: leases of equal content share one. placement is in normal form.
-- patience: null is the queue's. target: the only lease that the class is for, or null.
create type hwqueue.class_content as (
  queue_id int,
  task_name text,
  tenant text,
  service_id uuid,
  labels jsonb,
  placement jsonb,
  patience interval,
  target uuid
);

-- A rule that a node fails (all_failures). predicate: what failed, as the class has it. lacks: what is
-- short, as bits (see shortage).
create type hwqueue.failure as (
  stage text,
  code text,
  permanent boolean,
  message text,
  predicate jsonb,
  lacks int
);

-- What to say first about something that is pending: a code, and the words.
create type hwqueue.headline as (
  code text,
  message text
);

-- A pending class with what is known of the nodes for it (pending_classes): how many have room now, how
-- many of those have no known conflict (free), and its place in the report (turn).
create type hwqueue.pending_class as (
  pending bigint,
  oldest_at timestamptz,
  class_id bigint,
  nodes_matching int,
  nodes_cordoned int,
  nodes_silent int,
  part text,
  expr jsonb,
  near bit varying,
  nodes_near int,
  nodes_meeting int,
  nodes_serving int,
  with_room int,
  free int,
  conflict text,
  turn bigint
);

-- Which leases a list holds (read_lease_filter); null: any.
create type hwqueue.lease_filter as (
  queue_id int,
  state text,
  task_name text,
  tenants text[],
  service_id uuid,
  node_id uuid
);

-- What a claim asks for. queue_ids: the ids of queues, of those that are open, once the claim has read
-- them. tasks: null is any. claim_timeout: null is each queue's. now: when the claim had its node.
create type hwqueue.claim_request as (
  shard_id int,
  node_id uuid,
  node_epoch bigint,
  queues text[],
  tasks text[],
  qty int,
  claim_timeout interval,
  queue_ids int[],
  now timestamptz
);

-- is_tried: this claim has tried to lock an entry there, in vain.
alter type hwqueue.queue_head add attribute is_tried boolean;

-- Classes that a node may run and has room for now, best score first (fitting_classes). checked: those of
-- them that must be checked at the claim, in no order.
create type hwqueue.scored_classes as (
  classes bigint[],
  scores double precision[],
  checked bigint[]
);

-- Entries that a claim has read and not locked, oldest first, of one tier, rank and score. checked: which
-- of their classes must be checked, maybe with others. head: what was read of the first entry.
create type hwqueue.seen_entries as (
  tier smallint,
  rank bigint,
  positions bigint[],
  classes bigint[],
  checked bigint[],
  head hwqueue.entry_ref
);

-- Functions whose arguments or results are other ones now.
drop function if exists hwqueue.after_head(
  hwqueue.node_state, integer, bigint, bigint, bigint, uuid, boolean, bigint, timestamp with time zone,
  integer);
drop function if exists hwqueue.all_failures(
  hwqueue.placement_class, hwqueue.node, hwqueue.node_load, jsonb, jsonb, text, timestamp with time zone,
  integer);
drop function if exists hwqueue.amount_left_by_columns(
  text, bigint, bigint, integer, integer[], uuid[], uuid[], bigint, bigint, integer, integer[]);
drop function if exists hwqueue.choose_entries(
  hwqueue.node_state, hwqueue.queue_head, boolean, integer[], hwqueue.node_load, hwqueue.headroom, text[],
  integer, integer, timestamp with time zone, integer, integer, boolean, hwqueue.picked_entries);
drop function if exists hwqueue.claim_at_head(
  hwqueue.node_state, text[], integer, text[], interval, boolean, bigint, integer);
drop function if exists hwqueue.claim_general(
  hwqueue.node_state, hwqueue.queue_head, boolean, text[], uuid, bigint, integer, text[], interval,
  boolean, bigint, integer);
drop function if exists hwqueue.class_digest(
  integer, text, text, uuid, jsonb, jsonb, interval, uuid);
drop function if exists hwqueue.class_headline(
  integer, integer, integer, integer, integer, text, text, integer, integer, text, text, integer, integer,
  integer, timestamp with time zone, interval, text);
drop function if exists hwqueue.delete_granted(
  bigint, smallint, bigint, bigint, bigint, timestamp with time zone, uuid, timestamp with time zone,
  integer);
drop function if exists hwqueue.draft_class(
  integer, text, text, uuid, jsonb, jsonb, interval, uuid, uuid[], integer);
drop function if exists hwqueue.entries_at_head(
  hwqueue.profile_queue, hwqueue.queue_head, boolean, text[], integer, boolean, hwqueue.headroom, integer,
  timestamp with time zone, integer);
drop function if exists hwqueue.entries_in_window(
  hwqueue.profile_queue, text[], hwqueue.headroom, smallint, bigint, bigint, integer, integer,
  timestamp with time zone, integer);
drop function if exists hwqueue.entries_of_classes(
  hwqueue.profile_queue, smallint, bigint, bigint, integer, timestamp with time zone, integer);
drop function if exists hwqueue.failure_detail(
  text, text, jsonb, integer, jsonb, text, hwqueue.placement_class, uuid, hwqueue.node, hwqueue.node_load,
  timestamp with time zone, integer);
drop function if exists hwqueue.failure_reason(
  text, text, boolean, text, jsonb, integer, hwqueue.placement_class, hwqueue.node, hwqueue.node_load);
drop function if exists hwqueue.find_class(
  integer, text, text, uuid, jsonb, jsonb, integer, interval, uuid);
drop function if exists hwqueue.fitting_classes(
  hwqueue.node, hwqueue.headroom, integer[], text[], bigint[], jsonb, bigint[], timestamp with time zone,
  integer);
drop function if exists hwqueue.grant_batch(
  tid[], uuid, bigint, text, interval, bigint, timestamp with time zone, integer);
drop function if exists hwqueue.grant_single(
  hwqueue.picked_entries, hwqueue.node_state, hwqueue.queue_head, hwqueue.node, hwqueue.node_load,
  interval, bigint, timestamp with time zone, integer);
drop function if exists hwqueue.list_lease_ids(
  integer, text, text, integer, uuid, uuid, text[], uuid, uuid, integer);
drop function if exists hwqueue.list_leases(
  text, text, text, integer, uuid, text, uuid, uuid, integer);
drop function if exists hwqueue.lock_between(
  integer, smallint, bigint, bigint, bigint, bigint[], integer, timestamp with time zone, integer);
drop function if exists hwqueue.lock_window(
  bigint, integer, bigint[], text[], hwqueue.headroom, smallint, bigint, bigint, integer, integer,
  timestamp with time zone, integer);
drop function if exists hwqueue.next_score_group(
  bigint[], double precision[], smallint, bigint, double precision, hwqueue.scan_starts, integer, integer,
  timestamp with time zone, integer);
drop function if exists hwqueue.node_has(
  text, jsonb, integer, jsonb, text, hwqueue.placement_class, hwqueue.node, hwqueue.node_load,
  timestamp with time zone);
drop function if exists hwqueue.open_claim(
  hwqueue.node_state, text[], integer, text[], timestamp with time zone, integer, hwqueue.queue_head,
  boolean);
drop function if exists hwqueue.part_reason(
  text, jsonb, hwqueue.placement_class, hwqueue.node, boolean, timestamp with time zone);
drop function if exists hwqueue.pending_classes(
  integer, bigint, text, text, integer, hwqueue.fleet_snapshot, timestamp with time zone, integer);
drop function if exists hwqueue.pick_entries(
  hwqueue.node_state, hwqueue.node_load, hwqueue.headroom, boolean, hwqueue.queue_head, boolean, integer[],
  text[], integer, integer, timestamp with time zone, integer);
drop function if exists hwqueue.pick_leases(
  hwqueue.node_state, hwqueue.node_load, integer[], text[], integer, bigint[], boolean,
  timestamp with time zone, integer);
drop function if exists hwqueue.read_spawn(
  integer, uuid, bigint, bigint, text, jsonb, jsonb, integer, timestamp with time zone);
drop function if exists hwqueue.shortage(
  bigint, bigint, integer, integer, uuid[], jsonb, hwqueue.headroom, text, text);
drop function if exists hwqueue.take_at_head(
  hwqueue.profile_queue, hwqueue.node_state, hwqueue.queue_head, boolean, text[], integer,
  hwqueue.headroom, integer, timestamp with time zone, integer);
drop function if exists hwqueue.take_constrained(
  hwqueue.node, bigint[], double precision[], bigint[], boolean, integer[], integer, integer, integer,
  timestamp with time zone, integer);
drop function if exists hwqueue.take_entries(
  bigint[], bigint[], bigint[], smallint, bigint, hwqueue.entry_ref, integer, hwqueue.node,
  timestamp with time zone, integer);
drop function if exists hwqueue.try_score_groups(
  bigint[], double precision[], bigint[], hwqueue.node, hwqueue.scan_starts, smallint, bigint, integer,
  integer, integer, timestamp with time zone, integer);
