-- Undoes the caller's subtransaction, and releases the locks that it took; the caller catches it.
-- Raises: HWX01, never seen outside.
create or replace function hwqueue.give_up() returns void
language plpgsql volatile
as $$
begin
  raise exception 'not this one' using errcode = 'HWX01', hint = 'caught by the caller';
end
$$;
