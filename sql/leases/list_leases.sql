-- Leases, newest first by id, a page at a time: pass the last lease_id of a page as p_before of the next. Ids from now carry their time
-- (version 7); ids of a producer's own that are above those of tomorrow, as most random ones are, come after all others.
-- p_node: only those that run there now. What few leases meet among many takes a walk over the many: bound it by a timeout.
-- Locks: none. Raises: QHQ01, QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.list_leases(p_queue text default null, p_state text default null, p_task text default null,
                                               p_limit int default 50, p_before uuid default null, p_tenant text default null,
                                               p_service uuid default null, p_node uuid default null, p_shard int default 0)
returns table (lease_id uuid, shard_id int, queue text, task_name text, state text, priority smallint, tenant text, service_id uuid,
               labels jsonb, placement jsonb, headers jsonb, attempt smallint, max_attempts smallint, available_at timestamptz,
               deadline timestamptz, created_at timestamptz, claimed_at timestamptz, finished_at timestamptz, expires_at timestamptz,
               node_id uuid, claim_token bigint, error jsonb, idempotency_key text, stop_reason text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_tenants text[] := coalesce(hwqueue.my_tenants(), array[p_tenant]);  -- {null}: all
  v_queue_id int := case when p_queue is not null then (hwqueue.find_queue(p_queue, p_shard)).queue_id end;
  v_newest uuid := hwqueue.id_of_time(hwqueue.clock() + interval '1 day');
  v_ids uuid[] := '{}';
begin
  if p_tenant <> all (v_tenants) then
    perform hwqueue.refuse_foreign(format('p_tenant is %s', to_json(left(p_tenant, 60))), 'p_tenant', 'leave out p_tenant');
  elsif p_tenant is not null then
    v_tenants := array[p_tenant];
  end if;
  if p_state not in ('scheduled', 'pending', 'claimed', 'completed', 'failed', 'cancelled') then
    perform hwqueue.refuse('QHA01', format('%s is no state', to_json(left(p_state, 60))), jsonb_build_object('field', 'p_state'),
      'states: scheduled, pending, claimed, completed, failed, cancelled');
  end if;
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_before');
  if p_before is null or p_before <= v_newest then
    v_ids := hwqueue.list_ids(v_queue_id, p_state, p_task, p_limit, null, least(p_before, v_newest), v_tenants, p_service, p_node, p_shard);
  end if;
  if cardinality(v_ids) < p_limit then
    v_ids := v_ids || hwqueue.list_ids(v_queue_id, p_state, p_task, p_limit - cardinality(v_ids), v_newest,
      case when p_before > v_newest then p_before end, v_tenants, p_service, p_node, p_shard);
  end if;
  return query
    select g.lease_id, g.shard_id, g.queue, g.task_name, g.state, g.priority, g.tenant, g.service_id, g.labels, g.placement, g.headers,
           g.attempt, g.max_attempts, g.available_at, g.deadline, g.created_at, g.claimed_at, g.finished_at, g.expires_at, g.node_id,
           g.claim_token, g.error, g.idempotency_key, g.stop_reason
    from unnest(v_ids) with ordinality i(lease_id, ordinality)
    cross join lateral hwqueue.get_lease(i.lease_id, p_shard) g
    order by i.ordinality;
end
$$;

-- Ids of leases from p_from on and below p_before (null: no bound), the highest first.
create or replace function hwqueue.list_ids(p_queue_id int, p_state text, p_task text, p_limit int, p_from uuid,
  p_before uuid, p_tenants text[], p_service uuid, p_node uuid, p_shard int) returns uuid[]
language plpgsql volatile
  -- planned each time: a filter that is not given must not be in the plan
  set plan_cache_mode = force_custom_plan
as $$
begin
  return array(
    select l.lease_id
    from hwqueue.lease l
    -- lease_state, as joins: those that the filter does not need go, and the one that it needs may come first
    left join hwqueue.outcome o on o.shard_id = l.shard_id and o.lease_id = l.lease_id
    left join hwqueue.claim r on r.shard_id = l.shard_id and r.lease_id = l.lease_id
    left join hwqueue.scheduled s on s.shard_id = l.shard_id and s.queue_id = l.queue_id and s.available_at = l.available_at
      and s.lease_id = l.lease_id
    where l.shard_id = p_shard and (p_before is null or l.lease_id < p_before) and (p_from is null or l.lease_id >= p_from)
      and (p_queue_id is null or l.queue_id = p_queue_id) and (p_task is null or l.task_name = p_task)
      and case when p_state is null then true
               when p_state in ('completed', 'failed', 'cancelled') then o.state = p_state
               when p_state = 'claimed' then r.lease_id is not null
               when p_state = 'scheduled' then s.lease_id is not null
               else o.lease_id is null and r.lease_id is null and s.lease_id is null end
      and (p_tenants[1] is null and p_service is null
           or exists (select 1 from hwqueue.placement_class c
                      where c.shard_id = l.shard_id and c.class_id = l.class_id
                        and (p_tenants[1] is null or c.tenant = any (p_tenants))
                        and (p_service is null or c.service_id = p_service)))
      and (p_node is null
           or l.lease_id in (select c.lease_id from hwqueue.claim c where c.shard_id = p_shard and c.node_id = p_node))
    order by l.lease_id desc limit p_limit);
end
$$;
