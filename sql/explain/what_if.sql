-- Nodes that are not there.

-- Nodes as p_nodes describes them (see what_if), with the profile that each would have. Raises: QHA01, QHA03.
create or replace function hwqueue.imagined_nodes(p_nodes jsonb, p_shard int)
returns table (node hwqueue.node, profile hwqueue.profile, how_many bigint)
language plpgsql stable
as $$
declare
  v_nodes jsonb := case when jsonb_typeof(p_nodes) = 'object' then jsonb_build_array(p_nodes) else p_nodes end;
  v_spec jsonb;
begin
  if jsonb_typeof(v_nodes) is distinct from 'array' or jsonb_array_length(v_nodes) not between 1 and 100 then
    perform hwqueue.refuse('QHA01', 'p_nodes must be a node''s specification or a list of 1 to 100', jsonb_build_object('field', 'p_nodes'),
      'for example {"labels": {"gpu": true}, "capacity": {"cpu_milli": 64000}, "count": 3}');
  end if;
  for v_spec in select n.value from jsonb_array_elements(v_nodes) n loop
    how_many := case when jsonb_typeof(v_spec) = 'object' then coalesce(hwqueue.json_integer(v_spec -> 'count', 'spec.count', 1, 1000000), 1) end;
    node := hwqueue.parse_node_spec('00000000-0000-0000-0000-000000000000',
      case when jsonb_typeof(v_spec) = 'object' then '{"name": "what-if", "instance_id": "what-if"}' || v_spec - 'count' else v_spec end, p_shard);
    node.operator_taints := '[]';
    profile := jsonb_populate_record(null::hwqueue.profile, to_jsonb(node));
    profile.taints := hwqueue.node_taints(node);
    return next;
  end loop;
end
$$;

-- Whether a live node that is not cordoned may run a class and is large enough, as far as nodes have asked since the class came. p_kinds: one live
-- node of every profile and size.
create or replace function hwqueue.is_served(p_class hwqueue.placement_class, p_kinds uuid[], p_now timestamptz, p_shard int) returns boolean
language sql stable
as $$
  select exists (
      select 1 from hwqueue.node n
      join hwqueue.profile_eligibility e on e.shard_id = p_shard and e.profile_id = n.profile_id and e.queue_id = p_class.queue_id
        and e.class_id = p_class.class_id
      where n.shard_id = p_shard and n.node_id = any (p_kinds) and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0)
    or exists (
      select 1 from hwqueue.node_eligibility e
      join hwqueue.node n on n.shard_id = p_shard and n.node_id = e.node_id
      join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = e.node_id
      where e.shard_id = p_shard and e.class_id = p_class.class_id and n.deregistered_at is null and n.cordoned_at is null and hwqueue.is_live(n, s, p_now)
        and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0)
$$;

-- Which pending classes nodes like these could run, if they were there and idle: up to 1,000, those with the most leases first. Changes nothing.
-- p_nodes: a specification as register_node takes it, or a list of up to 100; name and instance_id may be left out, and "count" says how many
-- such nodes (1). pending: leases of the class that are ready, counted to 10,001; fits_at_once: how many of them all these nodes take at once, null
-- when one counts nothing of what they need; is_served_already: a live node matches, as far as nodes have asked for work since the class came.
-- What a class asks about other leases counts as met, and a new node is attested for nothing. For a placement and the nodes that are there: match_nodes.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.what_if(p_nodes jsonb, p_shard int default 0)
returns table (class_id bigint, shard_id int, queue text, words text, pending bigint, oldest_at timestamptz, fits_at_once bigint, is_served_already boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_anchors text[];
  v_kinds uuid[];
  v_now timestamptz;
begin
  perform hwqueue.require_all_tenants(), hwqueue.check_shard(p_shard);
  select array_agg(distinct a) into v_anchors
  from hwqueue.imagined_nodes(p_nodes, p_shard) i
  cross join lateral unnest(hwqueue.profile_anchors((i.node).labels, (i.node).rack)
                            || hwqueue.node_anchors((i.node).node_id, (i.node).resources || (i.node).gpu_ids)) a;
  v_now := hwqueue.clock();
  v_kinds := array(
    select (array_agg(n.node_id))[1]
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and n.cordoned_at is null and hwqueue.is_live(n, s, v_now)
    group by n.profile_id, n.cpu_milli, n.memory_mib, n.custom, n.slots, cardinality(n.gpu_ids), n.gpu_parents, n.core_numa);
  return query
    with imagined as materialized (
      select * from hwqueue.imagined_nodes(p_nodes, p_shard)
    ), wanted as materialized (
      select c from hwqueue.placement_class c
      join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id and q.dropped_at is null
      where c.shard_id = p_shard and c.anchors && v_anchors
        and exists (select 1 from hwqueue.ready r where r.shard_id = p_shard and r.class_id = c.class_id)
    ), fit as materialized (
      select (w.c).class_id, sum(i.how_many * f.fits)::bigint as fits, bool_or(f.fits is null) as is_open
      from wanted w
      cross join imagined i
      cross join lateral (
        select case when hwqueue.suits(w.c, i.profile, (i.node).node_id, (i.node).resources || (i.node).gpu_ids, '{}', (i.node).gpu_ids, (i.node).gpu_parents)
                    then hwqueue.fits_at_once(w.c, i.node) else 0 end as fits offset 0) f
      where f.fits is distinct from 0
      group by 1
    ), counted as materialized (
      select f.class_id, case when not f.is_open then f.fits end as fits, p.pending, p.oldest_at
      from fit f
      cross join lateral (
        select count(*) as pending, min(r.eligible_at) as oldest_at
        from (select e.eligible_at from hwqueue.ready e where e.shard_id = p_shard and e.class_id = f.class_id limit 10001) r) p
      order by p.pending desc, f.class_id limit 1000
    )
    select k.class_id, p_shard, q.name, hwqueue.class_words(c), k.pending, k.oldest_at, k.fits, hwqueue.is_served(c, v_kinds, v_now, p_shard)
    from counted k
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = k.class_id
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = c.queue_id
    order by k.pending desc, k.class_id;
end
$$;
