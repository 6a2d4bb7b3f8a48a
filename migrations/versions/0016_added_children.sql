-- == Added items ==
-- A handler that runs as a step may add items to that step: the step ends when its own lease and all that it
-- added have ended. They are counted and spawned as the items of a map are.

comment on column hwqueue.lease.item_no is
  'its place in the list of a map, from 0, or among the items that its step has added; -1: the own lease of a'
  ' step that has added items; null: of no such step';

-- What leases of a step have added to it, numbered behind the list of a map.
create table hwqueue.added_item (
  shard_id int not null,
  run_id uuid not null,
  step_no int not null,
  item_no int not null,
  name text not null,
  task_name text not null,
  params jsonb not null,
  primary key (shard_id, run_id, step_no, item_no)
);
create unique index added_item_name on hwqueue.added_item (shard_id, run_id, step_no, name);
comment on column hwqueue.added_item.name is
  'says once what it is: a handler that runs again adds it no more';

alter table hwqueue.map add column added int not null default 0;
comment on table hwqueue.map is
  'a map that was released, or a task that has added items: then the step has a lease of its own, too';
comment on column hwqueue.map.items is 'the length of its list, with what was added';
comment on column hwqueue.map.added is 'how many of its items were added: the last ones';

comment on column hwqueue.tally.part is
  '0: parents, or the open work of the run; above: items, one row, with a new part every 64 items: '
  'need is the number of the next one, arrived counts those that have ended. For a task that has added '
  'items both begin at -1, which is its own lease';
comment on column hwqueue.tally.unmet is
  'parents whose edge does not hold; of items: not 0 when some were added since the window was filled';

-- they have another argument or another result
drop function if exists hwqueue.item_request(hwqueue.run, hwqueue.workflow_step, timestamptz, int);
drop function if exists hwqueue.map_verdict(hwqueue.run, hwqueue.map, hwqueue.workflow_step, hwqueue.tally);
drop function if exists hwqueue.item_results(uuid, int, int, int, int);
drop function if exists hwqueue.count_items(uuid, int, int);
drop function if exists hwqueue.step_results(uuid, text, int, int, uuid, int);
drop function if exists hwqueue.take_ended_leases(uuid, int[], int);
