-- == Maps ==
-- A map runs its task once for each item of a list. Its items are leases of the same step, spawned a window
-- at a time: those that are not spawned yet are no rows.

alter table hwqueue.lease add column item_no int;
create index lease_item on hwqueue.lease (run_id, step_no, item_no) where item_no is not null;
comment on column hwqueue.lease.item_no is 'its place in the list of a map, from 0; null: no item of a map';

comment on column hwqueue.claim.is_step is
  'not null: the settlement goes on with a run (lease.run_id); false: of an item of a map; null: nobody waits'
  ' for this lease';

alter type hwqueue.spawn_request add attribute item_no int;

-- A map that was released. Its items are counted in the tally of its step, part 1.
create table hwqueue.map (
  shard_id int not null,
  run_id uuid not null,
  step_no int not null,
  items int not null,
  over_step int,
  params jsonb not null,
  keeps_completed boolean not null default false,
  stopped_below int not null default 0,
  primary key (shard_id, run_id, step_no)
);
comment on column hwqueue.map.items is 'the length of its list';
comment on column hwqueue.map.over_step is
  'the map whose results are its list; null: the list is in map_list';
comment on column hwqueue.map.params is 'those of its items, with all bound but the item itself';
comment on column hwqueue.map.keeps_completed is
  'of a retry: items that have completed in an earlier attempt are not run again';
comment on column hwqueue.map.stopped_below is
  'of a run that stops: items below this have been asked to stop';

-- The list of a map, a hundred items a row.
create table hwqueue.map_list (
  shard_id int not null,
  run_id uuid not null,
  step_no int not null,
  first_item int not null,
  items jsonb not null,
  primary key (shard_id, run_id, step_no, first_item)
);

alter table hwqueue.tally add column low int;
comment on column hwqueue.tally.low is
  'of items: while more of them are open, their ends are counted and nothing else; null: parents or '
  'open work';
comment on column hwqueue.tally.part is
  '0: parents, or the open work of the run; above: items of a map, one row, with a new part every 64 items:'
  ' need counts those spawned, which is also the number of the next one, arrived those that have ended';
comment on column hwqueue.tally.failed is
  'of those unmet, the ones that failed or were cancelled; of open work: failures that nothing ignores; of'
  ' items: those that failed';
comment on column hwqueue.tally.skipped is
  'of those unmet, the ones that were skipped; of items: those that were cancelled';
comment on column hwqueue.arrival.kind is
  'count: for a tally; item: for that of a map; release, skip: of a step; fail: the run; state: the run''s'
  ' state has changed';

-- they have another argument or another result
drop function if exists hwqueue.settle_claim(uuid, bigint, jsonb, boolean, timestamptz, int);
drop function if exists hwqueue.arrive(uuid, int, hwqueue.tally_delta, boolean, timestamptz, int);
drop function if exists hwqueue.bind_value(jsonb, hwqueue.run, jsonb);
drop function if exists hwqueue.binding_steps(jsonb, text);
drop function if exists hwqueue.list_workflow_steps(uuid, int);
drop function if exists hwqueue.cancel_unclaimed(uuid, text, int);
