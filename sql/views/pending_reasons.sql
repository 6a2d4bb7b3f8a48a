-- Why leases are pending: a row for each placement class that has some ready, with how many nodes match it
-- and could take it now, and the one thing to say about it. Facts about nodes come from class_fleets;
-- docs/explanation/views.md says what exactly is counted. code: a reason code, null when nothing is in the
-- way but its turn. permanent: waiting will not help, something has to be changed. nodes_matching: live and
-- not cordoned, and all static rules and the total capacity allow it; null: too many different nodes to tell,
-- ask for the class alone. nodes_free: those that have room now and no known conflict with what other leases
-- do. nodes_near: where none matches, the live nodes that one part alone keeps out, the one that message
-- names. words: what the class asks, for people. words and message are written for the first 500 rows, since
-- that takes long; nearest names for the first 10. p_kind: no_match (nothing matches), contended (something
-- matches, nothing is free); p_order: oldest, pending (most first); p_limit: null for all.
-- Locks: none. Raises: QHQ01, QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.pending_reasons(p_queue text default null, p_kind text default null, p_class bigint default null,
                                                   p_order text default 'oldest', p_limit int default 100, p_shard int default 0)
returns table (shard_id int, class_id bigint, queue text, tenant text, service_id uuid, task_name text, words text, resources jsonb,
               pending bigint, oldest_at timestamptz, code text, permanent boolean, message text, nodes_matching int, nodes_free int, nodes_near int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  -- one core at most; each call is planned for what it asks, and joins by hash whatever the statistics say
  set max_parallel_workers_per_gather = 0 set work_mem = '64MB' set jit = off set plan_cache_mode = force_custom_plan
  set enable_nestloop = off
as $$
declare
  v_queue_id int;
  v_now timestamptz := hwqueue.clock();
  v_look hwqueue.fleet_look;
  v_served record;
begin
  perform hwqueue.require_all_tenants();
  v_queue_id := case when p_queue is not null then (hwqueue.find_queue(p_queue, p_shard)).queue_id end;
  perform hwqueue.json_choice(to_jsonb(p_kind), 'p_kind', array['no_match', 'contended']),
          hwqueue.json_choice(to_jsonb(p_order), 'p_order', array['oldest', 'pending']), hwqueue.check_limit(p_limit);
  v_look := hwqueue.look_at_nodes(v_now, p_shard);
  select s.* into v_served from hwqueue.served_names(v_now, p_shard) s;
  return query
    with waiting as materialized (
      select g.*
      from (select r.queue_id, r.class_id, count(*) as pending, min(r.eligible_at) as oldest_at
            from hwqueue.ready r
            where r.shard_id = p_shard and (v_queue_id is null or r.queue_id = v_queue_id) and (p_class is null or r.class_id = p_class)
            group by r.queue_id, r.class_id) g
      join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = g.queue_id and q.dropped_at is null
    ), ids as materialized (  -- without a kind, only what is given back needs to be looked at
      select coalesce(array_agg(o.class_id), '{}') as class_ids
      from (select w.class_id from waiting w order by case when p_order = 'pending' then -w.pending end, w.oldest_at, w.class_id
            limit case when p_kind is null then p_limit end) o
    ), fit as materialized (
      -- what no node may run needs no look at what nodes have left
      select f.* from ids
      cross join lateral hwqueue.class_fleets(ids.class_ids, v_look, v_now, p_shard) f
    ), able as materialized (
      select coalesce(array_agg(f.class_id), '{}') as class_ids
      from fit f where p_kind is distinct from 'no_match' and f.nodes_matching is distinct from 0
    ), room as materialized (
      select p.class_id, bit_and(p.mask) as mask
      from able cross join lateral hwqueue.capacity_parts(able.class_ids, false, v_look.open, v_look.none, v_now, p_shard) p
      where p_kind is distinct from 'no_match'
      group by p.class_id
    ), untaken as materialized (
      select t.* from able cross join lateral hwqueue.untaken_masks(able.class_ids, v_look.none, v_now, p_shard) t
      where p_kind is distinct from 'no_match'
    ), free as (
      select f.class_id, f.nodes & v_look.open & coalesce(r.mask, v_look.open) as room, t.mask, t.code as conflict
      from fit f
      left join room r on r.class_id = f.class_id
      left join untaken t on t.class_id = f.class_id
      where f.nodes_matching is distinct from 0
    ), chosen as materialized (
      select k.*, row_number() over (order by case when p_order = 'pending' then -k.pending end, k.oldest_at, k.class_id) as turn
      from (select w.pending, w.oldest_at, f.class_id, f.nodes_matching, f.nodes_cordoned, f.nodes_silent, f.part, f.expr, f.near,
                   f.nodes_near, f.nodes_meeting, f.nodes_serving, coalesce(bit_count(e.room), 0)::int as with_room,
                   coalesce(bit_count(e.room & coalesce(e.mask, e.room)), 0)::int as free, e.conflict
            from fit f
            join waiting w on w.class_id = f.class_id
            left join free e on e.class_id = f.class_id) k
      where p_kind is null or p_kind = 'no_match' and k.nodes_matching = 0 or p_kind = 'contended' and k.nodes_matching > 0 and k.free = 0
      order by turn limit p_limit
    )
    select p_shard, c.class_id, q.name, c.tenant, c.service_id, c.task_name, case when k.turn <= 500 then hwqueue.class_words(c) end, coalesce(c.placement -> 'resources', '{}'),
           k.pending, k.oldest_at, h.code, coalesce(k.nodes_matching = 0 and h.code not in ('queue_paused', 'node_draining', 'node_not_live', 'no_nodes'), false), case when k.turn <= 500 then h.message end,
           k.nodes_matching, k.free, coalesce(k.nodes_near, 0)
    from chosen k
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = k.class_id
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id
    left join hwqueue.node n on n.shard_id = p_shard and n.node_id = v_look.node_ids[position(B'1' in k.near)]
    cross join lateral hwqueue.part_reason(k.part, k.expr, c, n, k.turn <= 500, v_now) r
    cross join lateral hwqueue.class_headline(k.nodes_matching, k.nodes_cordoned, k.nodes_silent, k.with_room, k.free, r.code, r.message, k.nodes_near,
      k.nodes_meeting, n.name, k.conflict, v_look.registered, bit_count(v_look.open)::int, bit_count(v_look.live)::int, q.paused_at,
      case when c.preferred <> '[]' then k.oldest_at + coalesce(c.patience, q.patience) - v_now end,
      case when k.nodes_serving = 0 and v_look.registered > 0 then
        case when k.turn <= 500 then hwqueue.unserved_words(q.name, c.task_name, v_served.queues, v_served.tasks, v_served.any_queue, k.turn <= 10) else '' end end) h
    order by k.turn;
end
$$;

-- All of them, of all shards.
create or replace view hwqueue.pending_reasons as
select r.* from hwqueue.shard s cross join lateral hwqueue.pending_reasons(p_limit => null, p_shard => s.shard_id) r;
