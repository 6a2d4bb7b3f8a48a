-- Why leases of a placement class are pending: in words, and what it rests on. One row; the columns as in explain_lease, and words: what the class asks;
-- leases: the first 20 in line, [{"lease_id", "priority", "eligible_at", "attempt", "deadline"}]. Patience is that of the first in line.
-- Locks: none. Raises: QHC01, QHA03. Idempotent: yes.
create or replace function hwqueue.explain_class(p_class bigint, p_shard int default 0)
returns table (class_id bigint, shard_id int, queue text, words text, headline text, code text, permanent boolean, waits_until timestamptz, as_of timestamptz,
               funnel jsonb, sole_blockers jsonb, nearest jsonb, help jsonb, pending bigint, nodes_registered bigint, nodes_live bigint,
               nodes_matching bigint, nodes_free bigint, leases jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_class hwqueue.placement_class;
  v_head hwqueue.ready;
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants();
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class;
  if not found then
    perform hwqueue.refuse('QHC01', format('placement class %s does not exist', coalesce(p_class::text, 'null')),
      jsonb_build_object('class_id', p_class, 'shard_id', p_shard), 'look it up in a view such as pending_reasons; classes that nothing needs are pruned');
  end if;
  v_now := hwqueue.clock();
  select r.* into v_head from hwqueue.ready r
  where r.shard_id = p_shard and r.class_id = p_class order by r.tier, r.rank, r.position limit 1;
  return query
    select p_class, p_shard, hwqueue.queue_name(v_class.queue_id, p_shard), hwqueue.class_words(v_class),
           case when f.pending = 0 then 'nothing of it is pending; ' else '' end || f.headline, coalesce(f.code, 'ready'),
           f.permanent, f.waits_until, v_now, f.funnel, f.sole_blockers, f.nearest, f.help, f.pending,
           f.nodes_registered, f.nodes_live, f.nodes_matching, f.nodes_free, (
      select coalesce(jsonb_agg(jsonb_build_object('lease_id', r.lease_id, 'priority', l.priority, 'eligible_at', r.eligible_at,
               'attempt', r.attempt_count + 1, 'deadline', r.deadline) order by r.tier, r.rank, r.position), '[]')
      from (select * from hwqueue.ready d where d.shard_id = p_shard and d.class_id = p_class order by d.tier, d.rank, d.position limit 20) r
      join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = r.lease_id)
    from hwqueue.explain_waiting(v_class, v_head.lease_id, v_head.eligible_at, null, v_now, p_shard) f;
end
$$;
