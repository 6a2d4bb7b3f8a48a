-- The cached fleet, for max_skew and for patience, so that a claim need not scan all nodes.
--
-- Example: max_skew 1 by zone. Zones a, b and c have live nodes, and the fewest leases of the term in a zone
-- are 4: spread_fleet has the zones, spread_floor the 4 (cached_skew_reason, spread.sql).
--
-- The invariant: a cached fact is used only if nothing that its reader had not seen (unseen and next_xid,
-- base/session.sql) can have changed it:
--   - spread_fleet: the places of live nodes, for a domain and a kind of nodes. It holds as long as no
--     node has moved (node_state.moved_xid) and none can have died (live_until). A node that looks silent
--     may have sent a heartbeat in time that is not committed yet. It is live once that commits, without
--     having moved. So the scan lists such nodes (the column doubtful): those that have been silent for
--     less than two heartbeat timeouts. The cached fleet is not used once one of them is live.
--   - spread_floor: the fewest leases of a term in one of those places. Claims only raise that minimum.
--     Where leases have ended since, the counter says so (term_counter.dropped_xid).
--   - class_range: how well the best and the worst node suit a class, for patience. It holds as long.

-- Caches what a class asks of max_skew and prefers: the fleet, if the cached one no longer holds, the floors
-- of its terms, and how well nodes suit it. It reads all nodes and places: call it on a cache miss only.
-- Locks: the rows cached before, skip locked.
create or replace function hwqueue.refresh_fleet_cache(p_class_id bigint, p_now timestamptz) returns void
language plpgsql volatile set enable_seqscan = on set enable_hashjoin = on set enable_sort = on
  set plan_cache_mode = force_custom_plan
as $$
declare
  v_term hwqueue.affinity_term;
  v_fleet hwqueue.spread_fleet;
  v_class hwqueue.placement_class;
  v_range hwqueue.class_range;
begin
  lock table hwqueue.spread_floor in row exclusive mode;  -- before the scan, for prune_terms
  for v_term in
    select t.*
    from hwqueue.placement_class c
    cross join lateral jsonb_array_elements(c.spread) s
    join hwqueue.affinity_term t on t.digest = (c.terms #>> array[s.value ->> 'term', 'digest'])::bigint
    where c.class_id = p_class_id and t.use = 'skew' and not s.value ? 'tally' and t.published_at is not null
  loop
    v_fleet := hwqueue.cached_fleet(v_term.spec, v_term.domain, p_now);
    if v_fleet.fleet_id is not null then
      v_fleet.places := (
        select f.places from hwqueue.spread_fleet f
        where f.fleet_key = v_fleet.fleet_key and f.fleet_id = v_fleet.fleet_id);
    else
      v_fleet := hwqueue.scan_fleet(v_term.spec, v_term.domain, p_now);
      v_fleet.fleet_id := nextval('hwqueue.spread_fleet_fleet_id_seq');
      delete from hwqueue.spread_fleet f where f.ctid = any (array(
        select o.ctid from hwqueue.spread_fleet o
        where o.fleet_key = v_fleet.fleet_key for update skip locked));
      insert into hwqueue.spread_fleet overriding system value select v_fleet.*;
    end if;
    delete from hwqueue.spread_floor f where f.ctid = any (array(
      select o.ctid from hwqueue.spread_floor o where o.term_id = v_term.term_id for update skip locked));
    insert into hwqueue.spread_floor (term_id, places_digest, least, lowest, unseen, next_xid)
    select v_term.term_id, v_fleet.places_digest, coalesce(f.least, 0), coalesce(f.lowest, '{}'),
           x.unseen, x.next_xid
    from hwqueue.visible_now() x
    left join (
      select coalesce(r.leases, 0) as least, (array_agg(p.place))[1 : 64] as lowest
      from unnest(v_fleet.places) p(place)
      left join (
        select k.place, sum(k.leases) as leases from hwqueue.term_counter k
        where k.term_id = v_term.term_id group by k.place) r on r.place = p.place
      group by 1 order by 1 limit 1) f on true;
  end loop;
  select c.* into v_class from hwqueue.placement_class c where c.class_id = p_class_id;
  v_range := hwqueue.cached_range(p_class_id, p_now);
  if v_class.preferred <> '[]' and v_range.class_id is null then
    v_range := hwqueue.scan_range(v_class, p_now);
    delete from hwqueue.class_range r where r.ctid = any (array(
      select o.ctid from hwqueue.class_range o where o.class_id = p_class_id for update skip locked));
    v_range.range_id := nextval('hwqueue.class_range_range_id_seq');
    insert into hwqueue.class_range overriding system value select v_range.*;
  end if;
end
$$;

-- How well the best and the worst node suit a class, from the cache; null when that no longer holds. Silence
-- of other nodes than these two makes no difference.
create or replace function hwqueue.cached_range(p_class_id bigint, p_now timestamptz)
returns hwqueue.class_range
language plpgsql stable
as $$
declare
  v_range hwqueue.class_range;
begin
  select r.* into v_range from hwqueue.class_range r
  where r.class_id = p_class_id order by r.range_id desc limit 1;
  return case
    when v_range.live_until > p_now
      and not hwqueue.has_fleet_changed(v_range.unseen, v_range.next_xid) and not exists (
      select 1 from hwqueue.node_state s where s.node_id = any (array[v_range.best_node, v_range.worst_node])
        and (s.seen_at + s.heartbeat_timeout > p_now) is not true) then v_range end;
end
$$;

-- The highest and the lowest affinity for a class among live, uncordoned nodes that have room for it
-- when idle; null when there are none. Valid for one second while a silent node may still turn out to be
-- alive: its heartbeat was given in time and is not committed (scan_fleet).
create or replace function hwqueue.scan_range(p_class hwqueue.placement_class, p_now timestamptz)
returns hwqueue.class_range
language plpgsql stable
as $$
declare
  v_named uuid[] := array(  -- nodes that its preferences name
    select (t #>> '{}')::uuid from jsonb_path_query(p_class.preferred, 'lax $[*].when.**.node[*]') t
    where jsonb_typeof(t) = 'string' and t #>> '{}' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
  v_range hwqueue.class_range;
begin
  with able as materialized (
    select e.affinity, e.profile_id, e.node_id from hwqueue.eligibility e
    where e.class_id = p_class.class_id
    union all  -- profiles that have not seen the class yet; a class that costs much is left to claims
    select hwqueue.fixed_affinity(p_class, p.labels, p.rack, null, '{}', p.taints), p.profile_id, null
    from hwqueue.profile p
    where p.judged_as is null and p_class.cost <= 500
      and (p_class.is_pinned or hwqueue.is_unseen(p_class.created_xid, p.classes_unseen, p.classes_seen))
      and hwqueue.suits(p_class, p, null, '{}')
    union all
    select hwqueue.fixed_affinity(p_class, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids, p.taints),
           null, n.node_id
    from hwqueue.node n
    join hwqueue.profile p on p.profile_id = n.profile_id
    where n.node_id = any (v_named) and p_class.cost <= 500
      and hwqueue.suits(p_class, p, n.node_id, n.resources || n.gpu_ids, hwqueue.attested_at(n, p_now),
          n.gpu_ids, n.gpu_parents)
  )
  select b.affinity, w.affinity, b.node_id, w.node_id, coalesce(d.until, 'infinity'), x.unseen, x.next_xid
  into v_range.best, v_range.worst, v_range.best_node, v_range.worst_node, v_range.live_until,
    v_range.unseen, v_range.next_xid
  from hwqueue.visible_now() x
  left join lateral (
    select p_now + interval '1 second' as until from hwqueue.node_state s
    where s.seen_at + s.heartbeat_timeout <= p_now
      and s.seen_at + 2 * s.heartbeat_timeout > p_now limit 1) d on true
  -- from the best and from the worst, to the first that lives
  left join lateral (
    select a.affinity, l.node_id from (select * from able order by affinity desc offset 0) a
    cross join lateral hwqueue.able_node(p_class, a.profile_id, v_named, a.node_id, p_now) l(node_id)
    where l.node_id is not null limit 1) b on true
  left join lateral (
    select a.affinity, l.node_id from (select * from able order by affinity offset 0) a
    cross join lateral hwqueue.able_node(p_class, a.profile_id, v_named, a.node_id, p_now) l(node_id)
    where l.node_id is not null limit 1) w on true;
  v_range.class_id := p_class.class_id;
  return v_range;
end
$$;

-- A node that lives, is not cordoned and has room for a class when idle: one of a profile, without the
-- nodes in p_without, or p_node. Null when there is none.
create or replace function hwqueue.able_node(p_class hwqueue.placement_class, p_profile_id bigint,
  p_without uuid[], p_node uuid, p_now timestamptz) returns uuid
language plpgsql stable
as $$ begin
  return (
    select i.node_id
    from (
      select x.node_id from hwqueue.node x
      where x.profile_id = any (hwqueue.profiles_judged_as(p_profile_id)) and x.node_id <> all (p_without)
      union all
      select p_node) i
    join hwqueue.node n on n.node_id = i.node_id
    join hwqueue.node_state s on s.node_id = i.node_id
    where n.deregistered_at is null and n.cordoned_at is null and hwqueue.is_live(n, s, p_now)
      and hwqueue.class_shortage(p_class, n, hwqueue.idle_load(n)) = 0
    limit 1);
end $$;

-- True if a node has moved or come back in a transaction that a scan had not seen.
create or replace function hwqueue.has_fleet_changed(p_unseen xid8[], p_next_xid xid8) returns boolean
language plpgsql stable
as $$ begin
  return exists (select 1 from hwqueue.node_state s where s.moved_xid >= p_next_xid)
    or exists (select 1 from hwqueue.node_state s where s.moved_xid = any (p_unseen));
end $$;

-- The key of spread_fleet: a digest of a domain and a kind of nodes.
create or replace function hwqueue.fleet_key(p_spec jsonb, p_domain text) returns bigint
language sql immutable parallel safe
as $$ select hashtextextended(p_domain || coalesce((p_spec -> 'nodes')::text, ''), 0) $$;

-- The cached fleet, without its places; null when it no longer holds.
create or replace function hwqueue.cached_fleet(p_spec jsonb, p_domain text, p_now timestamptz)
returns hwqueue.spread_fleet
language plpgsql stable
as $$
declare
  v_fleet hwqueue.spread_fleet;
begin
  select f.fleet_key, f.fleet_id, null, f.place_count, f.places_digest, f.dead, f.doubtful,
         f.live_until, f.unseen, f.next_xid into v_fleet
  from hwqueue.spread_fleet f
  where f.fleet_key = hwqueue.fleet_key(p_spec, p_domain)
  order by f.fleet_id desc limit 1;
  return case
    when v_fleet.live_until > p_now
      and not hwqueue.has_fleet_changed(v_fleet.unseen, v_fleet.next_xid) and not exists (
      select 1 from hwqueue.node_state s
      where s.node_id = any (v_fleet.doubtful) and s.seen_at + s.heartbeat_timeout > p_now) then v_fleet end;
end
$$;

-- The fleet as it is now. Reads all nodes.
create or replace function hwqueue.scan_fleet(p_spec jsonb, p_domain text, p_now timestamptz)
returns hwqueue.spread_fleet
language plpgsql stable set enable_seqscan = on set enable_hashjoin = on set enable_sort = on
  set plan_cache_mode = force_custom_plan
  set enable_nestloop = off  -- it reads all nodes: by hash, whatever the statistics say
as $$
declare
  v_fleet hwqueue.spread_fleet;
  v_scope jsonb := hwqueue.scope_exprs(p_spec -> 'nodes');
begin
  select coalesce(array_agg(distinct l.place) filter (where l.is_live), '{}'),
         coalesce(array_agg(l.node_id) filter (where l.has_died), '{}'),
         coalesce(array_agg(l.node_id) filter (where not l.is_live and l.doubtful_until > p_now), '{}'),
         coalesce(min(l.live_until) filter (where l.is_live), 'infinity'),
         (select x.unseen from hwqueue.visible_now() x),
         (select x.next_xid from hwqueue.visible_now() x)
  into v_fleet.places, v_fleet.dead, v_fleet.doubtful, v_fleet.live_until, v_fleet.unseen, v_fleet.next_xid
  from (
    select n.node_id, hwqueue.domain_value(p_domain, n.node_id, p.rack, p.labels) as place,
           s.seen_at + n.heartbeat_timeout as live_until,
           s.seen_at + 2 * n.heartbeat_timeout as doubtful_until,
           hwqueue.is_live(n, s, p_now) as is_live,
           -- a node in doubt may have claims that are not committed
           not hwqueue.is_live(n, s, p_now) and (s.seen_at + 2 * n.heartbeat_timeout > p_now or exists (
             select 1 from hwqueue.claim c where c.node_id = n.node_id)) as has_died
    from (
      select k.profile_id, k.rack, k.labels from hwqueue.profile k
      where not p_spec ? 'nodes' or hwqueue.expr_reason(v_scope, k.labels, k.rack, null, '{}', null) is null
      offset 0) p
    join hwqueue.node n on n.profile_id = p.profile_id and n.deregistered_at is null
    join hwqueue.node_state s on s.node_id = n.node_id
  ) l
  where l.place is not null;
  v_fleet.fleet_key := hwqueue.fleet_key(p_spec, p_domain);
  v_fleet.place_count := cardinality(v_fleet.places);
  v_fleet.places_digest := hashtextextended(v_fleet.places::text, 0);
  return v_fleet;
end
$$;
