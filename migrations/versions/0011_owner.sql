-- Who did what, as the server knows it: the login, beside the actor that the caller names.
alter table hwqueue.event add column login text;
comment on column hwqueue.event.login is 'session_user of who wrote it; null: of an earlier release';
alter table hwqueue.api_token
  add column created_login text,
  add column revoked_login text;
comment on column hwqueue.api_token.created_login is 'session_user, beside what the caller said (created_by)';

alter table hwqueue.shard
  add column event_days int not null default 14 check (event_days between 1 and 14),
  add column wake_key uuid not null default gen_random_uuid();
comment on column hwqueue.shard.event_days is 'for how many whole days prune keeps events; set_event_retention';
comment on column hwqueue.shard.wake_key is 'keeps names of queues out of notifications';

-- their results have one column more
drop function if exists hwqueue.list_events(bigint, jsonb, int, int);
drop function if exists hwqueue.list_tokens(int);

-- how long events are kept is no argument any more
drop function if exists hwqueue.prune_events(int, timestamptz, int);
