-- Who holds the lock of upgrades: any login of the database may.
select a.pid, a.usename::text, a.application_name
from pg_catalog.pg_locks l
join pg_catalog.pg_stat_activity a on a.pid = l.pid
join pg_catalog.pg_database d on d.oid = l.database and d.datname = pg_catalog.current_database()
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
  and (l.classid::bigint << 32 | l.objid::bigint) = pg_catalog.hashtextextended('hwqueue upgrade', 0::bigint)
