-- The clock, ids and transaction ids of a call.

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

-- The time, read once a call and after its locks: now() is stale in a long transaction.
-- The tests install another body (testing/clock.sql); this one reads no setting on purpose.
create or replace function hwqueue.clock() returns timestamptz
language sql volatile parallel safe
as $$ select clock_timestamp() $$;

-- The oldest running transaction that may have written to a relation, at most the next one that will begin: it has a lock there, more than
-- one for reading, and keeps it to its end. One that is not known (it is just beginning or ending) counts as one; those that have an id
-- and no such lock do not: what they wrote, in this database or another one, is of other relations.
-- It reads the locks of the whole server, those of transactions first: some ms for each thousand of them.
create or replace function hwqueue.oldest_snapshot_holder(p_relation regclass) returns xid8
language sql volatile
as $$
  select coalesce((
    select r.xid from pg_snapshot_xip(pg_current_snapshot()) r(xid)
    where r.xid::xid not in (  -- a list, not "exists": made once, by hash
      select l.transactionid from pg_locks l
      where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.virtualtransaction not in (
        select c.virtualtransaction from pg_locks c
        where c.locktype = 'relation' and c.relation = p_relation and c.mode <> 'AccessShareLock' and c.granted
          and c.database = (select d.oid from pg_database d where d.datname = current_database())))
    order by r.xid limit 1), pg_snapshot_xmax(pg_current_snapshot()))
$$;

-- What a reader has seen: two values, unseen and next_xid, kept beside whatever it has derived from the rows
-- that it read. Rows carry the id of the transaction that wrote them. A later reader asks for the rows that
-- the earlier one cannot have seen, and for no others:
--
--   xid >= next_xid or xid = any (unseen)
--
-- Writers tell nobody and wait for nobody; the question costs one index probe, and one more for each
-- transaction that was running at the time of reading. docs/explanation/storage.md, "What a reader has seen",
-- proves it and lists what to heed.

-- What the calling statement sees. Read it in the same statement as the rows, or in an earlier one.
-- The caller's own transaction counts as unseen: it may still write.
create or replace function hwqueue.visible_now(out unseen xid8[], out next_xid xid8)
language sql stable
as $$
  select array(select pg_snapshot_xip(pg_current_snapshot())
               union select x from pg_current_xact_id_if_assigned() x where x is not null), pg_snapshot_xmax(pg_current_snapshot())
$$;

-- Whether a reader cannot have seen what a transaction wrote. Where an index is to answer for many rows,
-- write its two halves out.
create or replace function hwqueue.is_unseen(p_xid xid8, p_unseen xid8[], p_next_xid xid8) returns boolean
language sql immutable parallel safe
as $$ select p_xid >= p_next_xid or p_xid = any (p_unseen) $$;

-- Whether a transaction has ended, as the calling statement sees it: what it wrote is visible now or never
-- will be. A snapshot does not name the caller's own transaction, hence the second half.
create or replace function hwqueue.has_ended(p_xid xid8) returns boolean
language sql stable
as $$ select pg_visible_in_snapshot(p_xid, pg_current_snapshot()) and p_xid is distinct from pg_current_xact_id_if_assigned() $$;

-- A next_xid, or '0' (nothing has been seen) when no transaction of this server can have left it: it comes
-- from another one (a restored dump).
create or replace function hwqueue.valid_next_xid(p_mark xid8) returns xid8
language sql stable
as $$ select case when p_mark > pg_snapshot_xmax(pg_current_snapshot()) then '0'::xid8 else p_mark end $$;
