-- What terms wait for to come into force, in words: the oldest transaction that writes and may not know of them, as far as the server tells; null when
-- nothing but the next claim or reap is missing.
create or replace function hwqueue.term_wait(p_now timestamptz) returns text
language sql stable
as $$
  select format('it waits for the transaction of session %s%s%s', a.pid, coalesce(' (' || nullif(a.application_name, '') || ')', ''),
                -- null without the rights of pg_read_all_stats
                ', open for ' || hwqueue.span_words(p_now - a.xact_start))
  from pg_catalog.pg_stat_activity a
  where a.pid <> pg_backend_pid() and a.backend_xid is not null
    and exists (select 1 from pg_snapshot_xip(pg_current_snapshot()) x where x::text::bigint % 4294967296 = a.backend_xid::text::bigint)
  order by a.xact_start limit 1
$$;
