-- The classes that a claim compares, scored and ordered (fitting_classes), and the cache of those that
-- are not blocked (claim_candidates).
--
-- An example: 1,000 classes must keep away from leases that run on gpu-1. The first claim that meets them
-- finds out what blocks each, and caches the classes that are left with the proof (node_candidates).
-- Later claims only read the counters that block, instead of 1,000 classes.
--
-- The proof holds as long as
--   the counters of affinity terms in the node's domains that block are above 0 (away, both ways);
--   the node has no more cpu and memory left than when some classes did not fit;
--   the first of the leases that wait for a better node has not waited its patience, and no node has moved;
--   the node is the same, and what its profile may run, what a service keeps away from (rebind_classes) and
--   the patience of these queues (xmin and ctid of rows, read before what they guard, because a claim may
--   judge two batches of classes in one transaction).
--
-- Invariant: the cache only leaves classes out. A class that is left out for too long is late, until
-- `until` at most. One that is not left out is decided under locks as always.

-- What is cached of a node and these queues, if its proof holds. Null: a cache miss, or leases for this
-- node only may wait.
-- Locks: the caller holds node_state.
create or replace function hwqueue.cached_candidates(p_state hwqueue.node_state, p_queue_ids int[],
  p_room hwqueue.headroom, p_now timestamptz) returns hwqueue.node_candidates
language plpgsql volatile
as $$
declare
  v_known hwqueue.node_candidates;
begin
  select k.* into v_known
  from (
    select * from hwqueue.node_candidates n
    where n.node_id = p_state.node_id order by n.version desc limit 1) k
  where k.queue_ids = p_queue_ids and not k.queue_ids && p_state.pinned_queues
    and k.valid_until > p_now and k.node_moved = p_state.moved_xid and k.profile_id = p_state.profile_id
    and k.valid_until < p_now + interval '11 seconds'  -- else the clock was set back
    and (k.cpu_milli is null or p_room.cpu_milli <= k.cpu_milli)
    and (k.memory_mib is null or p_room.memory_mib <= k.memory_mib)
    and k.profile_version = (
      select p.xmin || ' ' || p.ctid from hwqueue.profile p where p.profile_id = k.profile_id)
    and k.queue_versions = array(
      select q.xmin || ' ' || q.ctid from unnest(k.queue_ids) i(queue_id)
      join hwqueue.queue q on q.queue_id = i.queue_id)
    and not exists (
      select 1 from unnest(k.term_ids, k.places, k.by_holders) b(term_id, place, by_holders)
      where coalesce((
        select sum(case when b.by_holders then c.holders else c.leases end) from hwqueue.term_counter c
        where c.term_id = b.term_id and c.place = b.place), 0) <= 0);
  if v_known.fleet_next is not null
     and hwqueue.has_fleet_changed(v_known.fleet_unseen, v_known.fleet_next) then
    return null;
  end if;
  return v_known;
end
$$;

-- The classes to compare, from the cache or found and cached now. Null: all of them, and nothing is
-- cached. blocked: those of them that are blocked now. met: all that were found blocked; null if the
-- cache had them. Locks: the caller holds node_state. Raises QHN01.
create or replace function hwqueue.claim_candidates(p_state hwqueue.node_state, p_queue_ids int[],
  p_room hwqueue.headroom, p_now timestamptz, out classes bigint[], out blocked bigint[], out met bigint[])
language plpgsql volatile
as $$
declare
  v_known hwqueue.node_candidates := hwqueue.cached_candidates(p_state, p_queue_ids, p_room, p_now);
  v_node hwqueue.node;
  v_profile_version text;
  v_queue_versions text[];
  v_short bigint[];
  v_all bigint[];
  v_checked bigint[];
  v_found record;
  v_version bigint;
begin
  classes := v_known.classes;
  blocked := '{}';
  if v_known.has_unproved is not false then
    v_node := hwqueue.claiming_node(p_state, p_now);
  end if;
  if v_known.has_unproved then
    blocked := (hwqueue.blocked_classes(classes, v_node, p_now)).blocked;
  end if;
  if classes is not null then
    return;
  end if;
  v_profile_version := (
    select p.xmin || ' ' || p.ctid from hwqueue.profile p where p.profile_id = p_state.profile_id);
  v_queue_versions := array(
    select q.xmin || ' ' || q.ctid from unnest(p_queue_ids) i(queue_id)
    join hwqueue.queue q on q.queue_id = i.queue_id);
  select coalesce(array_agg(e.class_id) filter (where s.is_short), '{}'),
         coalesce(array_agg(e.class_id) filter (where not s.is_short), '{}'),
         coalesce(array_agg(e.class_id) filter (where e.is_checked and not s.is_short), '{}')
  into v_short, v_all, v_checked
  from unnest(p_queue_ids) q(queue_id)
  cross join lateral hwqueue.eligible_classes(p_state.profile_id, p_state.node_id, q.queue_id, null) e
  cross join lateral (
    select coalesce(e.cpu_milli > p_room.cpu_milli, false)
           or coalesce(e.memory_mib > p_room.memory_mib, false) as is_short) s;
  v_found := hwqueue.blocked_classes(v_checked, v_node, p_now);
  met := v_short || v_found.blocked;
  if p_queue_ids && p_state.pinned_queues then
    blocked := met;
    return;
  end if;
  classes := array(select c from unnest(v_all) c where c not in (select unnest(v_found.lasting)));
  blocked := array(select b from unnest(v_found.blocked) b where b not in (select unnest(v_found.lasting)));
  v_known := v_found.known;
  if cardinality(v_short || v_found.lasting) > 0 and cardinality(classes) <= 200
     and cardinality(v_known.term_ids) <= 1000 then
    insert into hwqueue.node_candidates as k (node_id, queue_ids, classes, has_unproved, profile_id,
      profile_version, queue_versions, node_moved, cpu_milli, memory_mib,
      term_ids, places, by_holders, fleet_next, fleet_unseen, valid_until)
    values (p_state.node_id, p_queue_ids, classes, blocked <> '{}', p_state.profile_id,
      v_profile_version, v_queue_versions, p_state.moved_xid,
      case when v_short <> '{}' then p_room.cpu_milli end,
      case when v_short <> '{}' then p_room.memory_mib end,
      v_known.term_ids, v_known.places, v_known.by_holders,
      v_known.fleet_next, v_known.fleet_unseen, v_known.valid_until)
    returning k.version into v_version;
    delete from hwqueue.node_candidates k
    where k.node_id = p_state.node_id and k.version = (
      select x.version from hwqueue.node_candidates x
      where x.node_id = p_state.node_id and x.version < v_version
      order by x.version desc limit 1);
  end if;
end
$$;

-- Like read_queue_head, where others are before what the node may run. Of a single class: where its scan
-- starts (class_start). Behind blocked classes: the first entry of up to
-- 16 other classes, as far as the next one of them (last). takes_first: it need not be checked against
-- other leases. first_is_best is null then, so that a claim that finds the entry taken reads the head
-- again. It returns p_queue_head itself on a cache miss, when the first entry must be checked, or when
-- no blocked class is before it any more.
-- Locks: the caller holds node_state.
create or replace function hwqueue.read_past_blocked(p_state hwqueue.node_state,
  p_queue_head hwqueue.queue_head, p_now timestamptz) returns hwqueue.queue_head
language plpgsql volatile
as $$
declare
  v_queue_head hwqueue.queue_head := p_queue_head;
  v_from hwqueue.scan_starts := row(p_queue_head.queue_ids, array[p_queue_head.tier],
    array[p_queue_head.rank], array[p_queue_head.position], '{true}', true);
  v_classes bigint[];
  v_head record;
begin
  if (p_state.met_blocked and p_queue_head.first_is_best and not p_queue_head.takes_first) is not true then
    select greatest(s.position, p_queue_head.position) into v_queue_head.position
    from hwqueue.class_start(p_queue_head.classes[1], v_from) s
    where s.tier = p_queue_head.tier and s.rank = p_queue_head.rank;
    v_queue_head.position := coalesce(v_queue_head.position, p_queue_head.position);
    v_queue_head.last := v_queue_head.position + 1000;
    return v_queue_head;
  end if;
  v_classes := (hwqueue.cached_candidates(p_state, p_queue_head.queue_ids, null, p_now)).classes;
  if cardinality(v_classes) <= 16 is not true then
    return p_queue_head;
  end if;
  select e.class_id, h.tier, h.rank, h.position, e.is_checked, case
           when lead(h.tier) over o = h.tier and lead(h.rank) over o = h.rank then lead(h.position) over o - 1
           else 9223372036854775807 end as last
  into v_head
  from unnest(v_classes) k(class_id)
  cross join lateral (  -- fenced: each by its key, not by the class alone ("between")
    select x.class_id, x.is_checked from hwqueue.eligibility x
    where x.profile_id = p_state.profile_id and x.queue_id = p_queue_head.queue_id
      and x.class_id between k.class_id and k.class_id and x.gpu_count = 0 and x.custom is null offset 0) e
  cross join lateral hwqueue.class_start(k.class_id, v_from) s
  cross join lateral (
    select r.tier, r.rank, r.position from hwqueue.ready r
    where r.class_id = k.class_id and (r.deadline is null or r.deadline > p_now)
      and (r.tier, r.rank, r.position) >= (s.tier, s.rank, s.position)
    order by r.tier, r.rank, r.position limit 1) h
  window o as (order by h.tier, h.rank, h.position)
  order by h.tier, h.rank, h.position limit 1;
  if not v_head.is_checked and ((v_head.tier, v_head.rank) > (p_queue_head.tier, p_queue_head.rank) or (
      select true from hwqueue.ready r
      where r.queue_id = p_queue_head.queue_id and r.tier = v_head.tier
        and r.rank = v_head.rank
        and r.position >= p_queue_head.position and r.position < v_head.position
      order by r.position limit 1)) then
    v_queue_head.first_is_best := null;
    v_queue_head.takes_first := true;
    v_queue_head.classes := array[v_head.class_id];
    v_queue_head.tier := v_head.tier;
    v_queue_head.rank := v_head.rank;
    v_queue_head.position := v_head.position;
    v_queue_head.last := v_head.last;
  end if;
  return v_queue_head;
end
$$;

-- The score of a class that has preferences about other leases, or a spread rule. p_worth: as in
-- fit_score.
create or replace function hwqueue.class_score(p_class_id bigint, p_node hwqueue.node,
  p_room hwqueue.headroom, p_queue hwqueue.queue, p_worth double precision[], p_now timestamptz)
returns double precision
language plpgsql stable
as $$
declare
  v_found record;
  v_class hwqueue.placement_class;
  v_reach double precision;
  v_facts jsonb;
begin
  select c as class, (
      select r.reach from hwqueue.class_fleet r
      where r.class_id = p_class_id) as reach
  into v_found
  from hwqueue.placement_class c where c.class_id = p_class_id;
  v_class := v_found.class;
  v_reach := v_found.reach;
  v_facts := hwqueue.term_facts(v_class, p_node, p_now);
  return hwqueue.lease_score((p_queue.tuning).weight_affinity, (p_queue.tuning).weight_fit,
    (p_queue.tuning).weight_spread,
    hwqueue.class_affinity(v_class, p_node.labels, p_node.rack, p_node.node_id,
        p_node.resources || p_node.gpu_ids, v_facts,
                           hwqueue.node_taints(p_node)),
    hwqueue.fit_score(v_class.cpu_milli, v_class.memory_mib, v_class.gpu_count, v_class.gpu_milli, v_reach,
             p_room, p_worth),
    hwqueue.spread_score(v_class, v_facts, null, null, p_now));
end
$$;

-- The classes of these queues that a node may run and has room for now, best score first. The score is
-- the sum of weight x part: affinity (-100 to 100, with the class's strength), fit (0 to 100) and
-- spread. p_only: of these classes (claim_candidates); null: of all. p_extra: classes judged but not
-- cached, [{"class_id", "affinity"}]. p_without: classes that this claim has found blocked.
-- Attestations expire, so classes that mention trust domains are judged again.
create or replace function hwqueue.fitting_classes(p_request hwqueue.claim_request, p_node hwqueue.node,
  p_room hwqueue.headroom, p_only bigint[], p_extra jsonb, p_without bigint[],
  out fit hwqueue.scored_classes)
language plpgsql stable
as $$
declare
  v_now timestamptz := p_request.now;
  v_attested text[] := hwqueue.attested_at(p_node, v_now);
begin
  select coalesce(array_agg(f.class_id), '{}'), coalesce(array_agg(f.score), '{}'),
         coalesce(array_agg(f.class_id) filter (where f.is_checked), '{}')
  into fit.classes, fit.scores, fit.checked
  from (
    select e.class_id, e.is_checked,
           case when e.affinity is null then hwqueue.class_score(e.class_id, p_node, p_room, q.queue, q.worth,
               v_now)
                else hwqueue.lease_score(q.weight_affinity, q.weight_fit, q.weight_spread, e.affinity,
                  hwqueue.fit_score(e.cpu_milli, e.memory_mib, e.gpu_count, e.gpu_milli, case
                      when e.gpu_count > 0 and p_room.gpu_total > 0 then (
                        select s.reach from hwqueue.class_fleet s where s.class_id = e.class_id) end,
                    p_room, q.worth), 0) end as score
    from (  -- fenced: the prices once a queue, and only if it has some and the node devices
      select o as queue, o.queue_id, (o.tuning).*,
             case when o.has_prices and p_room.gpu_total > 0 then (
               select v.device_worth from hwqueue.valid_prices(v_now) v where v.queue = o.name) end as worth
      from hwqueue.queue o where o.queue_id = any (p_request.queue_ids)
      offset 0) q
    cross join lateral (  -- fenced: what follows once, not for each table
      select * from hwqueue.eligible_classes(p_node.profile_id, p_node.node_id, q.queue_id, p_only)
      union all
      select null, c.queue_id, c.class_id, x.affinity, c.task_name, hwqueue.cpu_needed(c.cpu_milli, i.cpu),
             c.memory_mib, c.gpu_count, c.gpu_milli, c.gpu_wanted, c.custom,
             hwqueue.must_be_checked(c, x.affinity), null, i.cpu,
             hwqueue.gpu_exclusivity_on(c.gpu_exclusivity, p_node.gpu_share_mode), null
      from jsonb_to_recordset(p_extra) x(class_id bigint, affinity double precision)
      join hwqueue.placement_class c on c.class_id = x.class_id
      cross join lateral (select hwqueue.cpu_isolation_on(c.cpu_isolation,
          p_node.default_cpu_isolation) as cpu) i
      -- "is true": by its key, not all classes of the queue
      where (c.queue_id = q.queue_id) is true and not exists (  -- cached by another session meanwhile
        select from hwqueue.eligibility o
        where o.profile_id = p_node.profile_id and o.queue_id = q.queue_id and o.class_id = c.class_id)
      offset 0) e
    where (p_request.tasks is null or e.task_name = any (p_request.tasks))
      and (p_without = '{}' or e.class_id not in (select unnest(p_without)))
      -- scoring these is slow, so only if one of them is ready
      and (e.affinity is not null or (
        select true from hwqueue.ready r where r.class_id = e.class_id
        order by r.tier, r.rank, r.position limit 1))
      and hwqueue.shortage(e.cpu_milli, e.memory_mib, p_room, e.custom, e.cpu_isolation) = 0
      and hwqueue.gpu_shortage(e.gpu_count, e.gpu_milli, e.gpu_wanted, p_room, e.gpu_exclusivity) = 0
      and (e.trusts is null or e.trusts <@ v_attested
        or hwqueue.is_still_attested_for(e.class_id, p_node, v_attested))
    order by score desc, e.class_id) f;
end
$$;

-- What a profile and a node may run of a queue, with what it asks for and its affinity score. p_only: of
-- these classes; null: of all.
create or replace function hwqueue.eligible_classes(p_profile_id bigint, p_node uuid, p_queue_id int,
  p_only bigint[]) returns setof hwqueue.eligibility
language sql stable
as $$
  select * from hwqueue.eligibility a
  where p_only is null and a.profile_id = p_profile_id and a.queue_id = p_queue_id
  union all
  select o.* from unnest(p_only) k(class_id)
  cross join lateral (  -- fenced: each by its key
    select * from hwqueue.eligibility x
    where x.profile_id = p_profile_id and x.queue_id = p_queue_id
      and x.class_id between k.class_id and k.class_id offset 0) o
  union all
  select * from hwqueue.eligibility n
  where n.node_id = p_node and n.queue_id = p_queue_id and (p_only is null or n.class_id = any (p_only))
$$;

-- The node of a claim, with the profile that its classes are judged for. A silent node is live again then:
-- spread rules count live nodes only. Locks: the caller holds node_state. Raises QHN01.
create or replace function hwqueue.claiming_node(p_state hwqueue.node_state, p_now timestamptz)
returns hwqueue.node
language plpgsql volatile
as $$
declare
  v_node hwqueue.node;
begin
  if p_state.seen_at + p_state.heartbeat_timeout <= p_now then
    update hwqueue.node_state s set seen_at = p_now, moved_xid = pg_current_xact_id()
    where s.node_id = p_state.node_id and s.seen_at + s.heartbeat_timeout <= p_now;
  end if;
  v_node := hwqueue.read_node(p_state.node_id);
  v_node.profile_id := p_state.profile_id;
  return v_node;
end
$$;

-- Records whether a node's last claim met blocked classes, and whether affinity terms wait to be in
-- force (p_awaits; asked for if classes were blocked). Its next claim then takes a step to publish them.
-- Locks: the caller holds node_state.
create or replace function hwqueue.note_blocked(p_state hwqueue.node_state, p_blocked boolean,
  p_awaits boolean) returns void
language plpgsql volatile
as $$
declare
  v_awaits boolean := p_state.awaits_terms or p_awaits or p_blocked and hwqueue.has_unpublished_terms();
begin
  if (p_state.met_blocked, p_state.awaits_terms) <> (p_blocked, v_awaits) then
    update hwqueue.node_state s set met_blocked = p_blocked, awaits_terms = v_awaits
    where s.node_id = p_state.node_id;
  end if;
end
$$;
