-- The queue's tables: what they hold, and what autovacuum has not removed yet.
select s.relname::text as name, s.n_live_tup as live, s.n_dead_tup as dead,
  pg_catalog.pg_total_relation_size(s.relid) as bytes
from pg_catalog.pg_stat_user_tables s
where s.schemaname = 'hwqueue'
order by bytes desc
