-- A version 7 uuid (RFC 9562): milliseconds of the clock, then random bits. Postgres has its own only from 18 on.
-- Locks: none. Raises: nothing. Idempotent: no, every call gives a new id.
create or replace function hwqueue.new_id() returns uuid
language sql volatile parallel safe
as $$
  select encode(
    set_bit(set_bit(
      overlay(
        uuid_send(gen_random_uuid())
        placing substring(int8send(floor(extract(epoch from hwqueue.clock()) * 1000)::bigint) from 3)
        from 1 for 6),
      52, 1), 53, 1),
    'hex')::uuid
$$;
