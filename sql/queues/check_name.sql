-- Refuses names that would not survive a command line, a metric label or a URL. Raises: QHA01.
create or replace function hwqueue.check_name(p_name text, p_field text, p_max_length int default 100) returns void
language plpgsql immutable
as $$
begin
  if p_name is null or length(p_name) > p_max_length or p_name !~ '^[A-Za-z0-9_][A-Za-z0-9_.:@/-]*$' then
    perform hwqueue.refuse('QHA01', format('%s is no valid name: %s', p_field, coalesce(to_json(left(p_name, 60))::text, 'null')),
      jsonb_build_object('field', p_field, 'length', length(p_name)),
      format('use 1 to %s characters of A-Z, a-z, 0-9, _ . : @ / - and start with a letter, digit or _', p_max_length));
  end if;
end
$$;
