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

-- Functions whose arguments or results are other ones now.
drop function if exists hwqueue.all_failures(
  hwqueue.placement_class, hwqueue.node, hwqueue.node_load, jsonb, jsonb, text, timestamp with time zone,
  integer);
drop function if exists hwqueue.amount_left_by_columns(
  text, bigint, bigint, integer, integer[], uuid[], uuid[], bigint, bigint, integer, integer[]);
drop function if exists hwqueue.class_digest(
  integer, text, text, uuid, jsonb, jsonb, interval, uuid);
drop function if exists hwqueue.class_headline(
  integer, integer, integer, integer, integer, text, text, integer, integer, text, text, integer, integer,
  integer, timestamp with time zone, interval, text);
drop function if exists hwqueue.draft_class(
  integer, text, text, uuid, jsonb, jsonb, interval, uuid, uuid[], integer);
drop function if exists hwqueue.failure_detail(
  text, text, jsonb, integer, jsonb, text, hwqueue.placement_class, uuid, hwqueue.node, hwqueue.node_load,
  timestamp with time zone, integer);
drop function if exists hwqueue.failure_reason(
  text, text, boolean, text, jsonb, integer, hwqueue.placement_class, hwqueue.node, hwqueue.node_load);
drop function if exists hwqueue.find_class(
  integer, text, text, uuid, jsonb, jsonb, integer, interval, uuid);
drop function if exists hwqueue.list_lease_ids(
  integer, text, text, integer, uuid, uuid, text[], uuid, uuid, integer);
drop function if exists hwqueue.list_leases(
  text, text, text, integer, uuid, text, uuid, uuid, integer);
drop function if exists hwqueue.node_has(
  text, jsonb, integer, jsonb, text, hwqueue.placement_class, hwqueue.node, hwqueue.node_load,
  timestamp with time zone);
drop function if exists hwqueue.part_reason(
  text, jsonb, hwqueue.placement_class, hwqueue.node, boolean, timestamp with time zone);
drop function if exists hwqueue.pending_classes(
  integer, bigint, text, text, integer, hwqueue.fleet_snapshot, timestamp with time zone, integer);
drop function if exists hwqueue.read_spawn(
  integer, uuid, bigint, bigint, text, jsonb, jsonb, integer, timestamp with time zone);
drop function if exists hwqueue.shortage(
  bigint, bigint, integer, integer, uuid[], jsonb, hwqueue.headroom, text, text);
