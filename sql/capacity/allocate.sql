-- Allocating capacity of a node to a claim, and releasing it.
--
-- Example: a claim of a class that needs one whole GPU allocates device 0 of gpu-1. Its assignment,
-- {"gpus": [{"index": 0, ...}], "gpu_milli": 1000}, is written into the claim, and node_load counts device 0
-- as in use. The end of the claim releases exactly what its assignment says. The invariant: node_load equals
-- the sum of the assignments of the node's claims (node_usage_of_claims), and is written under node_state.

-- A load with what these assignments hold of its node added (p_sign 1) or taken off (-1). Devices and cores
-- are found by id, because the node may have been registered again meanwhile; one that is gone counts for
-- nothing. p_node is only read for those.
create or replace function hwqueue.add_uses(p_load hwqueue.node_load, p_node hwqueue.node,
  p_assignments jsonb[], p_sign int) returns hwqueue.node_load
language plpgsql immutable
as $$
declare
  v_one jsonb;
  v_at int;
begin
  foreach v_one in array p_assignments loop
    p_load.claim_count := p_load.claim_count + p_sign;
    p_load.cpu_used := p_load.cpu_used + p_sign * coalesce((v_one ->> 'cpu_milli')::bigint, 0);
    p_load.memory_used := p_load.memory_used + p_sign * coalesce((v_one ->> 'memory_mib')::bigint, 0);
    for i in 0 .. coalesce(jsonb_array_length(v_one -> 'gpus'), 0) - 1 loop
      v_at := array_position(p_node.gpu_ids, (v_one #>> array['gpus', i::text, 'resource_id'])::uuid);
      if v_at is not null then
        p_load.gpu_used[v_at] := p_load.gpu_used[v_at] + p_sign * (v_one ->> 'gpu_milli')::int;
      end if;
    end loop;
    if v_one ?| array['cores', 'unpinned'] then
      p_load.core_used := array(  -- in thousandths
        select u.used + p_sign * (coalesce((v_one -> 'core_milli' ->> o.position)::int, 0)
                 + (v_one ? 'unpinned')::int)
        from unnest(p_load.core_used, p_node.core_ids) with ordinality u(used, core, ordinality)
        left join lateral (
          select (c.ordinality - 1)::int as position
          from jsonb_array_elements_text(v_one -> 'cores') with ordinality c(core, ordinality)
          where c.core::int = u.core) o on true
        order by u.ordinality);
    end if;
    if v_one ? 'custom' then
      p_load.custom_used := (  -- by name; one whose amount is 0 is left out
        select coalesce(jsonb_object_agg(n.key, n.amount) filter (where n.amount > 0), '{}')
        from (select a.key, sum(a.amount) as amount
              from (select e.key, e.value::bigint as amount from jsonb_each(p_load.custom_used) e
                    union all
                    select e.key, p_sign * e.value::bigint from jsonb_each(v_one -> 'custom') e) a
              group by a.key) n);
    end if;
  end loop;
  return p_load;
end
$$;

-- What the claims of a node have allocated, computed from the claims. node_load must say the same.
-- p_with_earmarks: those that wait for room that others use (capacity/overbook) as well.
create or replace function hwqueue.node_usage_of_claims(p_node hwqueue.node,
  p_with_earmarks boolean default true) returns hwqueue.node_load
language plpgsql stable
as $$ begin return
  hwqueue.add_uses(hwqueue.idle_load(p_node), p_node, array(
    select c.assignment from hwqueue.claim c
    where c.node_id = p_node.node_id and c.assignment is not null
      and (p_with_earmarks or c.is_earmark is null)), 1);
end $$;

-- What these leases have booked on a node: their assignments.
create or replace function hwqueue.booked_on(p_node uuid, p_leases uuid[]) returns jsonb[]
language plpgsql stable
as $$ begin return
  array(
    select c.assignment from hwqueue.claim c
    where c.lease_id = any (p_leases) and c.node_id = p_node and c.assignment is not null);
end $$;

-- Counts an assignment as in use on a node, p_copies times; -1 releases what a claim had allocated. False: it
-- is null. p_gpu_used: what of each device is in use then; null: not known.
-- Locks: the caller holds node_state. Not idempotent.
create or replace function hwqueue.book_room(p_node uuid, p_assignment jsonb, p_copies int,
  p_gpu_used int[] default null) returns boolean
language plpgsql volatile
as $$
declare
  v_node hwqueue.node;
begin
  if p_assignment is null then
    return false;
  elsif p_gpu_used is not null or not p_assignment ?| array['gpus', 'cores', 'unpinned', 'custom'] then
    -- mostly in one statement
    update hwqueue.node_load u
    set updates = u.updates + 1, claim_count = u.claim_count + p_copies,
        cpu_used = u.cpu_used + p_copies * coalesce((p_assignment ->> 'cpu_milli')::bigint, 0),
        memory_used = u.memory_used + p_copies * coalesce((p_assignment ->> 'memory_mib')::bigint, 0),
        gpu_used = coalesce(p_gpu_used, u.gpu_used)
    where u.node_id = p_node and u.updates < 32 and u.version = (
      select x.version from hwqueue.node_load x where x.node_id = p_node order by x.version desc limit 1);
    if found then
      return true;
    end if;
  end if;
  select n.* into v_node from hwqueue.node n where n.node_id = p_node;
  perform hwqueue.write_load(hwqueue.add_uses(hwqueue.read_load(p_node), v_node,
    array_fill(p_assignment, array[abs(p_copies)]), sign(p_copies)::int));
  return true;
end
$$;

-- What a claim of a class allocates on a node, given its devices and what else it holds there (p_held:
-- cores, isolation); null when the node counts none of it. One expression, which the planner inlines.
create or replace function hwqueue.claim_assignment(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_gpus jsonb, p_held jsonb) returns jsonb
language sql stable parallel safe
as $$
  select coalesce(nullif(jsonb_strip_nulls(jsonb_build_object(
      'cpu_milli', case when p_node.cpu_milli is not null then nullif(
        case when p_held ->> 'cpu_isolation' <> 'best_effort'
          then 1000 * jsonb_array_length(p_held -> 'cores') else p_class.cpu_milli end, 0) end,
      'memory_mib', case when p_node.memory_mib is not null then nullif(p_class.memory_mib, 0) end,
      'custom', p_class.custom,
      'gpu_milli', case when p_gpus is not null then coalesce(nullif(p_class.gpu_milli, 0), 1000) end,
      'gpus', p_gpus)) || coalesce(p_held, '{}'), '{}'),
    case when p_node.slots is not null then '{}'::jsonb end)
$$;

-- Allocates what a class needs on a node: returns the node's new load, and the assignment that says what
-- was taken, null when the node counts nothing of it. A release needs only the assignment. Devices come from
-- p_room, unless p_devices has their positions in gpu_ids; cores from those that are idle, else, of an
-- earmark, from those that are idle when p_core_used is in use. It fits, because shortage was checked under
-- the same lock. If it does not fit after all, the claim fails, because work must never run on cores or
-- devices that others have. The caller holds node_state and writes p_load back. Not idempotent.
-- Raises: XX000 when it does not fit.
create or replace function hwqueue.allocate_for_class(p_class hwqueue.placement_class,
  p_node hwqueue.node, p_room hwqueue.headroom, inout p_load hwqueue.node_load,
  p_core_used int[] default null, p_devices int[] default null, out assignment jsonb)
language plpgsql immutable
as $$
declare
  v_cpu text := hwqueue.cpu_isolation_on(p_class.cpu_isolation, p_node.default_cpu_isolation);
  v_gpu text := hwqueue.gpu_exclusivity_on(p_class.gpu_exclusivity, p_node.gpu_share_mode);
  v_devices int[] := p_devices;
  v_cores int[];
  v_held jsonb;
  v_gpus jsonb;
  v_device int;
begin
  if p_class.gpu_count > 0 then
    v_devices := coalesce(p_devices, hwqueue.choose_devices(p_class.gpu_count, p_class.gpu_milli,
      p_class.gpu_wanted, v_gpu, p_room));
    v_held := hwqueue.present('gpu_exclusivity', to_jsonb(v_gpu));
  end if;
  if p_node.core_ids <> '{}' then
    v_cores := coalesce(hwqueue.choose_cores(p_node, p_load.core_used, p_class.cpu_milli, v_cpu),
      hwqueue.choose_cores(p_node, p_core_used, p_class.cpu_milli, v_cpu));
    -- the ids of the cores, how much of each, the NUMA nodes and the threads; null when it takes none
    v_held := coalesce(v_held, '{}') || (
      select jsonb_build_object('cpu_isolation', coalesce(v_cpu, 'best_effort'),
        'cores', jsonb_agg(t.core order by t.position), 'core_milli', jsonb_agg(t.milli order by t.position),
        'numa', jsonb_agg(distinct t.numa),
        'cpus', (select jsonb_agg(cpu order by cpu) from (
                   select c::int as cpu from unnest(v_cores) with ordinality x(milli, position)
                   cross join lateral jsonb_array_elements_text(
                     p_node.cores -> (x.position::int - 1) -> 'threads') c
                   where x.milli > 0) cpus))
      from unnest(v_cores, p_node.core_ids, p_node.core_numa) with ordinality t(milli, core, numa, position)
      where t.milli > 0
      having count(*) > 0);
  end if;
  if p_class.gpu_count > 0 and v_devices is null or p_node.core_ids <> '{}' and v_cores is null then
    raise exception using errcode = 'XX000',
      message = format('class %s was granted on node %s without room for it', p_class.class_id,
        p_node.node_id),
      hint = 'this is a fault of hwqueue: report it, with what list_nodes says of the node';
  end if;
  foreach v_device in array array(select d from unnest(v_devices) d order by d) loop
    v_gpus := coalesce(v_gpus, '[]') || jsonb_build_object(
      'index', v_device - 1, 'resource_id', p_node.gpu_ids[v_device], 'model', p_node.gpu_models[v_device]);
  end loop;
  assignment := hwqueue.claim_assignment(p_class, p_node, v_gpus, v_held);
  if assignment is not null then
    p_load := hwqueue.add_uses(p_load, p_node, array[assignment], 1);
  end if;
end
$$;
