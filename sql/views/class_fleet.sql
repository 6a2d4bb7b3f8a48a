-- A cache of class_fits, one row for each class. A row is valid while its digest equals that of look_at_nodes; of
-- a class without a valid row class_fits is asked. So nothing has to be invalidated when a node changes, and what
-- is read is as exact as what is found out.

-- Whether class_fits could judge all parts of a class that such nodes match: else it gives what is certain.
create or replace function hwqueue.is_known_in_full(p_nodes_matching int, p_nodes_silent int) returns boolean
language sql immutable parallel safe
as $$ select coalesce(p_nodes_matching > 0 or p_nodes_silent is not null, false) $$;

-- What class_fits says of these classes, remembered or found out now. nodes: with p_with_nodes, else perhaps
-- null; of a class that is not known in full those that no known part keeps out.
create or replace function hwqueue.class_fleets(p_class_ids bigint[], p_look hwqueue.fleet_look, p_with_nodes boolean,
                                                p_now timestamptz, p_shard int)
returns setof hwqueue.class_fit
language plpgsql stable
as $$
declare
  v_others bigint[] := array(
    select u.class_id from unnest(p_class_ids) u(class_id)
    left join hwqueue.class_fleet f on f.shard_id = p_shard and f.class_id = u.class_id
      and f.digest = p_look.digest and hwqueue.is_known_in_full(f.nodes_matching, f.nodes_silent)
    left join hwqueue.class_nodes m on p_with_nodes and m.shard_id = p_shard and m.class_id = u.class_id
      and m.digest = p_look.digest
    where f.class_id is null or p_with_nodes and m.class_id is null);
begin
  return query
    select f.class_id, m.nodes, f.nodes_matching, f.nodes_cordoned, f.nodes_silent, f.part, f.expr, f.near_node, f.nodes_near,
           f.nodes_meeting, f.nodes_serving
    from hwqueue.class_fleet f
    left join hwqueue.class_nodes m on p_with_nodes and m.shard_id = p_shard and m.class_id = f.class_id
    where f.shard_id = p_shard and f.class_id = any (p_class_ids) and f.class_id <> all (v_others);
  if v_others <> '{}' then
    return query select f.* from hwqueue.class_fits(v_others, p_look, 100000, p_now, p_shard) f;
  end if;
end
$$;

-- What class_fits says of these classes now, and the nodes that it says it of. Stable: looks at them once, in
-- the snapshot of its caller's statement, or what is found out would be written down under the digest of
-- other nodes. Upkeep spends a fifth of what one read may.
create or replace function hwqueue.find_fleets(p_class_ids bigint[], p_now timestamptz, p_shard int,
                                               out fits hwqueue.class_fit[], out registered int, out digest bigint)
language plpgsql stable
as $$
declare
  v_look hwqueue.fleet_look := hwqueue.look_at_nodes(p_now, p_shard);
begin
  fits := array(select f from hwqueue.class_fits(p_class_ids, v_look, 20000, p_now, p_shard) f);
  registered := v_look.registered;
  digest := v_look.digest;
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
  delete from hwqueue.class_nodes f
  where f.shard_id = p_shard and f.class_id = any (v_ids)
    and not exists (select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = f.class_id);
  select f.* into v_found from hwqueue.find_fleets(v_ids, p_now, p_shard) f;
  insert into hwqueue.class_fleet (shard_id, class_id, share, looked_at, digest, nodes_matching, nodes_cordoned,
    nodes_silent, part, expr, near_node, nodes_near, nodes_meeting, nodes_serving)
  select p_shard, f.class_id, coalesce(bit_count(f.nodes) / nullif(v_found.registered, 0)::double precision, 0), p_now,
         v_found.digest, f.nodes_matching, f.nodes_cordoned, f.nodes_silent, f.part, f.expr, f.near_node, f.nodes_near,
         f.nodes_meeting, f.nodes_serving
  from unnest(v_found.fits) f
  on conflict (shard_id, class_id) do update
  set share = excluded.share, looked_at = excluded.looked_at, digest = excluded.digest,
      nodes_matching = excluded.nodes_matching, nodes_cordoned = excluded.nodes_cordoned,
      nodes_silent = excluded.nodes_silent, part = excluded.part, expr = excluded.expr, near_node = excluded.near_node,
      nodes_near = excluded.nodes_near, nodes_meeting = excluded.nodes_meeting, nodes_serving = excluded.nodes_serving;
  insert into hwqueue.class_nodes (shard_id, class_id, digest, nodes)
  select p_shard, f.class_id, v_found.digest, f.nodes from unnest(v_found.fits) f
  where hwqueue.is_known_in_full(f.nodes_matching, f.nodes_silent)
  on conflict (shard_id, class_id) do update set digest = excluded.digest, nodes = excluded.nodes;
  perform hwqueue.refresh_reach(array(
    select f.class_id from unnest(v_found.fits) f
    where not hwqueue.is_known_in_full(f.nodes_matching, f.nodes_silent)), p_shard);
  return cardinality(v_found.fits);
end
$$;
