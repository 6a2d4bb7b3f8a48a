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
create or replace function hwqueue.seen_now(out unseen xid8[], out next_xid xid8)
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
create or replace function hwqueue.valid_mark(p_mark xid8) returns xid8
language sql stable
as $$ select case when p_mark > pg_snapshot_xmax(pg_current_snapshot()) then '0'::xid8 else p_mark end $$;
