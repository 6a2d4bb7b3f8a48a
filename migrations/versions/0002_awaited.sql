-- The column that await_leases sets and the end of a claim reads.

alter table hwqueue.claim add column is_awaited boolean not null default false;
comment on column hwqueue.claim.is_awaited is
  'somebody listens for the end of the lease (await_leases)';
