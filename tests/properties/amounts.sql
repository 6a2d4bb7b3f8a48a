-- Whether a class fits: as claims ask, and by amounts.
with room as (
  select row(%(r_cpu)s::bigint, %(r_memory)s::bigint, %(r_custom)s::jsonb, %(r_slots)s::int, null, null, null, null,
             %(gpu_most)s::int, %(gpu_whole)s::int, %(core_milli)s::bigint, %(core_whole)s::int, %(core_numa)s::int,
             null, %(parts)s::int)::hwqueue.headroom as room
)
select hwqueue.shortage(%(cpu)s::bigint, %(memory)s::bigint, r.room, %(custom)s::jsonb, %(isolation)s::text)
         + hwqueue.gpu_shortage(%(gpus)s::int, %(milli)s::int, '{}', r.room, %(exclusivity)s::text) = 0,
       (select bool_and(hwqueue.amount_left(r.room, a.name) >= a.amount)
        from hwqueue.needed_amounts(%(cpu)s::bigint, %(memory)s::bigint, %(gpus)s::int, %(milli)s::int, %(custom)s::jsonb,
                                    %(isolation)s::text, %(exclusivity)s::text) a)
from room r
