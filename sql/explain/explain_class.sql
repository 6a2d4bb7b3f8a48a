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
  v_found record;
begin
  perform hwqueue.require_all_tenants();
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class;
  if not found then
    perform hwqueue.refuse('QHC01', format('placement class %s does not exist', coalesce(p_class::text, 'null')),
      jsonb_build_object('class_id', p_class, 'shard_id', p_shard), 'look it up in a view such as pending_reasons; classes that nothing needs are pruned');
  end if;
  as_of := hwqueue.clock();
  select r.* into v_head from hwqueue.ready r
  where r.shard_id = p_shard and r.class_id = p_class order by r.tier, r.rank, r.position limit 1;
  select * into v_found from hwqueue.explain_waiting(v_class, v_head.lease_id, v_head.eligible_at, null, as_of, p_shard);
  class_id := p_class;
  shard_id := p_shard;
  select q.name into queue from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = v_class.queue_id;
  words := hwqueue.class_words(v_class);
  headline := case when v_found.pending = 0 then 'nothing of it is pending; ' else '' end || v_found.headline;
  code := coalesce(v_found.code, 'ready');
  permanent := v_found.permanent;
  waits_until := v_found.waits_until;
  funnel := v_found.funnel;
  sole_blockers := v_found.sole_blockers;
  nearest := v_found.nearest;
  help := v_found.help;
  pending := v_found.pending;
  nodes_registered := v_found.nodes_registered;
  nodes_live := v_found.nodes_live;
  nodes_matching := v_found.nodes_matching;
  nodes_free := v_found.nodes_free;
  leases := (
    select coalesce(jsonb_agg(jsonb_build_object('lease_id', r.lease_id, 'priority', l.priority, 'eligible_at', r.eligible_at,
             'attempt', r.attempt_count + 1, 'deadline', r.deadline) order by r.tier, r.rank, r.position), '[]')
    from (select * from hwqueue.ready d where d.shard_id = p_shard and d.class_id = p_class order by d.tier, d.rank, d.position limit 20) r
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = r.lease_id);
  return next;
end
$$;
