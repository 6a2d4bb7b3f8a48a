-- Allocating capacity of a node to a claim, and releasing it.
--
-- Example: a claim of a class that needs one whole GPU allocates device 0 of gpu-1. Its assignment,
-- {"gpus": [{"index": 0, ...}], "gpu_milli": 1000}, is written into the claim, and node_load counts
-- device 0 as in use. The end of the claim releases exactly what its assignment says.
--
-- Claims call allocate_for_class, settlement and expiry call release_room. The invariant: node_load
-- equals the sum of the assignments of the node's claims, which node_usage_of_claims computes from the
-- claims themselves. Every caller that writes node_load holds node_state.

-- What an assignment holds besides amounts and devices, and keeps when the node is registered again. A
-- claim that was granted before the node declared cores is pinned to none and may run on any. It takes a
-- thousandth of each core, so that no core is allocated whole.
create or replace function hwqueue.held_alone(p_assignment jsonb, p_node hwqueue.node) returns jsonb
language sql immutable parallel safe
as $$
  select nullif(
    coalesce((select jsonb_object_agg(e.key, e.value) from jsonb_each(p_assignment) e
              where e.key in ('cpu_isolation', 'cores', 'core_milli', 'numa', 'cpus', 'unpinned',
                  'gpu_exclusivity')), '{}')
    || case when p_node.core_ids <> '{}' and (p_assignment ? 'cores') is distinct from true
      then '{"unpinned": true}'::jsonb else '{}' end, '{}')
$$;

-- What these assignments have allocated of a node, as the columns of its load.
create or replace function hwqueue.node_usage_of(p_node hwqueue.node, p_assignments jsonb[])
returns table (claim_count int, cpu_used bigint, memory_used bigint, gpu_used int[], custom_used jsonb,
  core_used int[])
language sql immutable
as $$
  select count(*)::int, coalesce(sum((c.assignment ->> 'cpu_milli')::bigint), 0)::bigint,
         coalesce(sum((c.assignment ->> 'memory_mib')::bigint), 0)::bigint,
         array(select coalesce(sum((u.assignment ->> 'gpu_milli')::int), 0)::int
               from unnest(p_node.gpu_ids) with ordinality g(id, position)
               left join unnest(p_assignments) u(assignment)
                 on u.assignment -> 'gpus' @> jsonb_build_array(jsonb_build_object('resource_id', g.id))
               group by g.position order by g.position),
         coalesce((select jsonb_object_agg(a.key, a.amount)
                   from (select k.key, sum(k.value::bigint) as amount
                         from unnest(p_assignments) u(assignment), jsonb_each(u.assignment -> 'custom') k
                         where u.assignment ? 'custom'
                         group by k.key) a), '{}'),
         array(  -- thousandths of each core
           select coalesce(sum(h.milli), 0)::int
                  + (select count(*)::int from unnest(p_assignments) u(assignment)
                     where u.assignment ? 'unpinned')
           from unnest(p_node.core_ids) with ordinality c(id, position)
           left join (
             select o.core, o.milli
             from unnest(p_assignments) u(assignment) cross join lateral hwqueue.cores_of(u.assignment) o
             where u.assignment ? 'cores') h on h.core = c.id
           group by c.position order by c.position)
  from unnest(p_assignments) c(assignment)
$$;

-- What the claims of a node have allocated, computed from the claims. node_load must say the same.
-- p_with_earmarks: those that wait for room that others use (capacity/overbook) as well.
create or replace function hwqueue.node_usage_of_claims(p_node hwqueue.node,
  p_with_earmarks boolean default true)
returns table (claim_count int, cpu_used bigint, memory_used bigint, gpu_used int[], custom_used jsonb,
  core_used int[])
language sql stable
as $$
  select u.claim_count, u.cpu_used, u.memory_used, u.gpu_used, u.custom_used, u.core_used
  from hwqueue.node_usage_of(p_node, array(
    select c.assignment from hwqueue.claim c
    where c.node_id = p_node.node_id and c.assignment is not null
      and (p_with_earmarks or c.is_earmark is null))) u
$$;

-- Releases what a claim had allocated. Devices and cores are found by id, because the node may have been
-- registered again meanwhile; one that is gone needs no release.
-- Locks: the caller holds node_state. Not idempotent.
create or replace function hwqueue.release_room(p_node uuid, p_assignment jsonb) returns void
language plpgsql volatile
as $$
declare
  v_load hwqueue.node_load;
begin
  if p_assignment is null then
    return;
  end if;
  v_load := hwqueue.read_load(p_node);
  v_load.claim_count := v_load.claim_count - 1;
  v_load.cpu_used := v_load.cpu_used - coalesce((p_assignment ->> 'cpu_milli')::bigint, 0);
  v_load.memory_used := v_load.memory_used - coalesce((p_assignment ->> 'memory_mib')::bigint, 0);
  if p_assignment ? 'gpus' then
    v_load.gpu_used := array(
      select u.used - case
        when p_assignment -> 'gpus' @> jsonb_build_array(
          jsonb_build_object('resource_id', n.gpu_ids[u.ordinality]))
        then (p_assignment ->> 'gpu_milli')::int else 0 end
      from hwqueue.node n, unnest(v_load.gpu_used) with ordinality u(used, ordinality)
      where n.node_id = p_node
      order by u.ordinality);
  end if;
  if p_assignment ?| array['cores', 'unpinned'] then
    v_load.core_used := array(
      select u.used - coalesce(c.milli, 0) - case when p_assignment ? 'unpinned' then 1 else 0 end
      from hwqueue.node n
      cross join lateral unnest(v_load.core_used, n.core_ids) with ordinality u(used, core, ordinality)
      left join hwqueue.cores_of(p_assignment) c on c.core = u.core
      where n.node_id = p_node
      order by u.ordinality);
  end if;
  if p_assignment ? 'custom' then
    v_load.custom_used := hwqueue.add_amounts(v_load.custom_used, p_assignment -> 'custom', -1);
  end if;
  perform hwqueue.write_load(v_load);
end
$$;

-- The cores of an assignment and how much it has of each, in thousandths.
create or replace function hwqueue.cores_of(p_assignment jsonb) returns table (core int, milli int)
language sql immutable
as $$
  select c.core::int, (p_assignment -> 'core_milli' ->> (c.ordinality::int - 1))::int
  from jsonb_array_elements_text(p_assignment -> 'cores') with ordinality c(core, ordinality)
$$;

-- What a claim of a class allocates on a node, given its devices and what else it holds there (p_held,
-- see held_alone); null when the node counts none of it.
create or replace function hwqueue.claim_assignment(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_gpus jsonb, p_held jsonb) returns jsonb
language sql immutable parallel safe
as $$
  select case when a.amounts <> '{}' or p_node.slots is not null then a.amounts end
  from (select jsonb_strip_nulls(jsonb_build_object(
          'cpu_milli', case when p_node.cpu_milli is not null then nullif(
            case when p_held ->> 'cpu_isolation' <> 'best_effort'
              then 1000 * jsonb_array_length(p_held -> 'cores') else p_class.cpu_milli end, 0) end,
          'memory_mib', case when p_node.memory_mib is not null then nullif(p_class.memory_mib, 0) end,
          'custom', p_class.custom,
          'gpu_milli', case when p_gpus is not null then coalesce(nullif(p_class.gpu_milli, 0), 1000) end,
          'gpus', p_gpus)) || coalesce(p_held, '{}') as amounts) a
$$;

-- Allocates what a class needs on a node: returns the node's new load, and the assignment that says what
-- was taken. p_cores: from choose_cores, null when the node counts none. The assignment is null when the
-- node counts nothing of it. A release needs only the assignment. The caller holds node_state and writes
-- the load back. Not idempotent.
create or replace function hwqueue.allocate_room(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_devices int[], p_cores int[], inout p_load hwqueue.node_load, out assignment jsonb)
language plpgsql immutable
as $$
declare
  v_exclusivity text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_held jsonb;
  v_device int;
begin
  if p_class.gpu_count > 0 and v_exclusivity is not null then
    v_held := jsonb_build_object('gpu_exclusivity', v_exclusivity);
  end if;
  if p_cores is not null then
    -- the ids of the cores, how much of each, the NUMA nodes and the threads; null when it takes none
    v_held := coalesce(v_held, '{}') || (
      select jsonb_build_object('cpu_isolation', coalesce(hwqueue.cpu_isolation_on(p_class.cpu_isolation,
            p_node.default_cpu_isolation), 'best_effort'),
        'cores', jsonb_agg(t.core order by t.position), 'core_milli', jsonb_agg(t.milli order by t.position),
        'numa', jsonb_agg(distinct t.numa),
        'cpus', (select jsonb_agg(cpu order by cpu) from (
                   select c::int as cpu from unnest(p_cores) with ordinality x(milli, position)
                   cross join lateral jsonb_array_elements_text(
                     p_node.cores -> (x.position::int - 1) -> 'threads') c
                   where x.milli > 0) cpus))
      from unnest(p_cores, p_node.core_ids, p_node.core_numa) with ordinality t(milli, core, numa, position)
      where t.milli > 0
      having count(*) > 0);
    p_load.core_used := array(
      select u.used + u.taken
      from unnest(p_load.core_used, p_cores) with ordinality u(used, taken, ordinality)
      order by u.ordinality);
  end if;
  assignment := hwqueue.claim_assignment(p_class, p_node, (
    select jsonb_agg(jsonb_build_object(
      'index', d - 1, 'resource_id', p_node.gpu_ids[d], 'model', p_node.gpu_models[d]) order by d)
    from unnest(p_devices) d), v_held);
  if assignment is null then
    return;
  end if;
  p_load.claim_count := p_load.claim_count + 1;
  p_load.cpu_used := p_load.cpu_used + coalesce((assignment ->> 'cpu_milli')::bigint, 0);
  p_load.memory_used := p_load.memory_used + coalesce((assignment ->> 'memory_mib')::bigint, 0);
  foreach v_device in array coalesce(p_devices, '{}') loop
    p_load.gpu_used[v_device] := p_load.gpu_used[v_device] + (assignment ->> 'gpu_milli')::int;
  end loop;
  if p_class.custom is not null then
    p_load.custom_used := hwqueue.add_amounts(p_load.custom_used, p_class.custom, 1);
  end if;
end
$$;

-- Amounts by name, plus or minus others; a name whose amount is 0 is left out.
create or replace function hwqueue.add_amounts(p_amounts jsonb, p_others jsonb, p_sign int) returns jsonb
language sql immutable
as $$
  select coalesce(jsonb_object_agg(n.key, n.amount) filter (where n.amount > 0), '{}')
  from (select a.key, sum(a.amount) as amount
        from (select e.key, e.value::bigint as amount from jsonb_each(p_amounts) e
              union all
              select e.key, p_sign * e.value::bigint from jsonb_each(p_others) e) a
        group by a.key) n
$$;

-- Allocates what a class needs on a node. It fits, because shortage was checked under the same lock. If
-- it does not fit after all, the claim fails, because work must never run on cores or devices that
-- others have. The caller holds node_state and writes p_load back. Not idempotent.
-- Raises: XX000 when it does not fit.
create or replace function hwqueue.allocate_for_class(p_class_id bigint, p_node hwqueue.node,
  inout p_load hwqueue.node_load, out assignment jsonb)
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
  v_devices int[];
  v_cores int[];
  v_taken record;
begin
  select c.* into v_class from hwqueue.placement_class c where c.class_id = p_class_id;
  if v_class.gpu_count > 0 then
    v_devices := hwqueue.choose_devices(v_class.gpu_count, v_class.gpu_milli, v_class.gpu_wanted,
      hwqueue.gpu_exclusivity_on(v_class.gpu_exclusivity, p_node.gpu_share_mode),
      hwqueue.node_headroom(p_node, p_load));
  end if;
  if p_node.core_ids <> '{}' then
    v_cores := hwqueue.choose_cores(p_node, p_load.core_used, v_class.cpu_milli,
      hwqueue.cpu_isolation_on(v_class.cpu_isolation, p_node.default_cpu_isolation));
  end if;
  if v_class.gpu_count > 0 and v_devices is null or p_node.core_ids <> '{}' and v_cores is null then
    raise exception using errcode = 'XX000',
      message = format('class %s was granted on node %s without room for it', p_class_id, p_node.node_id),
      hint = 'this is a fault of hwqueue: report it, with what list_nodes says of the node';
  end if;
  v_taken := hwqueue.allocate_room(v_class, p_node, v_devices, v_cores, p_load);
  p_load := v_taken.p_load;
  assignment := v_taken.assignment;
end
$$;
