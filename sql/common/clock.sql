-- The time, read once a call and after its locks: now() is stale in a long transaction.
-- The tests install another body (testing/clock.sql); this one reads no setting on purpose.
create or replace function hwqueue.clock() returns timestamptz
language sql volatile parallel safe
as $$ select clock_timestamp() $$;
