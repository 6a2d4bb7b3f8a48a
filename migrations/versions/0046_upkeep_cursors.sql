-- == Whose a step is ==

alter table hwqueue.lease add column tenant text;
comment on column hwqueue.lease.tenant is
  'that of the run whose step this is; null: a lease of its own, or from an older version';
alter type hwqueue.spawn_request add attribute tenant text;

-- they have one more argument
drop function if exists hwqueue.arrive(uuid, int, boolean, hwqueue.tally_delta, boolean, timestamptz, int);
drop function if exists hwqueue.count_parents(uuid, int, boolean, hwqueue.tally_delta, boolean, timestamptz,
  int);
drop function if exists hwqueue.advance_map(uuid, int, hwqueue.tally_delta, boolean, timestamptz, int);
drop function if exists hwqueue.count_work(uuid, int, int, int, timestamptz, int);
