drop function if exists hwqueue.find_profile(jsonb, bigint, timestamptz, int);

-- wire: the params blob of a lease as it was sent, for audit; what it asks is in the lease's class. Null costs a lease nothing.
alter table hwqueue.lease add column wire bytea;
alter type hwqueue.spawn_request add attribute wire bytea;
drop function if exists hwqueue.get_lease(uuid, int);
