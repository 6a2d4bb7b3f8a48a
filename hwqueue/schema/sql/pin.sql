-- First in every transaction: what is named below is found in pg_catalog alone, whatever functions and operators others
-- have made in schemas of this database's or this user's search_path.
set local search_path = pg_catalog, pg_temp;
