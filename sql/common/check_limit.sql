-- Refuses a number of rows that is none; null stands for all.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_limit(p_limit int) returns void
language plpgsql immutable
as $$
begin
  if p_limit < 1 then
    perform hwqueue.refuse('QHA01', format('p_limit must be at least 1, got %s', p_limit), jsonb_build_object('field', 'p_limit'),
      'give a number of rows, or null for all');
  end if;
end
$$;

-- Refuses an argument that is null or out of its range.
-- Raises: QHA01.
create or replace function hwqueue.check_range(p_value bigint, p_field text, p_min bigint, p_max bigint, p_hint text) returns void
language plpgsql immutable
as $$
begin
  if (p_value between p_min and p_max) is not true then
    perform hwqueue.refuse('QHA01', format('%s must be from %s to %s', p_field, p_min, p_max),
      jsonb_build_object('field', p_field), p_hint);
  end if;
end
$$;

-- The number itself, unless check_limit refuses it.
-- Raises: QHA01.
create or replace function hwqueue.checked_limit(p_limit int) returns int
language plpgsql immutable
as $$
begin
  perform hwqueue.check_limit(p_limit);
  return p_limit;
end
$$;
