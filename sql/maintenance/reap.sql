-- Brings back what nobody settles: expired claims, due schedules, leases past their deadline; refreshes estimates. Safe to
-- call from anywhere at any time; every part takes at most p_limit and skips what others hold.
-- Locks: node_state, claims, entries: all skip locked; then lease rows. Raises: QHA01, QHA02. Idempotent: yes.
-- Wakes: waiting workers.
create or replace function hwqueue.reap(p_limit int default 1000, p_shard int default 0)
returns table (expired int, promoted int, deadlines int, reaches int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed();
  if p_limit is null or p_limit not between 1 and 100000 then
    perform hwqueue.refuse('QHA01', 'p_limit must be from 1 to 100000', jsonb_build_object('field', 'p_limit'), 'call again for more');
  end if;
  v_now := hwqueue.clock();
  perform hwqueue.current_generation(p_shard);
  expired := hwqueue.reap_claims(p_limit, null, v_now, p_shard);
  promoted := hwqueue.promote_due(array(select q.queue_id from hwqueue.queue q where q.shard_id = p_shard), p_limit, v_now, p_shard);
  deadlines := hwqueue.reap_deadlines(p_limit, v_now, p_shard);
  reaches := coalesce(hwqueue.refresh_reach(array(
    select c.class_id from hwqueue.placement_class c
    left join hwqueue.class_reach r on r.shard_id = p_shard and r.class_id = c.class_id
    where c.shard_id = p_shard and c.retired_at is null and (r.refreshed_at is null or r.refreshed_at < v_now - interval '1 minute')
    order by r.refreshed_at nulls first limit p_limit), p_shard), 0);
  return next;
end
$$;
