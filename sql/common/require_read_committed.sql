-- Functions that grant, settle, reap or edit nodes decide on rows read after their locks; a snapshot taken before
-- the lock would show them the past, so any other isolation level is refused.
-- Locks: none. Raises: QHA02. Idempotent: yes.
create or replace function hwqueue.require_read_committed() returns void
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform hwqueue.refuse('QHA02',
      format('this function needs isolation level read committed, not %s', current_setting('transaction_isolation')),
      jsonb_build_object('isolation', current_setting('transaction_isolation')),
      'call it in a transaction of its own, or set transaction isolation level read committed first');
  end if;
end
$$;
