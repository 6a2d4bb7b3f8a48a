-- The part of a node's free GPUs that a class would take, 0..1.
create or replace function hwqueue.gpu_share(p_gpu_count int, p_gpu_milli int, p_room hwqueue.headroom) returns double precision
language sql immutable parallel safe
as $$
  select p_gpu_count * case when p_gpu_milli > 0 then p_gpu_milli else 1000 end
         / greatest(p_room.gpu_total, 1)::double precision
$$;

-- How well a class uses what a node has left, 0..100: the order in which a node with GPUs should fill up.
-- Work that few nodes could take (reach) and work with many GPUs first, then work that does not use up the cpu and memory
-- that the node's other GPUs need (balance), then the least residue on the device. Work without GPUs scores 0: it gets
-- a GPU node only when nothing with GPUs fits. The weights were searched on the OpenB trace (docs/explanation/fit.md).
-- One expression without subqueries, so that the planner inlines it. width_bucket finds the fullest device that a share
-- still fits on in the sorted list of what the devices have left.
create or replace function hwqueue.fit_score(p_cpu_milli bigint, p_memory_mib bigint, p_gpu_count int, p_gpu_milli int,
                                             p_reach double precision, p_room hwqueue.headroom)
returns double precision
language sql immutable parallel safe
as $$
  select case when p_gpu_count = 0 or p_room.gpu_total = 0 then 0 else
    14 + 3.5::double precision * least(p_gpu_count, 8) + 56 * (1 - coalesce(p_reach, 1))
    + 14 * greatest(-1, least(0,
        hwqueue.gpu_share(p_gpu_count, p_gpu_milli, p_room) - p_cpu_milli / greatest(p_room.cpu_milli, 1)::double precision,
        hwqueue.gpu_share(p_gpu_count, p_gpu_milli, p_room) - p_memory_mib / greatest(p_room.memory_mib, 1)::double precision))
    + case when p_gpu_milli = 0 then 0.35 else 0.35 * (1 - (
        p_room.gpu_sorted[width_bucket(p_gpu_milli - 1, p_room.gpu_sorted) + 1] - p_gpu_milli) / 1000.0) end
  end
$$;
