-- == Preference for the node that a lease was suspended on ==

alter table hwqueue.lease add column near_node uuid;
comment on column hwqueue.lease.near_node is
  'the node that its class prefers because its handler was suspended there; null: none for that reason';

-- functions that have other arguments by now
drop function if exists hwqueue.end_claim(hwqueue.claim, text, jsonb, timestamptz, timestamptz, int);
drop function if exists hwqueue.suspend_lease(uuid, bigint, timestamptz, text, text, int);
drop function if exists hwqueue.near_places(uuid, jsonb, timestamptz, int);
