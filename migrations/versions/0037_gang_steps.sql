-- == Gangs that are steps of runs ==

alter table hwqueue.gang add column run_id uuid, add column step_no int;
comment on column hwqueue.gang.run_id is 'the run whose step it is; null: it was spawned by itself';
comment on column hwqueue.gang.step_no is 'which step of that run: its members are the items of the step';
comment on column hwqueue.lease.item_no is
  'its place in the list of a map, from 0, its rank in the gang that its step is, or its place among the'
  ' items that its step has added; -1: the own lease of a step that has added items; null: of no such step';
comment on table hwqueue.map is
  'a map or a gang that was released, or a task that has added items: then the step has a lease of its own,'
  ' too';
comment on column hwqueue.map.items is 'the length of its list, with what was added; of a gang its size';

-- they have other columns, or another argument
drop function if exists hwqueue.get_gang(uuid, int);
drop function if exists hwqueue.list_workflow_steps(uuid, int);
drop function if exists hwqueue.map_headline(hwqueue.step, int, int, int);
