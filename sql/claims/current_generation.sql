-- The generation on a server that is not the one written down; on the first server it stays as it is.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.next_generation(p_shard hwqueue.shard, p_timeline int) returns bigint
language sql immutable parallel safe
as $$
  select case when p_shard.timeline is null then p_shard.generation else greatest(p_shard.generation + 1, p_timeline) end
$$;

-- The generation that leads every claim token. It rises when the server's timeline has changed since the last look:
-- after a failover that lost commits, tokens would repeat otherwise (docs/explanation/failover.md).
-- Locks: the shard's row, skip locked, only when it rises. Raises: nothing. Idempotent: yes.
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

-- Writes down which server this is, and raises the generation if it is another one than last time. The new value follows from
-- the row and the timeline alone: whoever cannot lock the row uses it without writing it.
-- Locks: the shard's row, skip locked. Raises: nothing. Idempotent: yes.
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
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if found then
    -- sees what the one before wrote: then nothing is left to do
    update hwqueue.shard s
    set timeline = p_timeline, system_identifier = v_system, generation = hwqueue.next_generation(s, p_timeline)
    where s.shard_id = p_shard and (s.timeline is distinct from p_timeline or s.system_identifier is distinct from v_system);
    select s.* into v_shard from hwqueue.shard s where s.shard_id = p_shard;
    return v_shard.generation;
  end if;
  return hwqueue.next_generation(v_shard, p_timeline);
end
$$;
