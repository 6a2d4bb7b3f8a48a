-- The oldest running transaction that may have written to a relation, at most the next one that will begin: it has a lock there, more than
-- one for reading, and keeps it to its end. One that is not known (it is just beginning or ending) counts as one; those that have an id
-- and no such lock do not: what they wrote, in this database or another one, is of other relations.
-- It reads the locks of the whole server, those of transactions first: some ms for each thousand of them.
create or replace function hwqueue.oldest_holder(p_relation regclass) returns xid8
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
