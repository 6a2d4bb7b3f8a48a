-- First in every transaction: what is named below is found in pg_catalog alone, whatever functions and operators others
-- have made in schemas of this database's or this user's search_path.
set local search_path = pg_catalog, pg_temp;
-- And values are written alike, whatever the database or the user has set: defaults of columns, say, which are compared.
set local datestyle = 'ISO, YMD';
set local intervalstyle = 'postgres';
set local extra_float_digits = 1;
set local bytea_output = 'hex';
set local quote_all_identifiers = off;
