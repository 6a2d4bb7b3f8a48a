-- Keeps what is remembered of classes and all nodes (class_fleet): finds it out of classes of which nothing is
-- known yet, and with p_again of those that no node suits any more, or that something else keeps out, since
-- one fell silent or was cordoned, and of those whose row is out of date: at most half of these are classes
-- that no node may run, which are told of, the others those that were found out longest ago. At most p_limit
-- classes a call; those that cost more than judge_budget are left to who asks for them. Looks for new ones
-- among p_limit classes after p_after, in turn over the calls. Returns how many it has found out, where to go
-- on, and with p_again the nodes as they are.
-- Locks: as remember_fleets.
create or replace function hwqueue.reap_fleets(p_after bigint, p_limit int, p_again boolean, p_now timestamptz, p_shard int,
                                               out fleets int, out next_after bigint, out look hwqueue.fleet_look)
language plpgsql volatile
as $$
declare
  v_new bigint[];
  v_old bigint[] := '{}';
begin
  select coalesce(case when count(*) = p_limit then max(w.class_id) end, 0),
         coalesce(array_agg(w.class_id) filter (where w.is_wanted and f.digest is null), '{}')
  into next_after, v_new
  from (
    select c.class_id, c.retired_at is null and c.cost <= hwqueue.judge_budget() as is_wanted
    from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after order by c.class_id limit p_limit) w
  left join hwqueue.class_fleet f on f.shard_id = p_shard and f.class_id = w.class_id;
  fleets := 0;
  if v_new = '{}' and not p_again then
    return;
  end if;
  if p_again then
    look := hwqueue.look_at_nodes(p_now, p_shard);
    v_old := array(
      select o.class_id from (
        (select m.class_id, 0 as turn, f.looked_at
         from hwqueue.class_nodes m join hwqueue.class_fleet f on f.shard_id = p_shard and f.class_id = m.class_id
         where m.shard_id = p_shard and m.digest = look.digest and not hwqueue.tells_of(m, look.open)
         order by f.looked_at limit p_limit)
        union all
        (select f.class_id, 1, f.looked_at from hwqueue.class_fleet f
         where f.shard_id = p_shard and (f.unmatched or f.told_at is not null) and f.digest <> look.digest
         order by f.looked_at limit p_limit / 2)
        union all
        (select f.class_id, 2, f.looked_at from hwqueue.class_fleet f
         where f.shard_id = p_shard and f.digest <> look.digest
         order by f.looked_at limit p_limit)) o
      group by o.class_id order by min(o.turn), min(o.looked_at) limit p_limit - cardinality(v_new));
  end if;
  if v_new || v_old <> '{}' then
    fleets := hwqueue.remember_fleets(v_new || v_old, p_now, p_shard);
    if fleets is null then  -- another session is at it
      fleets := 0;
      next_after := p_after;
    end if;
  end if;
end
$$;
