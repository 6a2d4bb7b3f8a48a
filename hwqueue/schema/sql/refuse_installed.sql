-- The script of `hwqueue db sql` makes tables from nothing; over existing ones it would fail halfway. Outside a transaction
-- `set local` has no effect, and everything would belong to whoever runs it.
do $$
begin
  if pg_catalog.current_setting('lock_timeout') <> '5s' then
    raise exception 'this script must run in one transaction'
      using errcode = 'no_active_sql_transaction', hint = 'psql -1 -v ON_ERROR_STOP=1 -f FILE';
  end if;
  if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('hwqueue upgrade', 0::bigint)) then
    raise exception 'another session holds the lock of upgrades'
      using errcode = 'lock_not_available', hint = 'pg_locks tells which: locktype = ''advisory''';
  end if;
  if pg_catalog.to_regclass('hwqueue.schema_info') is not null then
    raise exception 'hwqueue is installed in this database already'
      using errcode = 'duplicate_object',
            hint = 'this script is for a fresh install; to upgrade, run: hwqueue db upgrade';
  end if;
end
$$;
