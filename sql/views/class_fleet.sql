-- A cache of class_fits, one row for each class. A row is valid while its digest equals that of look_at_nodes; of
-- a class without a valid row class_fits is asked. So nothing has to be invalidated when a node changes, and what
-- is counted is exact.

-- What class_fits says of these classes, remembered or found out now, counted for the nodes as they are now.
-- Of a class that nothing suits any more what is in the way has to be found out; else it is told of the part
-- that was most in the way when it was found out.
create or replace function hwqueue.class_fleets(p_class_ids bigint[], p_look hwqueue.fleet_look, p_now timestamptz, p_shard int)
returns setof hwqueue.class_match
language plpgsql stable
as $$
declare
  v_known bigint[] := array(
    select m.class_id from hwqueue.class_nodes m
    where m.shard_id = p_shard and m.class_id = any (p_class_ids) and m.digest = p_look.digest and m.is_known
      and hwqueue.tells_of(m, p_look.open));
  v_others bigint[] := array(select u.class_id from unnest(p_class_ids) u(class_id) except select k.class_id from unnest(v_known) k(class_id));
begin
  return query
    select c.* from hwqueue.class_nodes m cross join lateral hwqueue.class_match(m, p_look) c
    where m.shard_id = p_shard and m.class_id = any (v_known);
  if v_others <> '{}' then
    return query
      select c.* from hwqueue.class_fits(v_others, p_look, 100000, p_now, p_shard) f
      cross join lateral hwqueue.class_match(f, p_look) c;
  end if;
end
$$;

-- Whether what was found out of a class with this digest tells of it with these nodes live and not cordoned:
-- one suits it, or none did then, and the part that was in the way still is of one of them.
create or replace function hwqueue.tells_of(p_fit hwqueue.class_nodes, p_open bit varying) returns boolean
language sql immutable parallel safe
as $$
  select bit_count((p_fit).nodes & p_open) > 0
    or (p_fit).unmatched and (bit_count(p_open) = 0 or bit_count(~(p_fit).meeting & p_open) > 0)
$$;

-- What class_fits says of these classes now, and the nodes that it says it of. Stable: looks at them once, in
-- the snapshot of its caller's statement, or what is found out would be written down under the digest of
-- other nodes. For a few hundred classes upkeep spends a fifth of what one read may.
create or replace function hwqueue.find_fleets(p_class_ids bigint[], p_now timestamptz, p_shard int,
                                               out fits hwqueue.class_nodes[], out registered int)
language plpgsql stable
as $$
declare
  v_look hwqueue.fleet_look := hwqueue.look_at_nodes(p_now, p_shard);
begin
  fits := array(select f from hwqueue.class_fits(p_class_ids, v_look, greatest(20000, 40 * cardinality(p_class_ids)), p_now, p_shard) f);
  registered := v_look.registered;
end
$$;

-- Finds that out of these classes, remembers it, and forgets those that are gone; of one that costs too much
-- to tell, the estimate of its share alone (refresh_reach). Returns their number; null when another session
-- is at it, then nothing is done. What another session holds of a class, prune for one, is left as it is.
-- Locks: the shard's row and those of class_fleet, skip locked.
create or replace function hwqueue.remember_fleets(p_class_ids bigint[], p_now timestamptz, p_shard int) returns int
language plpgsql volatile
  -- all nodes and hundreds of classes: by hash, whatever the statistics say
  set plan_cache_mode = force_custom_plan set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on
  set enable_bitmapscan = on set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
  v_found record;
  v_held bigint[];
  v_ids bigint[];
begin
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if not found then
    return null;
  end if;
  v_held := array(
    select f.class_id from hwqueue.class_fleet f
    where f.shard_id = p_shard and f.class_id = any (p_class_ids) for no key update skip locked);
  -- those of which there is no row yet: only who has the shard's row writes one
  v_ids := v_held || array(
    select u.class_id from unnest(p_class_ids) u(class_id)
    left join hwqueue.class_fleet f on f.shard_id = p_shard and f.class_id = u.class_id
    where f.class_id is null);
  -- of classes that went while what was found out of them was not committed yet
  delete from hwqueue.class_fleet f
  where f.shard_id = p_shard and f.class_id = any (v_ids)
    and not exists (select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = f.class_id);
  select f.* into v_found from hwqueue.find_fleets(v_ids, p_now, p_shard) f;
  insert into hwqueue.class_fleet (shard_id, class_id, share, looked_at, digest, unmatched)
  select p_shard, f.class_id, coalesce(bit_count(f.nodes) / nullif(v_found.registered, 0)::double precision, 0), p_now,
         f.digest, f.unmatched
  from unnest(v_found.fits) f
  on conflict (shard_id, class_id) do update
  set share = excluded.share, looked_at = excluded.looked_at, digest = excluded.digest, unmatched = excluded.unmatched;
  delete from hwqueue.class_nodes m where m.shard_id = p_shard and m.class_id = any (v_ids);
  insert into hwqueue.class_nodes select f.* from unnest(v_found.fits) f;
  perform hwqueue.refresh_reach(array(select f.class_id from unnest(v_found.fits) f where not f.is_known), p_shard);
  return cardinality(v_found.fits);
end
$$;
