-- What is remembered of the fleet for max_skew, so that a claim need not walk over all nodes. Two things, each with what its reader had seen
-- (common/seen.sql):
--   spread_fleet: the places of live nodes, for a domain and a kind of nodes. It holds as long as no node has moved or come
--     back (node_state.moved_xid) and none can have died (live_until). A sign of life may be committed long after it was given: then its node
--     was alive to itself and dead to the look, and says nothing of coming back. So the look names all that may yet live by such a sign
--     (doubtful): it was given within their timeout, and is good for another one.
--   spread_floor: the fewest leases of a term in one of those places. Claims only raise that; where leases have ended since, the count says
--     so (term_count.dropped_xid). So it takes a look at those places to know that the floor still bears.

-- Whether a node has moved or come back in a transaction that a look knew nothing of.
create or replace function hwqueue.has_moved(p_unseen xid8[], p_next_xid xid8, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return exists (select 1 from hwqueue.node_state s where s.shard_id = p_shard and s.moved_xid >= p_next_xid)
      or exists (select 1 from hwqueue.node_state s where s.shard_id = p_shard and s.moved_xid = any (p_unseen));
end
$$;

-- What spread_fleet is found by.
create or replace function hwqueue.fleet_key(p_spec jsonb, p_domain text) returns bigint
language sql immutable parallel safe
as $$ select hashtextextended(p_domain || coalesce((p_spec -> 'nodes')::text, ''), 0) $$;

-- The fleet as it is remembered, without its places; null when that holds no longer.
create or replace function hwqueue.known_fleet(p_spec jsonb, p_domain text, p_now timestamptz, p_shard int) returns hwqueue.spread_fleet
language plpgsql stable
as $$
declare
  v_fleet hwqueue.spread_fleet;
begin
  select f.shard_id, f.fleet_key, f.fleet_id, null, f.place_count, f.places_digest, f.dead, f.doubtful, f.live_until, f.unseen, f.next_xid into v_fleet
  from hwqueue.spread_fleet f
  where f.shard_id = p_shard and f.fleet_key = hwqueue.fleet_key(p_spec, p_domain) order by f.fleet_id desc limit 1;
  return case when v_fleet.live_until > p_now and not hwqueue.has_moved(v_fleet.unseen, v_fleet.next_xid, p_shard)
                   and not exists (
                     select 1 from hwqueue.node_state s
                     where s.shard_id = p_shard and s.node_id = any (v_fleet.doubtful) and s.seen_at + s.heartbeat_timeout > p_now)
              then v_fleet end;
end
$$;

-- The fleet as it is: a walk over all nodes.
create or replace function hwqueue.look_at_fleet(p_spec jsonb, p_domain text, p_now timestamptz, p_shard int) returns hwqueue.spread_fleet
language plpgsql stable set enable_seqscan = on set enable_hashjoin = on set enable_sort = on set plan_cache_mode = force_custom_plan
  set enable_nestloop = off  -- all nodes: by hash, whatever the statistics say
as $$
declare
  v_fleet hwqueue.spread_fleet;
begin
  select coalesce(array_agg(distinct l.place) filter (where l.is_live), '{}'),
         coalesce(array_agg(l.node_id) filter (where l.has_died), '{}'),
         coalesce(array_agg(l.node_id) filter (where not l.is_live and l.doubtful_until > p_now), '{}'),
         coalesce(min(l.live_until) filter (where l.is_live), 'infinity'), (select x.unseen from hwqueue.seen_now() x),
         (select x.next_xid from hwqueue.seen_now() x)
  into v_fleet.places, v_fleet.dead, v_fleet.doubtful, v_fleet.live_until, v_fleet.unseen, v_fleet.next_xid
  from (
    select n.node_id, hwqueue.domain_value(p_domain, n.node_id, p.rack, p.labels) as place, s.seen_at + n.heartbeat_timeout as live_until,
           s.seen_at + 2 * n.heartbeat_timeout as doubtful_until,
           hwqueue.is_live(n, s, p_now) as is_live,
           -- one in doubt may have claims that are not committed
           not hwqueue.is_live(n, s, p_now) and (s.seen_at + 2 * n.heartbeat_timeout > p_now or exists (
             select 1 from hwqueue.claim c where c.shard_id = p_shard and c.node_id = n.node_id)) as has_died
    from (
      select k.profile_id, k.rack, k.labels from hwqueue.profile k
      where k.shard_id = p_shard and (not p_spec ? 'nodes' or hwqueue.speaks_of(p_spec -> 'nodes', k.rack, k.labels)) offset 0) p
    join hwqueue.node n on n.shard_id = p_shard and n.profile_id = p.profile_id and n.deregistered_at is null
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
  ) l
  where l.place is not null;
  v_fleet.shard_id := p_shard;
  v_fleet.fleet_key := hwqueue.fleet_key(p_spec, p_domain);
  v_fleet.place_count := cardinality(v_fleet.places);
  v_fleet.places_digest := hashtextextended(v_fleet.places::text, 0);
  return v_fleet;
end
$$;

-- The fewest leases of a term in one of these places: a walk over all of them.
create or replace function hwqueue.look_at_floor(p_term_id bigint, p_places text[], p_shard int) returns hwqueue.spread_floor
language plpgsql stable set enable_seqscan = on set enable_hashjoin = on set enable_sort = on set plan_cache_mode = force_custom_plan
as $$
declare
  v_floor hwqueue.spread_floor;
begin
  select coalesce(f.least, 0), coalesce(f.lowest, '{}'), x.unseen, x.next_xid
  into v_floor.least, v_floor.lowest, v_floor.unseen, v_floor.next_xid
  from hwqueue.seen_now() x
  left join (
    select coalesce(r.leases, 0) as least, (array_agg(p.place))[1 : 64] as lowest
    from unnest(p_places) p(place)
    left join (
      select k.domain, sum(k.leases) as leases from hwqueue.term_count k
      where k.shard_id = p_shard and k.term_id = p_term_id group by k.domain) r on r.domain = p.place
    group by 1 order by 1 limit 1
  ) f on true;
  v_floor.shard_id := p_shard;
  v_floor.term_id := p_term_id;
  return v_floor;
end
$$;
