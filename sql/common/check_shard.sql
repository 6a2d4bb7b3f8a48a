-- Refuses a shard that this database does not hold.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_shard(p_shard int) returns void
language plpgsql stable
as $$
begin
  perform 1 from hwqueue.shard s where s.shard_id = p_shard;
  if not found then
    perform hwqueue.refuse('QHA01', format('shard %s does not exist', coalesce(p_shard::text, 'null')),
      jsonb_build_object('field', 'p_shard', 'shard_id', p_shard), 'use shard 0 unless an operator made others');
  end if;
end
$$;
