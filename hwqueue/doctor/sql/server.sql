-- What the server, this database and this login are, for checks. Any login may read it.
-- Sessions are counted by database, because a login without pg_read_all_stats does not see what others are.
select
  current_setting('server_version') as version,
  current_setting('server_version_num')::int as version_number,
  pg_catalog.current_database()::text as database,
  current_setting('server_encoding') as encoding,
  current_setting('default_transaction_isolation') as isolation,
  current_user::text as login,
  pg_catalog.clock_timestamp() as clock,
  pg_catalog.pg_is_in_recovery() as in_recovery,
  current_setting('transaction_read_only')::boolean as read_only,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
    - coalesce(current_setting('reserved_connections', true)::int, 0) as connections,
  (select coalesce(sum(d.numbackends), 0)::int from pg_catalog.pg_stat_database d) as connected,
  current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean as autovacuum,
  current_setting('fsync')::boolean and current_setting('full_page_writes')::boolean as outlives_crashes,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('synchronous_standby_names') <> '' as has_standby,
  (select s.setting::bigint / 1000.0 from pg_catalog.pg_settings s
   where s.name = 'idle_in_transaction_session_timeout')::float8 as idle_timeout,
  (select pg_catalog.age(d.datfrozenxid) from pg_catalog.pg_database d
   where d.datname = pg_catalog.current_database()) as oldest_xid_age,
  u.rolsuper as is_superuser,
  coalesce((select pg_catalog.pg_has_role(u.oid, n.nspowner, 'member') from pg_catalog.pg_namespace n
            where n.nspname = 'hwqueue'), false) as owns_schema,
  array(select r.rolname::text from pg_catalog.pg_roles r
        where r.rolname = any (%(roles)s::name[]) order by 1) as roles_there,
  array(select r.rolname::text from pg_catalog.pg_roles r
        where r.rolname = any (%(roles)s::name[]) and pg_catalog.pg_has_role(u.oid, r.oid, 'usage')
        order by 1) as roles_held,
  pg_catalog.pg_has_role(u.oid, 'pg_read_all_stats', 'usage') as sees_sessions
from pg_catalog.pg_roles u
where u.rolname = current_user
