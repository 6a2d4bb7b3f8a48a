-- Why leases are pending: a row for each placement class that has some ready, with how many nodes match it and could take it now, and the one
-- thing to say about it. Facts about nodes come from class_fits; docs/explanation/views.md says what exactly is counted.
-- code: a reason code, null when nothing is in the way but its turn. permanent: waiting will not help, something has to be changed.
-- nodes_matching: live and not cordoned, and all static rules and the total capacity allow it; null: too many different nodes to tell, ask for
-- the class alone. nodes_free: those that have room now and no known conflict with what other leases do. nodes_near: where none matches, the live
-- nodes that one part alone keeps out, the one that message names.
-- p_kind: no_match (nothing matches), contended (something matches, nothing is free); p_order: oldest, pending (most first);
-- p_limit: null for all.
-- Locks: none. Raises: QHQ01, QHA01. Idempotent: yes.
create or replace function hwqueue.pending_reasons(p_queue text default null, p_kind text default null, p_class bigint default null,
                                                   p_order text default 'oldest', p_limit int default 100, p_shard int default 0)
returns table (shard_id int, class_id bigint, queue text, tenant text, service_id uuid, task_name text, words text, resources jsonb,
               pending bigint, oldest_at timestamptz, code text, permanent boolean, message text, nodes_matching int, nodes_free int, nodes_near int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  -- one core at most; each call is planned for what it asks
  set max_parallel_workers_per_gather = 0 set work_mem = '64MB' set jit = off set plan_cache_mode = force_custom_plan
as $$
declare
  v_queue_id int := case when p_queue is not null then (hwqueue.find_queue(p_queue, p_shard)).queue_id end;
  v_now timestamptz := hwqueue.clock();
  v_none bit varying;
  v_open int;
  v_live int;
begin
  perform hwqueue.json_choice(to_jsonb(p_kind), 'p_kind', array['no_match', 'contended']),
          hwqueue.json_choice(to_jsonb(p_order), 'p_order', array['oldest', 'pending']), hwqueue.check_limit(p_limit);
  select repeat('0', count(*)::int)::bit varying, count(*) filter (where n.is_open), count(*) filter (where n.is_live) into v_none, v_open, v_live
  from hwqueue.numbered_nodes(v_now, p_shard) n;
  return query
    with waiting as materialized (
      select g.*
      from (select r.queue_id, r.class_id, count(*) as pending, min(r.eligible_at) as oldest_at
            from hwqueue.ready r
            where r.shard_id = p_shard and (v_queue_id is null or r.queue_id = v_queue_id) and (p_class is null or r.class_id = p_class)
            group by r.queue_id, r.class_id) g
      join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = g.queue_id and q.dropped_at is null
    ), ids as materialized (
      select coalesce(array_agg(w.class_id), '{}') as class_ids from waiting w
    ), chosen as materialized (
      select w.class_id, w.pending, w.oldest_at, f.nodes_matching, f.nodes_cordoned, f.nodes_silent, f.nodes_near, f.code, f.message,
             bit_count(f.room)::int as with_room, case when t.mask is null then bit_count(f.room) else bit_count(f.room & t.mask) end::int as free,
             t.code as conflict
      from ids
      cross join lateral hwqueue.class_fits(ids.class_ids, v_now, p_shard) f
      join waiting w on w.class_id = f.class_id
      left join hwqueue.untaken_masks(ids.class_ids, v_none, v_now, p_shard) t on t.class_id = f.class_id
    )
    select p_shard, c.class_id, q.name, c.tenant, c.service_id, c.task_name, hwqueue.class_words(c), coalesce(c.placement -> 'resources', '{}'),
           w.pending, w.oldest_at, h.code, h.code is not null and w.nodes_matching = 0 and h.code not in ('queue_paused', 'node_draining', 'node_not_live'),
           h.message, w.nodes_matching, w.free, w.nodes_near
    from (select x.* from chosen x
          where p_kind is null or p_kind = 'no_match' and x.nodes_matching = 0 or p_kind = 'contended' and x.nodes_matching > 0 and x.free = 0
          order by case when p_order = 'pending' then -x.pending end, x.oldest_at, x.class_id limit p_limit) w
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = w.class_id
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id
    cross join lateral hwqueue.pending_headline(w.nodes_matching, w.nodes_cordoned, w.nodes_silent, w.with_room, w.free, w.code, w.message, w.conflict,
      bit_length(v_none), v_open, v_live, q.paused_at, case when c.preferred <> '[]' then w.oldest_at + coalesce(c.patience, q.patience) - v_now end) h
    order by case when p_order = 'pending' then -w.pending end, w.oldest_at, c.class_id;
end
$$;

-- All of them, of all shards.
create or replace view hwqueue.pending_reasons as
select r.* from hwqueue.shard s cross join lateral hwqueue.pending_reasons(p_limit => null, p_shard => s.shard_id) r;
