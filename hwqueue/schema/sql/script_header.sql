-- The whole installation of hwqueue, for a database that has none yet. An installed one is brought up to date by
-- `hwqueue db upgrade` only: this script stops there. Run it in one transaction:
--   psql -1 -v ON_ERROR_STOP=1 -f FILE
-- What is named below is found in pg_catalog alone, whatever others have made in schemas of the search_path.
set search_path = pg_catalog, pg_temp;
