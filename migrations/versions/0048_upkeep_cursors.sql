-- == Where upkeep goes on ==

alter table hwqueue.reap_cursor add column choices_from timestamptz not null default '-infinity',
  add column deliveries_from timestamptz not null default '-infinity',
  add column changes_from bigint not null default 0, add column next_change bigint not null default 0,
  add column kept_from bigint not null default 0, add column next_arrival bigint not null default 0;
comment on column hwqueue.reap_cursor.choices_from is
  'no choice that is to be settled has an earlier taken_at, and none can get one';
comment on column hwqueue.reap_cursor.deliveries_from is
  'no delivery that waits has an earlier available_at, and none can get one';
comment on column hwqueue.reap_cursor.changes_from is
  'no change of a gang has a lower change_id, and none can get one';
comment on column hwqueue.reap_cursor.kept_from is
  'no arrival has a lower arrival_id, and none can get one';
comment on column hwqueue.reap_cursor.next_change is
  'only transactions below next_after_xid can still insert a lower change_id; likewise next_arrival';

-- == What upkeep could not finish ==

comment on table hwqueue.postponed is
  'what of upkeep a timeout ended, or failed, for ten minutes: parts, gangs and others';
comment on column hwqueue.postponed.part is
  'such as "reap gangs" or "prune leases"; or gang, replacement, choice or everywhere';
comment on column hwqueue.postponed.item is
  'the gang, the lease, the choice, or a node without the lease yet; zeros: the part as a whole';

-- they have other arguments, or are a part of others now
drop function if exists hwqueue.reap_gangs(int, interval, timestamptz, int);
drop function if exists hwqueue.reap_everywhere(int, interval, timestamptz, int);
drop function if exists hwqueue.look_at_changed(int, timestamptz, timestamptz, int);
drop function if exists hwqueue.settle_choices(int, timestamptz, int);
drop function if exists hwqueue.count_attempt(hwqueue.webhook, text, timestamptz);
drop function if exists hwqueue.restart_scans(hwqueue.reap_cursor, timestamptz);
drop function if exists hwqueue.prune_traced_runs(int, timestamptz, int);
drop function if exists hwqueue.prune_run_totals(int, timestamptz, int);
drop function if exists hwqueue.prune_fleets(int, timestamptz, int);
drop function if exists hwqueue.take_choice(uuid, uuid, timestamptz, int);
drop function if exists hwqueue.route_webhooks(int, timestamptz, int);
drop function if exists hwqueue.route_events(hwqueue.webhook, int, timestamptz, int);
drop function if exists hwqueue.route_completions(hwqueue.webhook, int, timestamptz, int);


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
