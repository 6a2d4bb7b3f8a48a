-- Closes everything to PUBLIC, because Postgres lets PUBLIC execute every function that is created.
-- Every upgrade applies this file after the function files, with and without roles: a function that runs with
-- its owner's rights must not stay open because the roles were left out. It may run again and again.
revoke all on schema hwqueue from public;
revoke all on all tables in schema hwqueue from public;
revoke all on all functions in schema hwqueue from public;
