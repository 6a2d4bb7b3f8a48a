-- The clock, spans, new ids, and what a transaction has seen.
-- Everything reads the time through clock, which the tests replace (testing/clock.sql). Lease ids are
-- version 7 uuids (RFC 9562): milliseconds of the clock, then random bits.
-- The second half tells a reader what it cannot have seen. Rows carry the id of the transaction that
-- wrote them. A reader that caches something derived from rows stores two values with it, unseen and
-- next_xid (visible_now). A later reader fetches exactly the rows that the earlier one missed:
--
--   xid >= next_xid or xid = any (unseen)
--
-- Writers neither notify readers nor wait for them. The check costs one index probe, and one more for
-- each transaction that was running at the earlier read. docs/explanation/storage.md, "What a reader has
-- seen", proves it and lists the pitfalls.

-- Returns a new version 7 uuid. Postgres has a function for it from 18 on.
create or replace function hwqueue.new_id() returns uuid
language sql volatile parallel safe
as $$
  -- the random uuid already has its variant bits; the first 15 characters become time and version
  select overlay(gen_random_uuid()::text
    placing overlay(lpad(to_hex(floor(extract(epoch from hwqueue.clock()) * 1000)::bigint), 12, '0')
      placing '-' from 9 for 0) || '-7'
    from 1 for 15)::uuid
$$;

-- Returns ascending ids for a batch. They count up from a random number of 46 bits (RFC 9562, 6.2,
-- method 2).
-- Random bits are expensive, and an index inserts neighbouring keys faster than scattered ones.
create or replace function hwqueue.new_ids(p_count int) returns uuid[]
language plpgsql volatile parallel safe
as $$
declare
  v_first text := hwqueue.new_id();
  v_prefix text := left(v_first, 24);
  -- the highest bit is set, so that it has 12 digits; the next is clear, so that counting up keeps 12
  v_start bigint := ('x' || right(v_first, 12))::bit(48)::bigint & ~(1::bigint << 46) | (1::bigint << 47);
begin
  return array(select (v_prefix || to_hex(v_start + n))::uuid from generate_series(1, p_count) n);
end
$$;

-- Returns the current time. A call reads it once, after its locks: now() is stale in a long transaction.
-- The tests install another body (testing/clock.sql). This one deliberately reads no setting.
create or replace function hwqueue.clock() returns timestamptz
language sql volatile parallel safe
as $$ select clock_timestamp() $$;

-- Returns a span in seconds alone. A day of an interval has 23 or 25 hours where the clocks of the session's
-- time zone change, so what is stored or added to a time goes through this. A month has 30 days.
create or replace function hwqueue.in_seconds(p_span interval) returns interval
language sql immutable parallel safe
as $$ select make_interval(secs => extract(epoch from p_span)::double precision) $$;

-- How long judging, and ending claims, may each run in one call: a second, or a quarter of
-- statement_timeout where that is less. Each does one step at least. Measured by the real clock, because
-- it limits the server's work and does not decide what is due.
create or replace function hwqueue.upkeep_budget() returns interval
language sql stable
as $$ select least(interval '1 second', nullif(current_setting('statement_timeout'), '0')::interval / 4) $$;

-- Returns the oldest running transaction that may have written to a relation, at most the next id to be
-- assigned.
-- A transaction that writes to a relation holds a lock above AccessShareLock on it until it ends. A
-- transaction that has an id but no such lock wrote only to other relations or databases, and is left
-- out. One whose locks are not visible, because it is just beginning or ending, counts as a writer.
-- It reads the locks of the whole server, first those on transaction ids: some milliseconds per 1,000 of
-- them.
create or replace function hwqueue.oldest_snapshot_holder(p_relation regclass) returns xid8
language plpgsql volatile
as $$ begin return
  coalesce((
    select r.xid from pg_snapshot_xip(pg_current_snapshot()) r(xid)
    where r.xid::xid not in (  -- unlike not exists, this list is hashed once
      select l.transactionid from pg_locks l
      where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
        and l.virtualtransaction not in (
        select c.virtualtransaction from pg_locks c
        where c.locktype = 'relation' and c.relation = p_relation and c.mode <> 'AccessShareLock'
          and c.granted
          and c.database = (select d.oid from pg_database d where d.datname = current_database())))
    order by r.xid limit 1), pg_snapshot_xmax(pg_current_snapshot()));
end $$;

-- Returns what the calling statement sees: the unseen transactions and next_xid.
-- Call it in the same statement as the rows are read, or in an earlier one. The caller's own transaction
-- counts as unseen, because it may still write: it is among them, unless next_xid says so.
create or replace function hwqueue.visible_now(out unseen xid8[], out next_xid xid8)
language plpgsql stable
as $$ begin
  unseen := array(select pg_snapshot_xip(pg_current_snapshot())
                  union select x from pg_current_xact_id_if_assigned() x
                  where x < pg_snapshot_xmax(pg_current_snapshot()));
  next_xid := pg_snapshot_xmax(pg_current_snapshot());
end $$;

-- Whether a reader cannot have seen what a transaction wrote. For an index scan over many rows write out
-- both halves of the condition.
create or replace function hwqueue.is_unseen(p_xid xid8, p_unseen xid8[], p_next_xid xid8) returns boolean
language sql immutable parallel safe
as $$ select p_xid >= p_next_xid or p_xid = any (p_unseen) $$;

-- Whether a transaction has ended from the calling statement's view: what it wrote is visible now or
-- never will be.
-- A snapshot does not list the caller's own transaction, hence the second condition.
create or replace function hwqueue.has_ended(p_xid xid8) returns boolean
language sql stable
as $$ select pg_visible_in_snapshot(p_xid, pg_current_snapshot())
  and p_xid is distinct from pg_current_xact_id_if_assigned() $$;

-- Returns a stored next_xid, or '0' (nothing seen) if it lies beyond this server's transaction ids, as
-- in a restored dump. So with any other stored id, but those of the caller's own transaction.
create or replace function hwqueue.valid_next_xid(p_mark xid8) returns xid8
language sql stable
as $$ select case when p_mark > pg_snapshot_xmax(pg_current_snapshot()) then '0'::xid8 else p_mark end $$;

-- Returns the payload of notifications about a queue, a lease or (p_what begins with a colon, as no queue
-- does) a node. Any login of the database hears notifications and may send them, so it holds no names: it is
-- a digest, keyed by the installation's secret.
create or replace function hwqueue.wake_payload(p_key uuid, p_what text) returns text
language sql stable
as $$ select left(encode(sha256(convert_to(p_key || ':' || p_what, 'UTF8')), 'hex'), 32) $$;
