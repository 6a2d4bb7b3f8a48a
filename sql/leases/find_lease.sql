-- The record of a lease. One of another tenant than the caller's does not exist for it, word for word.
-- Raises: QHL04.
create or replace function hwqueue.find_lease(p_lease uuid, p_shard int) returns hwqueue.lease
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
begin
  select l.* into v_lease from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease;
  if not found or hwqueue.my_tenants() is not null and not hwqueue.is_own_lease(p_lease, hwqueue.my_tenants(), p_shard) then
    perform hwqueue.refuse('QHL04', format('lease %s does not exist', coalesce(p_lease::text, 'null')),
      jsonb_build_object('lease_id', p_lease), 'check the id; finished leases go once their queue''s retention is over');
  end if;
  return v_lease;
end
$$;
