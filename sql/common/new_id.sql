-- Ids of leases: version 7 uuids (RFC 9562), milliseconds of the clock, then random bits. Postgres has its own only from 18 on.

-- One id.
-- Locks: none. Raises: nothing. Idempotent: no, every call gives a new id.
create or replace function hwqueue.new_id() returns uuid
language sql volatile parallel safe
as $$
  -- the random one has its variant in the right place; the first 15 characters are the time and the version
  select overlay(gen_random_uuid()::text
    placing overlay(lpad(to_hex(floor(extract(epoch from hwqueue.clock()) * 1000)::bigint), 12, '0') placing '-' from 9 for 0) || '-7'
    from 1 for 15)::uuid
$$;

-- The lowest id of a time.
create or replace function hwqueue.id_of_time(p_at timestamptz) returns uuid
language sql stable parallel safe
as $$
  select overlay('00000000-0000-7000-8000-000000000000'
    placing overlay(lpad(to_hex(floor(extract(epoch from p_at) * 1000)::bigint), 12, '0') placing '-' from 9 for 0) from 1 for 13)::uuid
$$;

-- Ids for a batch, ascending: they count up from a random number of 46 bits (RFC 9562, 6.2, method 2). Random bits are
-- dear, and an index takes neighbours sooner than strangers.
-- Locks: none. Raises: nothing. Idempotent: no, every call gives new ids.
create or replace function hwqueue.new_ids(p_count int) returns uuid[]
language plpgsql volatile parallel safe
as $$
declare
  v_first text := hwqueue.new_id();
  v_prefix text := left(v_first, 24);
  -- the highest bit is set so that it has 12 digits, the next is not so that it keeps them
  v_start bigint := ('x' || right(v_first, 12))::bit(48)::bigint & ~(1::bigint << 46) | (1::bigint << 47);
begin
  return array(select (v_prefix || to_hex(v_start + n))::uuid from generate_series(1, p_count) n);
end
$$;
