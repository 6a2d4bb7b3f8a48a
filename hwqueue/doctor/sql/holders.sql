-- Who keeps Postgres from removing dead tuples, and new affinity terms from being published: transactions open for
-- longer than %(seconds)s, prepared transactions, replication slots, standbys.
-- writes: it has a transaction id, so that new terms and followers of events wait for it, too.
select 'session' as kind,
  pg_catalog.format('session %%s of %%s%%s, %%s', a.pid, a.usename,
    coalesce(' (' || nullif(a.application_name, '') || ')', ''), a.state) as who,
  extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::float8 as seconds,
  a.backend_xid is not null as writes,
  a.pid::text as name
from pg_catalog.pg_stat_activity a
where a.xact_start < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %(seconds)s)
  and (a.backend_xmin is not null or a.backend_xid is not null)
  and a.pid <> pg_catalog.pg_backend_pid() and a.backend_type = 'client backend'
union all
select 'prepared', pg_catalog.format('prepared transaction %%s of %%s', p.gid, p.owner),
  extract(epoch from pg_catalog.clock_timestamp() - p.prepared)::float8, true, p.gid
from pg_catalog.pg_prepared_xacts p
where p.prepared < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => %(seconds)s)
union all
select 'slot', pg_catalog.format('replication slot %%s, nobody reads it', s.slot_name), null, false,
  s.slot_name::text
from pg_catalog.pg_replication_slots s
where not s.active
union all
select 'standby', pg_catalog.format('standby %%s, whose queries need rows of %%s transactions ago', r.application_name,
    pg_catalog.age(r.backend_xmin)), null, false, r.application_name
from pg_catalog.pg_stat_replication r
where pg_catalog.age(r.backend_xmin) > 1000000
order by 1, 3 desc
limit 20
