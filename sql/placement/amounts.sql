-- What a class needs and what a node has left, as amounts by name: it fits when the node has at least every amount. The same question as
-- shortage, which asks it of one class and one node, for those that compare many of both at once (sql/views); a test holds the two
-- together. A class that names devices must be asked with shortage besides: which ones are free is no amount.

-- What a class needs. p_cpu_milli, p_cpu_isolation and p_gpu_exclusivity are what it comes to on the node, as for shortage.
create or replace function hwqueue.needed_amounts(p_cpu_milli bigint, p_memory_mib bigint, p_gpu_count int, p_gpu_milli int, p_custom jsonb,
                                                  p_cpu_isolation text, p_gpu_exclusivity text)
returns table (name text, amount bigint)
language sql immutable parallel safe
as $$
  select 'cpu_milli', p_cpu_milli
  union all select 'memory_mib', p_memory_mib
  union all select 'slots', 1
  union all
  select case when p_cpu_isolation is null then 'core_milli' when p_cpu_isolation = 'whole_core' then 'core_whole' else 'core_numa' end,
         case when p_cpu_isolation is null then greatest(p_cpu_milli, 1) else p_cpu_milli end
  union all
  select case when p_gpu_exclusivity = 'partition_exclusive' then 'gpu_parts' when p_gpu_milli > 0 then 'gpu_most' else 'gpu_whole' end,
         case when p_gpu_milli > 0 and p_gpu_exclusivity is distinct from 'partition_exclusive' then p_gpu_milli else p_gpu_count end
  where p_gpu_count > 0
  union all
  select 'custom:' || c.key, c.value::bigint from jsonb_each(coalesce(p_custom, '{}')) c
$$;

-- What a node has left of an amount; what it does not count is without end.
create or replace function hwqueue.amount_left(p_room hwqueue.headroom, p_name text) returns bigint
language sql immutable parallel safe
as $$
  select case p_name
    when 'cpu_milli' then coalesce(p_room.cpu_milli, 9223372036854775807)
    when 'memory_mib' then coalesce(p_room.memory_mib, 9223372036854775807)
    when 'slots' then coalesce(p_room.slots, 9223372036854775807)
    when 'core_milli' then coalesce(p_room.core_milli, 9223372036854775807)
    when 'core_whole' then coalesce(1000 * p_room.core_whole::bigint, 9223372036854775807)
    when 'core_numa' then coalesce(1000 * p_room.core_numa::bigint, 9223372036854775807)
    when 'gpu_parts' then p_room.gpu_parts_free
    when 'gpu_most' then p_room.gpu_most
    when 'gpu_whole' then p_room.gpu_whole
    else coalesce((p_room.custom ->> substr(p_name, 8))::bigint, 0) end
$$;
