-- The generation that leads every claim token. It rises when the server's timeline has changed since the last look:
-- after a failover that lost commits, tokens would repeat otherwise (docs/explanation/failover.md).
-- Locks: the shard's row, only when it rises. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.current_generation(p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_timeline int := ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int;
  v_shard hwqueue.shard;
begin
  select s.* into v_shard from hwqueue.shard s where s.shard_id = p_shard;
  if v_shard.timeline = v_timeline then
    return v_shard.generation;
  end if;
  return hwqueue.raise_generation(v_timeline, p_shard);
end
$$;

-- Writes down which server this is, and raises the generation if it is another one than last time.
-- Locks: the shard's row. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.raise_generation(p_timeline int, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_system bigint := (select c.system_identifier from pg_control_system() c);
  v_shard hwqueue.shard;
begin
  select s.* into v_shard from hwqueue.shard s where s.shard_id = p_shard;
  if v_shard.timeline = p_timeline and v_shard.system_identifier = v_system then
    return v_shard.generation;
  end if;
  select s.* into v_shard from hwqueue.shard s where s.shard_id = p_shard for update;
  if v_shard.timeline is distinct from p_timeline or v_shard.system_identifier is distinct from v_system then
    update hwqueue.shard s
    set timeline = p_timeline, system_identifier = v_system,
        generation = case when s.timeline is null then s.generation else greatest(s.generation + 1, p_timeline) end
    where s.shard_id = p_shard
    returning s.* into v_shard;
  end if;
  return v_shard.generation;
end
$$;
