-- The wait for tables that running transactions hold is limited: behind a waiting upgrade every claim would queue up.
set local lock_timeout = '5s';
