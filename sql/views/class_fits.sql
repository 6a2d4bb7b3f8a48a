-- How many nodes suit each of these classes, and of those that none suits, what is in the way.
-- nodes_matching: live and not cordoned, all static rules met, total capacity enough; null: too many different nodes to tell (expr_masks).
-- nodes_cordoned and nodes_silent: the same of nodes that are live but cordoned, and of silent ones. room: those of nodes_matching that have room now, as a bit string (numbered_nodes).
-- Where nothing matches: code and message for the part of the class that is most in the way, and nodes_near, how many live nodes it
-- alone keeps out (0: they miss more than one part).
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.class_fits(p_class_ids bigint[], p_now timestamptz, p_shard int)
returns table (class_id bigint, nodes_matching int, nodes_cordoned int, nodes_silent int, nodes_near int, room bit varying, code text, message text)
language plpgsql stable
as $$
declare
  v_none bit varying;
  v_open bit varying;
  v_live bit varying;
begin
  select repeat('0', count(*)::int)::bit varying, coalesce(string_agg(n.is_open::int::text, '' order by n.number), '')::bit varying,
         coalesce(string_agg(n.is_live::int::text, '' order by n.number), '')::bit varying
  into v_none, v_open, v_live
  from hwqueue.numbered_nodes(p_now, p_shard) n;
  return query
    with part as materialized (
      select row_number() over () as nr, p.* from hwqueue.class_parts(p_class_ids, v_open, v_none, p_now, p_shard) p
    ), fit as materialized (
      select a.ask_id, a.class_ids, a.class, coalesce(f.mask, ~v_none) as mask, coalesce(f.room, ~v_none) & v_open as room, coalesce(f.is_known, true) as is_known
      from hwqueue.class_asks(p_class_ids, p_shard) a
      left join (
        select p.ask_id, bit_and(p.mask) as mask, bit_and(coalesce(p.room, p.mask)) as room, bool_and(p.mask is not null) as is_known
        from part p group by p.ask_id) f on f.ask_id = a.ask_id
    ), unmet as materialized (  -- for each part, the live nodes that meet all others
      select p.nr, p.ask_id, bit_count(coalesce(bit_and(o.mask), ~v_none) & v_open) as near, position(B'1' in coalesce(bit_and(o.mask), ~v_none) & v_open) as first
      from fit f
      join part p on p.ask_id = f.ask_id
      left join part o on o.ask_id = p.ask_id and o.nr <> p.nr
      where bit_count(f.mask & v_open) = 0 and p.mask is not null
      group by p.nr, p.ask_id
    ), worst as (
      select distinct on (u.ask_id) u.ask_id, u.near, p.part, p.expr, bit_count(p.mask & v_open) as meeting,
             case when u.near > 0 then u.first else position(B'1' in ~p.mask & v_open) end - 1 as number
      from unmet u join part p on p.nr = u.nr
      order by u.ask_id, u.near desc, bit_count(p.mask & v_open), p.nr
    )
    select c.class_id, case when f.is_known or bit_count(f.mask & v_open) = 0 then bit_count(f.mask & v_open)::int end,
           bit_count(f.mask & v_live & ~v_open)::int, bit_count(f.mask & ~v_live)::int, coalesce(w.near, 0)::int, f.room::bit varying, r.code,
           case when w.near > 0 then format('%s live nodes would do but for one thing: on %s, %s', w.near, (n.node).name, r.message)
                when w.meeting = 0 then format('no live node will do: on %s, %s', (n.node).name, r.message)
                else format('no live node has all that is asked, and only %s have this: on %s, %s', w.meeting, (n.node).name, r.message) end
    from fit f
    cross join lateral unnest(f.class_ids) c(class_id)
    left join worst w on w.ask_id = f.ask_id
    left join hwqueue.numbered_nodes(p_now, p_shard) n on n.number = w.number
    left join lateral hwqueue.part_reason(w.part, w.expr, f.class, n.node, n.attested) r on true;
end
$$;

-- Why a node does not meet one part of a class (class_parts), as class_reasons puts it; nothing for no node.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.part_reason(p_part text, p_expr jsonb, p_class hwqueue.placement_class, p_node hwqueue.node, p_attested text[],
                                               out code text, out message text)
language plpgsql stable
as $$
begin
  if p_node.node_id is null then
    return;
  end if;
  case p_part
    when 'require' then
      code := hwqueue.expr_reason(p_expr, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids, null, p_attested);
      message := hwqueue.reason_message(code, hwqueue.without_terms(p_expr), p_node.labels);
    when 'taints' then
      code := 'untolerated_taint';
      message := hwqueue.reason_message(code, hwqueue.barring_taints(hwqueue.node_taints(p_node), p_class.tolerate) -> 0, '{}');
    else
      select c.code, c.message into code, message
      from hwqueue.isolation_conflicts(p_class, p_node.cpu_isolation, p_node.gpu_exclusivity, p_node.gpu_share_mode, p_node.gpu_ids, p_node.gpu_parents) c
      limit 1;
      if not found then
        code := 'insufficient_capacity';
        message := format('not enough %s: the node never has as much',
          hwqueue.lacking(hwqueue.class_shortage(p_class, p_node, hwqueue.idle_load(p_node)), p_class, hwqueue.node_headroom(p_node, hwqueue.idle_load(p_node))));
      end if;
  end case;
end
$$;
