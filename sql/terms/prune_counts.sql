-- What claims leave behind in term_count. A count of max_skew says when it was last lowered (dropped_xid), and who remembers a floor from
-- before that must find it there (level_reason). So one that has come to nothing goes when every floor of its term knows of that, and nobody
-- is on the way with one that may not: whoever looks has the table of floors locked before, and keeps it to the end.

-- Whether whatever is remembered of a term knows that a count was lowered.
create or replace function hwqueue.is_drop_known(p_term_id bigint, p_dropped xid8, p_shard int) returns boolean
language sql stable
as $$
  select coalesce(bool_and(not hwqueue.is_unseen(p_dropped, f.unseen, f.next_xid)), true)
  from hwqueue.spread_floor f where f.shard_id = p_shard and f.term_id = p_term_id
$$;

-- Whether another session has looked, or is about to, in a transaction that is open. Who comes later sees what was committed before this.
create or replace function hwqueue.is_anybody_looking() returns boolean
language sql volatile
as $$
  select exists (
    select from pg_locks l
    where l.locktype = 'relation' and l.relation = 'hwqueue.spread_floor'::regclass and l.mode = 'RowExclusiveLock' and l.granted
      and l.pid is distinct from pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database()))
$$;

-- Removes counts that have come to nothing and those of terms that are gone; what claims have added beside a row that was held
-- is added up in one. A row that a claim has written between the snapshot and the lock is missed: the next call takes it.
-- Locks: term_count, skip locked.
create or replace function hwqueue.prune_counts(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_before pg_snapshot := pg_current_snapshot();  -- what was lowered by then is seen by all who look from here on
  v_is_known boolean := not hwqueue.is_anybody_looking();
begin
  delete from hwqueue.term_count k where k.ctid = any (array(
    select o.ctid from hwqueue.term_count o
    where o.shard_id = p_shard and (
      o.leases = 0 and o.holders = 0 and (o.dropped_xid is null or v_is_known and o.dropped_xid <> pg_current_xact_id()
        and pg_visible_in_snapshot(o.dropped_xid, v_before) and hwqueue.is_drop_known(o.term_id, o.dropped_xid, p_shard))
      or not exists (select 1 from hwqueue.term t where t.shard_id = p_shard and t.term_id = o.term_id))
    limit p_limit for update skip locked));
  with parted as (
    select o.term_id, o.domain from hwqueue.term_count o
    where o.shard_id = p_shard group by o.term_id, o.domain having count(*) > 1 limit p_limit
  ), held as (
    select o.ctid as place from parted p
    join hwqueue.term_count o on o.shard_id = p_shard and o.term_id = p.term_id and o.domain = p.domain for update of o skip locked
  ), gone as (
    delete from hwqueue.term_count k where k.ctid = any (array(select h.place from held h)) returning k.*
  )
  insert into hwqueue.term_count (shard_id, term_id, domain, leases, holders, updates, dropped_xid)
  select p_shard, g.term_id, g.domain, sum(g.leases), sum(g.holders), 0,
         case when bool_or(g.dropped_xid is not null) then pg_current_xact_id() end  -- the latest of them need not be the last to be seen
  from gone g group by g.term_id, g.domain;
end
$$;

-- Whether so much has been written since a look that the next one is due: whatever was written is passed at every claim, even if it is
-- one place over and over.
create or replace function hwqueue.is_old_floor(p_next_xid xid8) returns boolean
language sql stable
as $$ select pg_snapshot_xmax(pg_current_snapshot())::text::bigint - p_next_xid::text::bigint > 10000 $$;
