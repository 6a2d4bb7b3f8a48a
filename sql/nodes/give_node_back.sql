-- Leaves a block that has locked a node, and with it the lock: to look for a profile may be to wait for whoever registers such a node, and nobody
-- may wait for them while holding a node.
-- Locks: none. Raises: HWX02, never seen outside. Idempotent: yes.
create or replace function hwqueue.give_node_back() returns void
language plpgsql volatile
as $$
begin
  raise exception 'edited meanwhile' using errcode = 'HWX02', hint = 'caught by the caller';
end
$$;
