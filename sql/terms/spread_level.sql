-- max_skew by what is remembered of the fleet (spread_fleet).

-- Whether one more lease of a class would break a max_skew in its place: spread_exceeded, null, or 'unlooked' when what is remembered does
-- not tell.
-- Locks: none; as spread_reason.
create or replace function hwqueue.level_reason(p_spread jsonb, p_fact jsonb, p_digest bigint, p_now timestamptz, p_shard int) returns text
language plpgsql stable
as $$
declare
  v_term hwqueue.term;
  v_fleet hwqueue.spread_fleet;
  v_floor record;
  v_gone jsonb;
  v_level bigint;
begin
  select t.* into v_term from hwqueue.term t where t.shard_id = p_shard and t.digest = p_digest;
  v_fleet := hwqueue.known_fleet(v_term.spec, v_term.domain, p_now, p_shard);
  if v_fleet.fleet_id is null then
    return 'unlooked';
  end if;
  v_gone := hwqueue.gone_leases(v_term.term_id, v_fleet.dead, p_now, p_shard);
  -- how many each place must have
  v_level := (p_fact ->> 'held')::bigint - coalesce((v_gone ->> (p_fact ->> 'value'))::bigint, 0)
    + case when (p_fact -> 'self')::boolean then 1 else 0 end - (p_spread ->> 'max_skew')::bigint;
  if v_level <= 0 then
    return null;
  elsif v_fleet.place_count < coalesce((p_spread ->> 'min_domains')::int, 1) then
    return 'spread_exceeded';
  end if;
  -- one statement, one snapshot: prune_counts removes what the floors that are there know of
  select f.places_digest, f.least, f.lowest, f.next_xid, array(
    select k.domain from hwqueue.term_count k
    where k.shard_id = p_shard and k.term_id = v_term.term_id and k.dropped_xid >= f.next_xid
    union all
    select k.domain from hwqueue.term_count k
    where k.shard_id = p_shard and k.term_id = v_term.term_id and k.dropped_xid = any (f.unseen)
    limit 129) as dropped into v_floor
  from (
    select o.* from hwqueue.spread_floor o
    where o.shard_id = p_shard and o.term_id = v_term.term_id order by o.floor_id desc limit 1) f;
  if v_floor.places_digest is distinct from v_fleet.places_digest or hwqueue.is_old_floor(v_floor.next_xid)
     or cardinality(v_floor.dropped) > 128 then
    return 'unlooked';
  elsif exists (
      select 1
      from (
        select l as place, true as is_live from unnest(v_floor.lowest) l where v_floor.least < v_level
        union all
        select d, false from unnest(v_floor.dropped) d
        union all
        select g, false from jsonb_object_keys(v_gone) g
      ) s
      cross join lateral hwqueue.read_count(v_term.term_id, s.place, p_shard) n
      where n.leases - coalesce((v_gone ->> s.place)::bigint, 0) < v_level
        and (s.is_live or s.place = any (array(
          select unnest(f.places) from hwqueue.spread_fleet f
          where f.shard_id = p_shard and f.fleet_key = v_fleet.fleet_key and f.fleet_id = v_fleet.fleet_id)))) then
    return 'spread_exceeded';
  end if;
  return case when v_floor.least < v_level then 'unlooked' end;
end
$$;

-- Running leases of a term that have been counted and do not count for spread, by place: {PLACE: leases}. Those that are asked to stop, have
-- expired, or are on one of these dead nodes.
create or replace function hwqueue.gone_leases(p_term_id bigint, p_dead uuid[], p_now timestamptz, p_shard int) returns jsonb
language plpgsql stable
as $$
declare
  v_wanted jsonb := jsonb_build_array(jsonb_build_object('t', p_term_id, 'n', 1));
begin
  return (
    select coalesce(jsonb_object_agg(g.place, g.leases), '{}')
    from (
      select d.value ->> 'd' as place, count(distinct l.lease_id) as leases
      from (
        select c.lease_id, c.counted from hwqueue.claim c
        where c.shard_id = p_shard and c.stop_requested_at <= p_now and c.counted @> v_wanted
        union all
        select c.lease_id, c.counted from hwqueue.claim c
        where c.shard_id = p_shard and c.check_at between hwqueue.claims_from(p_shard) and p_now and c.expires_at <= p_now
          and c.counted @> v_wanted
        union all
        select c.lease_id, c.counted from hwqueue.claim c
        where c.shard_id = p_shard and c.node_id = any (p_dead) and c.counted @> v_wanted
      ) l
      cross join lateral jsonb_array_elements(l.counted) d
      where (d.value -> 't')::bigint = p_term_id
      group by 1
    ) g);
end
$$;
