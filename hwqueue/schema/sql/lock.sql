-- One upgrade of a database at a time: two `create or replace` of one function at once fail with
-- "tuple concurrently updated". The wait for the other upgrade is not limited, the wait for
-- tables that running transactions hold is: behind a waiting upgrade every claim would queue up.
select pg_advisory_xact_lock(hashtextextended('hwqueue upgrade', 0));
set local lock_timeout = '5s';
create schema if not exists hwqueue;
