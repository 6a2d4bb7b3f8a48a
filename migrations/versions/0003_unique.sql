alter table hwqueue.idempotency add column held_until timestamptz;
comment on column hwqueue.idempotency.held_until is
  'of the option unique: until then another spawn finds the lease; infinity: while it is open. Null: of an'
  ' idempotency key, for as long as the lease is kept';

alter type hwqueue.spawn_request
  add attribute held_until timestamptz,
  add attribute on_conflict text;
