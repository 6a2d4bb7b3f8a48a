-- Close everything to PUBLIC: Postgres opens every function to everybody when it is created.
-- Applied at every upgrade after the function files, with and without roles: a function that runs with
-- its owner's rights must not be left open because the roles were left out. Re-runnable.
revoke all on schema hwqueue from public;
revoke all on all tables in schema hwqueue from public;
revoke all on all functions in schema hwqueue from public;
