-- Whether a settlement needs no closer look: a completion without result, well formed.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.is_plain_completion(p_item jsonb) returns boolean
language sql immutable parallel safe
as $$
  select jsonb_typeof(p_item) = 'object'
     and p_item - '{lease_id,claim_token,outcome}'::text[] = '{}'
     and p_item ->> 'outcome' = 'complete'
     and jsonb_typeof(p_item -> 'claim_token') = 'number' and p_item ->> 'claim_token' ~ '^[0-9]{1,18}$'
     and p_item ->> 'lease_id' ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
$$;

-- Whether a whole batch is of that kind.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.is_plain_batch(p_settle jsonb) returns boolean
language plpgsql immutable
as $$
begin
  if jsonb_typeof(p_settle) is distinct from 'array' then
    return false;
  end if;
  for i in 0 .. jsonb_array_length(p_settle) - 1 loop
    if hwqueue.is_plain_completion(p_settle -> i) is distinct from true then
      return false;
    end if;
  end loop;
  return true;
end
$$;
