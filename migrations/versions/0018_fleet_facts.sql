-- Which nodes suit a class, and what is in the way, as bit strings.

drop function if exists hwqueue.class_fleets(bigint[], hwqueue.fleet_look, boolean, timestamptz, int);
drop function if exists hwqueue.find_fleets(bigint[], timestamptz, int);
drop function if exists hwqueue.class_fits(bigint[], hwqueue.fleet_look, int, timestamptz, int);
drop function if exists hwqueue.is_known_in_full(int, int);
drop function if exists hwqueue.is_unmatched(hwqueue.class_fleet);
drop function if exists hwqueue.watch_class(hwqueue.class_fleet, bigint, timestamptz, int);
drop function if exists hwqueue.watch_classes(bigint, int, bigint, timestamptz, int);
drop function if exists hwqueue.reap_fleets(bigint, int, boolean, timestamptz, int);

drop type hwqueue.class_fit;
create type hwqueue.class_match as (
  class_id bigint,
  nodes bit varying,
  nodes_matching int,
  nodes_cordoned int,
  nodes_silent int,
  part text,
  expr jsonb,
  near bit varying,
  nodes_near int,
  nodes_meeting int,
  nodes_serving int
);

update hwqueue.class_fleet set digest = null where digest is not null;
alter table hwqueue.class_fleet
  drop column nodes_matching, drop column nodes_cordoned, drop column nodes_silent, drop column part, drop column expr,
  drop column near_node, drop column nodes_near, drop column nodes_meeting, drop column nodes_serving,
  add column unmatched boolean not null default false;
comment on table hwqueue.class_fleet is 'which part of the nodes suits a class';
comment on column hwqueue.class_fleet.unmatched is 'no live node that is not cordoned suited it when that was found out';
create index class_fleet_unmatched on hwqueue.class_fleet (shard_id, class_id) where unmatched or told_at is not null;

drop table hwqueue.class_nodes;
create table hwqueue.class_nodes (
  shard_id int not null,
  class_id bigint not null,
  digest bigint not null,
  is_known boolean not null,
  unmatched boolean not null,
  nodes bit varying not null,
  part text,
  expr jsonb,
  others bit varying,
  meeting bit varying,
  serving bit varying,
  primary key (shard_id, class_id)
);
comment on table hwqueue.class_nodes is 'the nodes that suit a class, and what is in the way, by the numbers that nodes have with this digest';
