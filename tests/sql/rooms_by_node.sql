-- How many leases of a class each node has room for, asked node by node: slow, and plain to read. gang_rooms
-- (sql/gangs/rooms.sql) has to answer the same.

-- Returns how many leases of a class a node has room for, at most p_most. Devices and cores are counted as
-- amounts, so fewer may fit. A node that is full is told by class_shortage's rules alone, without a query.
create or replace function pg_temp.copies_that_fit(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_load hwqueue.node_load, p_most int) returns int
language plpgsql stable
as $$
declare
  v_cpu text := hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation);
  v_gpu text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_cpu_milli bigint := hwqueue.cpu_needed(p_class.cpu_milli, v_cpu);
  v_room hwqueue.headroom := hwqueue.node_headroom(p_node, p_load);
begin
  if hwqueue.shortage(v_cpu_milli, p_class.memory_mib, v_room, p_class.custom, v_cpu)
    + hwqueue.gpu_shortage(p_class.gpu_count, p_class.gpu_milli, p_class.gpu_wanted, v_room, v_gpu) > 0 then
    return 0;
  end if;
  return least(p_most, case when p_class.gpu_wanted <> '{}' then 1 end, (
    select min(case a.name
        when 'gpu_most' then (select sum(g / a.amount) from unnest(v_room.gpu_sorted) g)
        when 'core_numa' then hwqueue.amount_left(v_room, 'core_whole') / a.amount
        else hwqueue.amount_left(v_room, a.name) / a.amount end)
    from hwqueue.needed_amounts(p_class, p_node.default_cpu_isolation, p_node.gpu_share_mode) a
    where a.amount > 0))::int;
end
$$;

-- Returns the live nodes that may run leases of a class, with how many leases each worker runs at a time
-- (null: no limit). Nodes whose workers do not serve its queue or its task are left out. The class may be a
-- draft.
create or replace function pg_temp.class_nodes(p_class hwqueue.placement_class, p_now timestamptz)
returns table (node hwqueue.node, concurrency int)
language plpgsql stable
as $$
declare
  v_by_node boolean := p_class.is_pinned or p_class.trusts <> '{}';
  v_queue text := (select q.name from hwqueue.queue q where q.queue_id = p_class.queue_id);
  v_profiles bigint[];
begin
  if not v_by_node then
    v_profiles := array(
      select p.profile_id from hwqueue.profile p where hwqueue.suits(p_class, p, null, '{}'));
  end if;
  return query
    select n, n.concurrency
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.deregistered_at is null and n.cordoned_at is null and hwqueue.is_live(n, s, p_now)
      and case when v_by_node then (
          select hwqueue.suits(p_class, p, n.node_id, n.resources || n.gpu_ids,
            hwqueue.attested_at(n, p_now), n.gpu_ids, n.gpu_parents)
          from hwqueue.profile p where p.profile_id = n.profile_id)
        else n.profile_id = any (v_profiles) end
      and hwqueue.unserved_part(n.queues, n.tasks, v_queue, p_class.task_name) is null;
end
$$;

-- Returns those of class_nodes that have room for leases of a class now, and for how many, of p_most.
create or replace function pg_temp.class_rooms(p_class hwqueue.placement_class, p_most int, p_now timestamptz)
returns table (node_id uuid, rack bigint, labels jsonb, copies int)
language plpgsql stable
as $$
begin
  return query
    select f.node_id, f.rack, f.labels, f.copies
    from (
      select (k.node).node_id, (k.node).rack, (k.node).labels, least(
          pg_temp.copies_that_fit(p_class, k.node, hwqueue.read_load((k.node).node_id), p_most),
          case when k.concurrency is not null then k.concurrency - (select count(*) from hwqueue.claim c
            where c.node_id = (k.node).node_id) end)::int as copies
      from pg_temp.class_nodes(p_class, p_now) k offset 0) f  -- a fence: each node is asked once
    where f.copies > 0;
end
$$;

-- Returns the nodes that may run leases of a class, and how many each would have room for if nothing ran
-- there, of p_most. Nodes of one size are asked once.
create or replace function pg_temp.emptied_rooms(p_class hwqueue.placement_class, p_most int,
  p_now timestamptz) returns table (node_id uuid, rack bigint, labels jsonb, copies int)
language plpgsql stable
as $$
begin
  return query
    with mine as materialized (
      select k.node, k.concurrency, row((k.node).cpu_milli, (k.node).memory_mib, (k.node).custom,
               (k.node).slots, cardinality((k.node).gpu_ids), (k.node).gpu_parents, (k.node).core_numa,
               (k.node).default_cpu_isolation, (k.node).gpu_share_mode,
               case when p_class.gpu_wanted <> '{}' then (k.node).gpu_ids end)::text as size
      from pg_temp.class_nodes(p_class, p_now) k
    ), fits as materialized (
      select s.size, pg_temp.copies_that_fit(p_class, s.node, hwqueue.idle_load(s.node), p_most) as copies
      from (select distinct on (m.size) m.size, m.node from mine m order by m.size offset 0) s
    )
    select (m.node).node_id, (m.node).rack, (m.node).labels, least(f.copies, m.concurrency)
    from mine m join fits f on f.size = m.size
    where f.copies > 0;
end
$$;
