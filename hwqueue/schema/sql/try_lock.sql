-- One upgrade of a database at a time: two `create or replace` of one function at once fail with "tuple concurrently updated".
select pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('hwqueue upgrade', 0::bigint))
