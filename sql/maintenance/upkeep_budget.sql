-- How long judging, and ending claims, each go on in one call; each does one step at least. A quarter of statement_timeout, where that is less.
-- Of the real clock: it is about what the server can do, not about what is due.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.upkeep_budget() returns interval
language sql stable
as $$
  select least(interval '1 second', nullif(current_setting('statement_timeout'), '0')::interval / 4)
$$;
