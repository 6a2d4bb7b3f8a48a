-- Whether a class fits: as claims ask, and by amounts.
with room as (
  select row(%(r_cpu)s::bigint, %(r_memory)s::bigint, %(r_custom)s::jsonb, %(r_slots)s::int, null, null, null, null,
             %(gpu_most)s::int, %(gpu_whole)s::int, %(core_milli)s::bigint, %(core_whole)s::int, %(core_numa)s::int,
             null, %(parts)s::int)::hwqueue.headroom as room
)
select hwqueue.shortage(hwqueue.cpu_needed(%(cpu)s::bigint, %(isolation)s::text), %(memory)s::bigint, r.room, %(custom)s::jsonb, %(isolation)s::text)
         + hwqueue.gpu_shortage(%(gpus)s::int, %(milli)s::int, '{}', r.room, %(exclusivity)s::text) = 0,
       (select bool_and(hwqueue.amount_left(r.room, a.name) >= a.amount)
        from hwqueue.needed_amounts(jsonb_populate_record(null::hwqueue.placement_class, jsonb_build_object(
          'cpu_milli', %(cpu)s::bigint, 'memory_mib', %(memory)s::bigint, 'gpu_count', %(gpus)s::int,
          'gpu_milli', %(milli)s::int, 'custom', %(custom)s::jsonb, 'cpu_isolation', %(isolation)s::text,
          'gpu_exclusivity', %(exclusivity)s::text)), 'best_effort', 'fractional') a)
from room r
