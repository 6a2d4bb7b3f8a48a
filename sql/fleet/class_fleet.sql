-- Which nodes suit a class, for many classes and all nodes at once, cached per class.
--
-- The invariant: a cache row is valid while its digest equals the digest of scan_nodes. So no write
-- invalidates anything when a node changes, and a count read from a valid row is exact. Which nodes are
-- live or cordoned is not in the digest; each read counts that again (count_fit).

-- Returns count_fit of each class: from the cache where its row is valid, otherwise computed now.
create or replace function hwqueue.class_fleets(p_class_ids bigint[], p_snapshot hwqueue.fleet_snapshot,
  p_now timestamptz)
returns setof hwqueue.class_match
language plpgsql stable
as $$
declare
  v_cached bigint[] := array(
    select m.class_id from hwqueue.class_fleet m
    where m.class_id = any (p_class_ids) and m.digest = p_snapshot.digest and m.is_known
      and hwqueue.is_cache_valid(m, p_snapshot.open));
  v_missed bigint[] := array(
    select u.class_id from unnest(p_class_ids) u(class_id)
    except select k.class_id from unnest(v_cached) k(class_id));
begin
  return query
    select c.* from hwqueue.class_fleet m cross join lateral hwqueue.count_fit(m, p_snapshot) c
    where m.class_id = any (v_cached);
  if v_missed <> '{}' then
    return query
      select c.* from hwqueue.class_fits(v_missed, p_snapshot, 100000, p_now) f
      cross join lateral hwqueue.count_fit(f, p_snapshot) c;
  end if;
end
$$;

-- True if a cached row with the current digest still holds for the nodes that are live and not cordoned: one
-- of them suits the class; or none did when it was computed, and the part that was in the way still keeps out
-- one. (When the last suitable node is gone, another part may be the one that counts now.)
create or replace function hwqueue.is_cache_valid(
  p_fit hwqueue.class_fleet, p_open bit varying) returns boolean
language sql immutable parallel safe
as $$
  select bit_count((p_fit).nodes & p_open) > 0
    or (p_fit).unmatched and (bit_count(p_open) = 0 or bit_count(~(p_fit).meeting & p_open) > 0)
$$;

-- Computes and caches which nodes suit these classes, and deletes the rows of classes that are gone. Of a
-- class that is too costly to judge the share is a bound. For a few hundred classes it spends a fifth of what
-- one report may. Returns how many it computed; null, having done nothing, when another session computes now.
-- A class whose row another session, for example prune, holds is left as it is.
-- Locks: the installation's row and those of class_fleet, skip locked.
create or replace function hwqueue.cache_class_fleets(p_class_ids bigint[], p_now timestamptz) returns int
language plpgsql volatile
  -- all nodes and hundreds of classes: by hash, whatever the statistics say
  set plan_cache_mode = force_custom_plan
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on
  set enable_bitmapscan = on set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
  v_fits hwqueue.class_fleet[];
  v_held bigint[];
  v_ids bigint[];
begin
  perform 1 from hwqueue.installation s for no key update skip locked;
  if not found then
    return null;
  end if;
  v_held := array(
    select f.class_id from hwqueue.class_fleet f
    where f.class_id = any (p_class_ids) for no key update skip locked);
  -- classes without a row: only the session that holds the installation's row inserts one
  v_ids := v_held || array(
    select u.class_id from unnest(p_class_ids) u(class_id)
    left join hwqueue.class_fleet f on f.class_id = u.class_id
    where f.class_id is null);
  -- rows of classes that were deleted while the session that computed them was open
  delete from hwqueue.class_fleet f
  where f.class_id = any (v_ids)
    and not exists (select 1 from hwqueue.placement_class c where c.class_id = f.class_id);
  -- one statement, one MVCC snapshot: else an answer could be stored under the digest of other nodes
  v_fits := (
    select array(
      select f from hwqueue.class_fits(v_ids, s, greatest(20000, 40 * cardinality(v_ids)), p_now) f)
    from hwqueue.scan_nodes(p_now) s);
  insert into hwqueue.class_fleet select f.* from unnest(v_fits) f
  on conflict (class_id) do update
  set reach = excluded.reach, looked_at = excluded.looked_at, digest = excluded.digest,
    unmatched = excluded.unmatched, is_known = excluded.is_known, nodes = excluded.nodes,
    part = excluded.part, expr = excluded.expr, others = excluded.others, meeting = excluded.meeting,
    serving = excluded.serving;
  return cardinality(v_fits);
end
$$;

-- Returns which nodes suit each of these classes, and for a class that no live node suits, what is most in
-- the way. A node suits a class if it meets all parts that suits and class_shortage judge. The bit strings
-- include cordoned and silent nodes, so that a row stays true when one is cordoned or falls silent. p_most:
-- as in expr_masks.
--   nodes: those that suit the class; without is_known, those that no part keeps out that could be judged.
--   unmatched: none of nodes is live and not cordoned. Then part and expr are what alone keeps out most live
--     nodes. others: nodes that meet all other parts; meeting: nodes that meet this part.
--   serving: the nodes that serve its queue and task; null: all.
create or replace function hwqueue.class_fits(p_class_ids bigint[], p_snapshot hwqueue.fleet_snapshot,
  p_most int, p_now timestamptz)
returns setof hwqueue.class_fleet
language sql stable
as $$
  with announced as materialized (  -- nodes that announced the same are judged once
    select n.queues, n.tasks, bit_or(set_bit((p_snapshot).none, k.number, 1)) as mask
    from hwqueue.node_numbers() k
    join hwqueue.node n on n.node_id = k.node_id
    where coalesce(n.queues, n.tasks) is not null
    group by n.queues, n.tasks
  ), served as materialized (  -- no row for what all nodes serve
    select k.queue_id, k.task_name, ~bit_or(a.mask) as mask
    from (
      select distinct c.queue_id, q.name, c.task_name
      from hwqueue.placement_class c
      join hwqueue.queue q on q.queue_id = c.queue_id
      where c.class_id = any (p_class_ids)) k
    join announced a on hwqueue.unserved_part(a.queues, a.tasks, k.name, k.task_name) is not null
    group by k.queue_id, k.task_name
  ), ask as materialized (  -- classes that ask the same, with one of them to judge for all
    select min(c.class_id) as ask_id, array_agg(c.class_id) as class_ids, n.required, c.tolerate, o.tenant,
           v.mask as served
    from hwqueue.placement_class c
    cross join (
      select exists (
        select from hwqueue.profile p where p.taints @? '$[*] ? (@.key starts with "tenant:")') as some) u
    cross join lateral (select case when u.some then c.tenant else '' end as tenant) o
    cross join lateral (select c.required || hwqueue.domains_needed(c) as required) n
    left join served v on v.queue_id = c.queue_id and v.task_name = c.task_name
    where c.class_id = any (p_class_ids)
    group by c.cpu_milli, c.memory_mib, c.gpu_count, c.gpu_milli, n.required, c.tolerate, o.tenant,
             c.gpu_wanted, c.custom, c.cpu_isolation, c.gpu_exclusivity, v.mask
  ), list as materialized (  -- lists of requirements, which many classes share
    select distinct a.required from ask a
  ), required as materialized (
    select l.required, e.value as expr, e.ordinality from list l
    cross join lateral jsonb_array_elements(l.required) with ordinality e
  ), met as materialized (
    select e.expr, e.mask from hwqueue.expr_masks(
      array(select distinct r.expr from required r), p_most, (p_snapshot).none, p_now) e
  ), listed as materialized (
    select r.required, bit_and(m.mask) as mask, bool_and(m.mask is not null) as is_known
    from required r join met m on m.expr = r.expr group by r.required
  ), tainted as materialized (
    select p.taints, bit_or(set_bit((p_snapshot).none, n.number, 1)) as mask
    from hwqueue.profile p
    join hwqueue.numbered_nodes(p_now) n on (n.node).profile_id = p.profile_id
    where p.taints <> '[]'
    group by p.taints
  ), tolerated as materialized (  -- the nodes whose taints keep off no leases of a tenant that tolerate these
    select a.tolerate, a.tenant, ~coalesce(bit_or(x.mask), (p_snapshot).none) as mask
    from (select distinct a.tolerate, a.tenant from ask a) a
    left join tainted x on hwqueue.barring_taints(x.taints, a.tolerate, a.tenant) <> '[]'
    group by a.tolerate, a.tenant
  ), capacity as materialized (
    select c.* from hwqueue.capacity_parts(
      array(select a.ask_id from ask a), true, (p_snapshot).open, (p_snapshot).none, p_now) c
  ), static as materialized (  -- all but capacity, for all that agree on it
    select k.required, k.tolerate, k.tenant, t.mask & coalesce(l.mask, ~(p_snapshot).none) as mask,
           coalesce(l.is_known, true) as is_known
    from (select distinct a.required, a.tolerate, a.tenant from ask a) k
    join tolerated t on t.tolerate = k.tolerate and t.tenant = k.tenant
    left join listed l on l.required = k.required
  ), able as (
    select c.class_id, bit_and(c.mask) as mask from capacity c group by c.class_id
  ), fit as materialized (
    select f.*, bit_count(f.mask & (p_snapshot).open)::int as matching
    from (
      select a.ask_id, a.class_ids, a.required, a.tolerate, a.tenant, a.served,
             k.mask & coalesce(c.mask, k.mask) as mask, s.is_known
      from ask a
      join static s on s.required = a.required and s.tolerate = a.tolerate and s.tenant = a.tenant
      cross join lateral (select case when a.served is null then s.mask else s.mask & a.served end as mask) k
      left join able c on c.class_id = a.ask_id) f
  ), part as materialized (
    select row_number() over () as nr, p.* from (
      select f.ask_id, 'require' as part, r.expr, m.mask, -r.ordinality as turn
      from fit f join required r on r.required = f.required join met m on m.expr = r.expr where f.matching = 0
      union all
      select f.ask_id, 'taints', null, t.mask, 1
      from fit f join tolerated t on t.tolerate = f.tolerate and t.tenant = f.tenant
      where f.matching = 0 and t.mask <> ~(p_snapshot).none
      union all
      select f.ask_id, 'served', null, f.served, 2 from fit f where f.matching = 0
      union all
      select f.ask_id, c.part, null, c.mask, 3 from fit f join capacity c on c.class_id = f.ask_id
      where f.matching = 0
    ) p
    where p.mask is not null
  ), unmet as (  -- for each part, the live nodes that meet all others
    select p.nr, coalesce(bit_and(o.mask), ~(p_snapshot).none) as others
    from part p left join part o on o.ask_id = p.ask_id and o.nr <> p.nr group by p.nr
  ), worst as materialized (
    select distinct on (p.ask_id) p.ask_id, p.part, p.expr, p.mask, u.others
    from unmet u join part p on p.nr = u.nr
    order by p.ask_id, bit_count(u.others & (p_snapshot).open) desc,
             bit_count(p.mask & (p_snapshot).open), p.turn, p.part
  )
  select c.class_id,
         coalesce(bit_count(f.mask) / nullif((p_snapshot).registered, 0)::double precision, 0), p_now,
         (p_snapshot).digest, null::timestamptz, f.matching = 0, f.is_known, f.mask, w.part, w.expr,
         w.others, w.mask, f.served
  from fit f cross join lateral unnest(f.class_ids) c(class_id)
  left join worst w on w.ask_id = f.ask_id
$$;

-- Counts a row of class_fits for the nodes as they are now.
--   nodes_matching: live and not cordoned; null: too many different nodes to judge, and not none.
--   nodes_cordoned, nodes_silent: where nodes_matching is 0, suitable nodes that are live but cordoned,
--     and silent ones. Null as above: a part that could not be judged may keep out more nodes, but no
--     fewer than none.
--   near, nodes_near: where nothing matches, of the part in the way: live nodes that do not meet it,
--     preferably those that it alone keeps out; how many it alone keeps out.
create or replace function hwqueue.count_fit(p_fit hwqueue.class_fleet,
  p_snapshot hwqueue.fleet_snapshot) returns setof hwqueue.class_match
language sql immutable parallel safe
as $$
  select (p_fit).class_id, (p_fit).nodes, case when (p_fit).is_known or m.matching = 0 then m.matching end,
         case when m.matching = 0 and ((p_fit).is_known or m.cordoned = 0) then m.cordoned end,
         case when m.matching = 0 and (p_fit).is_known
           then bit_count((p_fit).nodes & ~(p_snapshot).live)::int end,
         w.part, w.expr,
         case when w.near > 0 then w.others else ~w.meeting end & (p_snapshot).open, w.near,
         case when m.matching = 0
           then bit_count(coalesce((p_fit).serving, ~(p_snapshot).none) & (p_snapshot).live)::int end
  from (select bit_count((p_fit).nodes & (p_snapshot).open)::int as matching,
               bit_count((p_fit).nodes & (p_snapshot).live)::int as cordoned) m
  left join lateral (
    select (p_fit).part, (p_fit).expr, (p_fit).others, (p_fit).meeting,
           bit_count((p_fit).others & (p_snapshot).open)::int as near) w on m.matching = 0
$$;

-- Returns, of each of these classes, the live nodes that are not cordoned and have room now: by capacity and
-- devices, and a slot free of their workers, where these said how many they have. untaken, conflict: see
-- untaken_masks; null where other leases keep it off nowhere.
create or replace function hwqueue.room_masks(p_class_ids bigint[], p_snapshot hwqueue.fleet_snapshot,
  p_now timestamptz)
returns table (class_id bigint, mask bit varying, untaken bit varying, conflict text)
language sql stable
as $$
  select c.class_id, u.mask & coalesce(r.mask, u.mask), t.mask, t.code
  from unnest(p_class_ids) c(class_id)
  cross join (
    select (p_snapshot).open & ~coalesce(bit_or(set_bit((p_snapshot).none, k.number, 1)), (p_snapshot).none)
             as mask
    from hwqueue.full_nodes() f join hwqueue.node_numbers() k on k.node_id = f.node_id) u
  left join (
    select p.class_id, bit_and(p.mask) as mask
    from hwqueue.capacity_parts(p_class_ids, false, (p_snapshot).open, (p_snapshot).none, p_now) p
    group by p.class_id) r on r.class_id = c.class_id
  left join hwqueue.untaken_masks(p_class_ids, (p_snapshot).none, p_now) t on t.class_id = c.class_id
$$;

-- Returns, of each of these classes that other leases keep off some places, the nodes that are left, and why
-- the others are not, by the rules that claims decide with (class_term; see blocked_classes).
-- A place is a value of a domain: one that is taken (required away, both ways; max_per_domain) or, with
-- is_only, one of the only ones that will do (required toward; null: none will). Leaves out max_skew, terms
-- inside an any, and terms not published yet, so the result is a bound.
create or replace function hwqueue.untaken_masks(p_class_ids bigint[], p_none bit varying, p_now timestamptz)
returns table (class_id bigint, code text, mask bit varying)
language sql stable
as $$
  with rule as materialized (
    select r.class_id, r.term_id, r.use, r.most, r.is_self, r.lease_id, t.domain
    from hwqueue.class_term r
    join hwqueue.affinity_term t on t.term_id = r.term_id
    where r.class_id = any (p_class_ids) and r.is_own and r.use in ('away', 'cap', 'toward')
      and t.published_at is not null
  ), named as (  -- where the lease that a term names runs, or has completed (required toward)
    select x.term_id, x.domain, coalesce(c.node_id, o.node_id) as node_id
    from (select distinct r.term_id, r.use, r.domain, r.lease_id from rule r where r.lease_id is not null) x
    left join hwqueue.claim c on c.lease_id = x.lease_id
    left join hwqueue.outcome o on x.use = 'toward' and o.lease_id = x.lease_id
      and (o.state = 'completed') is true
  ), held as materialized (
    select k.term_id, k.place as value, sum(k.leases) as leases
    from hwqueue.term_counter k
    where k.term_id in (select r.term_id from rule r where r.lease_id is null)
    group by 1, 2 having sum(k.leases) > 0
    union all
    select x.term_id, hwqueue.domain_value(x.domain, n.node_id, n.rack, n.labels), 1
    from named x join hwqueue.node n on n.node_id = x.node_id
  ), taken as materialized (
    select r.class_id, case r.use when 'cap' then 'spread_exceeded' else 'anti_affinity_conflict' end as code,
           false as is_only, r.term_id, r.domain, k.value
    from rule r
    join held k on k.term_id = r.term_id
    where r.use = 'away' or r.use = 'cap' and k.leases + r.is_self::int > r.most
    union all
    select r.class_id, 'required_affinity_unsatisfiable', true, r.term_id, r.domain, k.value
    from rule r
    left join held k on k.term_id = r.term_id
    -- a lease may start the group that it requires to be with
    where r.use = 'toward' and (k.term_id is not null or not r.is_self)
    union all
    select m.class_id, 'anti_affinity_conflict', false, m.term_id, t.domain, k.place
    from hwqueue.class_term m
    join hwqueue.affinity_term t on t.term_id = m.term_id and t.use = 'away' and t.published_at is not null
    join hwqueue.placement_class c on c.class_id = m.class_id
    join hwqueue.term_counter k on k.term_id = m.term_id
    where m.class_id = any (p_class_ids) and not m.is_own
      and coalesce((t.spec #>> '{all,0,lease}')::uuid = c.target, true)
    group by m.class_id, m.term_id, t.domain, k.place having sum(k.holders) > 0
  ), place as materialized (
    select d.domain, hwqueue.domain_value(d.domain, (n.node).node_id, (n.node).rack,
           (n.node).labels) as value, bit_or(set_bit(p_none, n.number, 1)) as mask
    from (select distinct t.domain from taken t) d
    cross join hwqueue.numbered_nodes(p_now) n
    group by 1, 2
  )
  select u.class_id, min(u.code), bit_and(u.mask)
  from (
    select t.class_id, t.code, case when t.is_only then coalesce(bit_or(p.mask), p_none)
           else ~coalesce(bit_or(p.mask), p_none) end as mask
    from taken t
    left join place p on p.domain = t.domain and p.value = t.value
    group by t.class_id, t.code, t.is_only, t.term_id
  ) u
  group by u.class_id
$$;
