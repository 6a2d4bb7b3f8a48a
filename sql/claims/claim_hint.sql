-- After an empty claim: when to ask again, and what keeps the node from what waits, as counts of classes by reason code.
-- Looks at no more than 1,000 classes that have something ready.
-- Locks: none. Raises: QHQ01, QHN01, QHN04 unless an operator asks. Idempotent: yes.
create or replace function hwqueue.claim_hint(p_queues text[], p_node uuid, p_shard int default 0)
returns table (retry_after interval, reasons jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue_ids int[];
  v_node hwqueue.node;
  v_load hwqueue.node_load;
  v_now timestamptz;
  v_paused int;
  v_until timestamptz;
begin
  perform hwqueue.check_queue_names(p_queues);
  v_queue_ids := hwqueue.open_queues(p_queues, p_shard);
  v_node := hwqueue.read_node(p_node, p_shard);
  v_load := hwqueue.read_load(p_node, p_shard);
  if not (hwqueue.has_login('hwqueue_operator') or hwqueue.has_login('hwqueue_admin')) then
    perform hwqueue.check_login(p_node, (select s.login from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node), p_shard);
  end if;
  v_now := hwqueue.clock();
  select coalesce(jsonb_object_agg(r.code, r.classes), '{}'), min(r.until) into reasons, v_until
  from (
    select w.code, count(*) as classes, min(w.until) as until
    from (
      select c as class, h.eligible_at
      from hwqueue.placement_class c
      cross join lateral (
        select r.eligible_at from hwqueue.ready r
        where r.shard_id = p_shard and r.class_id = c.class_id order by r.tier, r.rank, r.position limit 1) h
      where c.shard_id = p_shard and c.queue_id = any (v_queue_ids)
      limit 1000
    ) k
    cross join lateral (
      select hwqueue.class_reasons(k.class, v_node, v_load, null, v_now, p_shard) #>> '{0,code}' as code,
             k.eligible_at + (hwqueue.waits_for(k.class, v_node, k.eligible_at, true, v_now, p_shard)).wait as until offset 0) u
    cross join lateral (
      select coalesce(u.code, case when u.until > v_now then 'waiting_for_preferred' end) as code,
             case when u.code is null then u.until end as until) w
    where w.code is not null
    group by w.code
  ) r;
  v_paused := (select count(distinct n) from unnest(p_queues) n) - cardinality(v_queue_ids);
  if v_paused > 0 then
    reasons := reasons || jsonb_build_object('queue_paused', v_paused);
  end if;
  retry_after := greatest(interval '0', coalesce(least(v_until - v_now,
    (select min(q.poll_interval) from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = any (v_queue_ids)),
    (select min(s.available_at) - v_now from unnest(v_queue_ids) q(queue_id)
     cross join lateral (select d.available_at from hwqueue.scheduled d
                         where d.shard_id = p_shard and d.queue_id = q.queue_id order by d.available_at limit 1) s)), interval '1 second'));
  return next;
end
$$;
