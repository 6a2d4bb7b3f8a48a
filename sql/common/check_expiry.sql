-- The time itself, or null where it is infinite or not given: what does not expire. Clients read no year beyond 9999, and one such row would
-- keep them from reading any.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_expiry(p_expires_at timestamptz, p_now timestamptz) returns timestamptz
language plpgsql immutable
as $$
begin
  if p_expires_at <= p_now then
    perform hwqueue.refuse('QHA01', format('p_expires_at %s has passed', p_expires_at), jsonb_build_object('field', 'p_expires_at'),
      'give a time to come, or leave it out: what has no such time does not expire');
  end if;
  if p_expires_at > '9999-12-31 23:59:59.999999+00' and p_expires_at <> 'infinity' then
    perform hwqueue.refuse('QHA01', format('p_expires_at %s is beyond the year 9999', p_expires_at), jsonb_build_object('field', 'p_expires_at'),
      'leave it out: what has no such time does not expire');
  end if;
  return nullif(p_expires_at, 'infinity');
end
$$;
