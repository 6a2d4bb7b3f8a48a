-- How many nodes suit each of these classes, and of those that none suits, what is in the way. A class may
-- run where all of its parts are met: each of its requirements, the taints, isolation, capacity, devices;
-- these are the parts that suits and class_shortage have. What is remembered of it is read by class_fleets.
-- p_most: as in expr_masks.
--   nodes: those that suit it, cordoned and silent ones as well, as a bit string (numbered_nodes).
--   nodes_matching: live and not cordoned, all static rules met, total capacity enough; null: too many
--     different nodes to tell (expr_masks), and nodes are too many.
--   nodes_cordoned and nodes_silent: where that is 0, the same of nodes that are live but cordoned, and of
--     silent ones; null as above, nodes_silent as well where the part in the way is only the worst of those
--     that could be judged.
--   Where nothing matches: the part that is most in the way, near_node, a live node that does not meet it,
--     nodes_near, how many live nodes it alone keeps out (0: they miss more than one part), nodes_meeting,
--     how many live nodes meet it, and nodes_serving, how many live nodes serve queue and task.
create or replace function hwqueue.class_fits(p_class_ids bigint[], p_look hwqueue.fleet_look, p_most int, p_now timestamptz, p_shard int)
returns setof hwqueue.class_fit
language sql stable
as $$
  with served as materialized (
    select v.queue_id, v.task_name, v.mask from hwqueue.served_masks(p_class_ids, (p_look).none, p_now, p_shard) v
  ), ask as materialized (  -- classes that ask the same, and one of them to speak for all
    select min(c.class_id) as ask_id, array_agg(c.class_id) as class_ids, c.required, c.tolerate, v.mask as served
    from hwqueue.placement_class c
    left join served v on v.queue_id = c.queue_id and v.task_name = c.task_name
    where c.shard_id = p_shard and c.class_id = any (p_class_ids)
    group by c.cpu_milli, c.memory_mib, c.gpu_count, c.gpu_milli, c.required, c.tolerate, c.gpu_wanted, c.custom,
      c.cpu_isolation, c.gpu_exclusivity, v.mask
  ), list as materialized (  -- the requirements of many
    select distinct a.required from ask a
  ), required as materialized (
    select l.required, e.value as expr, e.ordinality from list l cross join lateral jsonb_array_elements(l.required) with ordinality e
  ), met as materialized (
    select e.expr, e.mask from hwqueue.expr_masks(array(select distinct r.expr from required r), p_most, (p_look).none, p_now, p_shard) e
  ), listed as materialized (
    select r.required, bit_and(m.mask) as mask, bool_and(m.mask is not null) as is_known
    from required r join met m on m.expr = r.expr group by r.required
  ), tolerated as materialized (
    select t.tolerate, t.mask
    from hwqueue.toleration_masks(array(select distinct a.tolerate from ask a), (p_look).none, p_now, p_shard) t
  ), capacity as materialized (
    select c.*
    from hwqueue.capacity_parts(array(select a.ask_id from ask a), true, (p_look).open, (p_look).none, p_now, p_shard) c
  ), static as materialized (  -- all but capacity, for all that agree on it
    select k.required, k.tolerate, t.mask & coalesce(l.mask, ~(p_look).none) as mask, coalesce(l.is_known, true) as is_known
    from (select distinct a.required, a.tolerate from ask a) k
    join tolerated t on t.tolerate = k.tolerate
    left join listed l on l.required = k.required
  ), able as (
    select c.class_id, bit_and(c.mask) as mask from capacity c group by c.class_id
  ), fit as materialized (
    select f.*, bit_count(f.mask & (p_look).open)::int as matching
    from (
      select a.ask_id, a.class_ids, a.required, a.tolerate, a.served, k.mask & coalesce(c.mask, k.mask) as mask, s.is_known
      from ask a
      join static s on s.required = a.required and s.tolerate = a.tolerate
      cross join lateral (select case when a.served is null then s.mask else s.mask & a.served end as mask) k
      left join able c on c.class_id = a.ask_id) f
  ), part as materialized (
    select row_number() over () as nr, p.*
    from (
      select f.ask_id, 'require' as part, r.expr, m.mask, -r.ordinality as turn
      from fit f join required r on r.required = f.required join met m on m.expr = r.expr where f.matching = 0
      union all
      select f.ask_id, 'taints', null, t.mask, 1
      from fit f join tolerated t on t.tolerate = f.tolerate where f.matching = 0 and t.mask <> ~(p_look).none
      union all
      select f.ask_id, 'served', null, f.served, 2 from fit f where f.matching = 0
      union all
      select f.ask_id, c.part, null, c.mask, 3 from fit f join capacity c on c.class_id = f.ask_id where f.matching = 0
    ) p
    where p.mask is not null
  ), unmet as (  -- for each part, the live nodes that meet all others
    select p.nr, coalesce(bit_and(o.mask), ~(p_look).none) & (p_look).open as others
    from part p left join part o on o.ask_id = p.ask_id and o.nr <> p.nr
    group by p.nr
  ), worst as materialized (
    select distinct on (p.ask_id) p.ask_id, p.part, p.expr, p.mask, u.others, bit_count(u.others)::int as near,
           bit_count(p.mask & (p_look).open)::int as meeting
    from unmet u join part p on p.nr = u.nr
    order by p.ask_id, near desc, meeting, p.turn, p.part
  )
  select c.class_id, f.mask, case when f.is_known or f.matching = 0 then f.matching end,
         -- a part that is not known may keep out more, but no fewer than none
         case when f.matching = 0 and (f.is_known or a.cordoned = 0) then a.cordoned end,
         case when f.matching = 0 and f.is_known then bit_count(f.mask & ~(p_look).live)::int end, w.part, w.expr,
         ((p_look).node_ids)[case when w.near > 0 then position(B'1' in w.others)
                                  else position(B'1' in ~w.mask & (p_look).open) end], w.near, w.meeting,
         case when f.matching = 0 then bit_count(coalesce(f.served, ~(p_look).none) & (p_look).live)::int end
  from fit f
  cross join lateral unnest(f.class_ids) c(class_id)
  cross join lateral (
    select case when f.matching = 0 then bit_count(f.mask & (p_look).live & ~(p_look).open)::int end as cordoned) a
  left join worst w on w.ask_id = f.ask_id
$$;

-- Why a node does not meet one part of a class (class_fits), as class_reasons puts it; nothing for no node.
-- Without p_tells no message: it takes long.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.part_reason(p_part text, p_expr jsonb, p_class hwqueue.placement_class, p_node hwqueue.node, p_tells boolean,
                                               p_now timestamptz, out code text, out message text)
language plpgsql stable set plan_cache_mode = auto
as $$
declare
  v_idle hwqueue.node_load;
  v_lacks int;
  v_room hwqueue.headroom;
begin
  if p_part = 'require' then
    code := hwqueue.expr_reason(p_expr, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids, null,
                                hwqueue.attested_at(p_node, p_now));
    message := case when p_tells then hwqueue.reason_message(code, hwqueue.without_terms(p_expr), p_node.labels) end;
  elsif p_part = 'served' then
    code := 'no_handler';
    message := (
      select hwqueue.unserving_words(u.predicate) from hwqueue.unserving_nodes(p_class, p_class.shard_id) u
      where p_tells and u.node_id = p_node.node_id);
  elsif p_part = 'taints' then
    code := 'untolerated_taint';
    message := case when p_tells then
      hwqueue.reason_message(code, hwqueue.barring_taints(hwqueue.node_taints(p_node), p_class.tolerate) -> 0, '{}') end;
  elsif p_part in ('isolation', 'device') then
    select c.code, c.message into code, message
    from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity, p_node.gpu_share_mode, p_node.gpu_ids, p_node.gpu_parents) c
    limit 1;
  end if;
  if code is null and p_node.node_id is not null then
    code := 'insufficient_capacity';
    if p_tells then
      v_idle := hwqueue.idle_load(p_node);
      v_lacks := hwqueue.class_shortage(p_class, p_node, v_idle);
      v_room := hwqueue.node_headroom(p_node, v_idle);
      message := format('not enough %s: the node never has as much', hwqueue.lacking(v_lacks, p_class, v_room));
    end if;
  end if;
end
$$;
