-- Looks at the fleet for what a class asks of max_skew and prefers, and remembers it: the fleet itself if what is remembered of it holds no
-- longer, the floors of its terms, and how well nodes suit it. A walk over all nodes and places, so it is for when somebody
-- came upon the need of it.
-- Locks: what was remembered before, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.look_around(p_class_id bigint, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_term hwqueue.term;
  v_fleet hwqueue.spread_fleet;
  v_floor hwqueue.spread_floor;
  v_class hwqueue.placement_class;
  v_range hwqueue.class_range;
begin
  lock table hwqueue.spread_floor in row exclusive mode;  -- before the look (prune_counts)
  for v_term in
    select t.*
    from hwqueue.placement_class c
    cross join lateral jsonb_array_elements(c.spread) s
    join hwqueue.term t on t.shard_id = p_shard and t.digest = (c.terms #>> array[s.value ->> 'term', 'digest'])::bigint
    where c.shard_id = p_shard and c.class_id = p_class_id and t.use = 'skew' and not s.value ? 'tally' and t.published_at is not null
  loop
    v_fleet := hwqueue.known_fleet(v_term.spec, v_term.domain, p_now, p_shard);
    if v_fleet.fleet_id is not null then
      v_fleet.places := (
        select f.places from hwqueue.spread_fleet f
        where f.shard_id = p_shard and f.fleet_key = v_fleet.fleet_key and f.fleet_id = v_fleet.fleet_id);
    else
      v_fleet := hwqueue.look_at_fleet(v_term.spec, v_term.domain, p_now, p_shard);
      delete from hwqueue.spread_fleet f where f.ctid = any (array(
        select o.ctid from hwqueue.spread_fleet o
        where o.shard_id = p_shard and o.fleet_key = v_fleet.fleet_key for update skip locked));
      insert into hwqueue.spread_fleet (shard_id, fleet_key, places, place_count, places_digest, dead, doubtful, live_until, unseen, next_xid)
      values (p_shard, v_fleet.fleet_key, v_fleet.places, v_fleet.place_count, v_fleet.places_digest, v_fleet.dead, v_fleet.doubtful,
              v_fleet.live_until, v_fleet.unseen, v_fleet.next_xid);
    end if;
    v_floor := hwqueue.look_at_floor(v_term.term_id, v_fleet.places, p_shard);
    delete from hwqueue.spread_floor f where f.ctid = any (array(
      select o.ctid from hwqueue.spread_floor o
      where o.shard_id = p_shard and o.term_id = v_term.term_id for update skip locked));
    insert into hwqueue.spread_floor (shard_id, term_id, places_digest, least, lowest, unseen, next_xid)
    values (p_shard, v_term.term_id, v_fleet.places_digest, v_floor.least, v_floor.lowest, v_floor.unseen, v_floor.next_xid);
  end loop;
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  v_range := hwqueue.known_range(p_class_id, p_now, p_shard);
  if v_class.preferred <> '[]' and v_range.class_id is null then
    v_range := hwqueue.look_at_range(v_class, p_now, p_shard);
    delete from hwqueue.class_range r where r.ctid = any (array(
      select o.ctid from hwqueue.class_range o where o.shard_id = p_shard and o.class_id = p_class_id for update skip locked));
    insert into hwqueue.class_range (shard_id, class_id, best, worst, best_node, worst_node, live_until, unseen, next_xid)
    values (p_shard, p_class_id, v_range.best, v_range.worst, v_range.best_node, v_range.worst_node,
            v_range.live_until, v_range.unseen, v_range.next_xid);
  end if;
end
$$;
