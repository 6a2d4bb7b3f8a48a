-- The classes of a queue that must be checked, as far as a profile's nodes without GPUs may run them: up to 201.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.checked_at_front(p_profile_id bigint, p_queue_id int, p_shard int) returns bigint[]
language plpgsql volatile
as $$
begin
  return array(
    select unnest(s.checked) from hwqueue.profile_queue s
    where s.shard_id = p_shard and s.profile_id = p_profile_id and s.queue_id = p_queue_id);
end
$$;
