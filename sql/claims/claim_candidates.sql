-- The classes that a claim of a node has to look at: all that the node may run but those that are known to
-- be blocked. What blocks them is asked of all of them at once, and remembered with its proof
-- (node_candidates). Later claims ask whether the proof holds: a look at each count that blocks, for a
-- thousand classes as for one. It holds as long as
--   counts of terms in the node's places are above 0 (away, both ways);
--   the node has no more cpu and memory left than when some classes did not fit;
--   the first of the leases that wait for a better node has not waited enough, and no node has moved;
--   the node is the same, what its profile may run and what a service keeps away from (rebind_classes), and how
--   long these queues have leases wait (xmin and ctid of rows, read before what they guard; a claim may judge
--   two batches of classes in one transaction).
-- A class that is left out for too long is late, until `until` at most. One that is not left out is decided
-- as ever: nothing is claimed on the word of this.

-- What a node remembers of these queues, if its proof holds. Null: it does not, or leases of this node
-- alone may wait.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.known_candidates(p_state hwqueue.node_state, p_queue_ids int[],
  p_room hwqueue.headroom, p_now timestamptz, p_shard int) returns hwqueue.node_candidates
language plpgsql volatile
as $$
declare
  v_known hwqueue.node_candidates;
begin
  select k.* into v_known
  from (
    select * from hwqueue.node_candidates n
    where n.shard_id = p_shard and n.node_id = p_state.node_id order by n.version desc limit 1) k
  where k.queue_ids = p_queue_ids and not k.queue_ids && p_state.pinned_queues
    and k.until > p_now and k.node_moved = p_state.moved_xid and k.profile_id = p_state.profile_id
    and (k.cpu_milli is null or p_room.cpu_milli <= k.cpu_milli)
    and (k.memory_mib is null or p_room.memory_mib <= k.memory_mib)
    and k.profile_version = (
      select p.xmin || ' ' || p.ctid from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = k.profile_id)
    and k.queue_versions = array(
      select q.xmin || ' ' || q.ctid from unnest(k.queue_ids) i(queue_id)
      join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = i.queue_id)
    and not exists (
      select 1 from unnest(k.term_ids, k.places, k.by_holders) b(term_id, place, by_holders)
      where coalesce((
        select sum(case when b.by_holders then c.holders else c.leases end) from hwqueue.term_count c
        where c.shard_id = p_shard and c.term_id = b.term_id and c.domain = b.place), 0) <= 0);
  if v_known.fleet_next is not null
     and hwqueue.has_moved(v_known.fleet_unseen, v_known.fleet_next, p_shard) then
    return null;
  end if;
  return v_known;
end
$$;

-- The classes to look at, as they are remembered or found now; null: all of them, and nothing is
-- remembered.
-- blocked: those of them that are blocked now; met: all that were found so, null if what is remembered did.
-- Locks: node_state is held by the caller. Raises: QHN01. Idempotent: yes.
create or replace function hwqueue.claim_candidates(p_state hwqueue.node_state, p_queue_ids int[],
  p_room hwqueue.headroom, p_now timestamptz, p_shard int,
  out classes bigint[], out blocked bigint[], out met bigint[])
language plpgsql volatile
as $$
declare
  v_known hwqueue.node_candidates := hwqueue.known_candidates(p_state, p_queue_ids, p_room, p_now, p_shard);
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
  if v_known.asks is not false then
    v_node := hwqueue.judged_node(p_state, p_now, p_shard);
  end if;
  if v_known.asks then
    blocked := (hwqueue.blocked_classes(classes, v_node, p_now, p_shard)).blocked;
  end if;
  if classes is not null then
    return;
  end if;
  v_profile_version := (
    select p.xmin || ' ' || p.ctid from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id = p_state.profile_id);
  v_queue_versions := array(
    select q.xmin || ' ' || q.ctid from unnest(p_queue_ids) i(queue_id)
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = i.queue_id);
  select coalesce(array_agg(e.class_id) filter (where s.is_short), '{}'),
         coalesce(array_agg(e.class_id) filter (where not s.is_short), '{}'),
         coalesce(array_agg(e.class_id) filter (where e.is_checked and not s.is_short), '{}')
  into v_short, v_all, v_checked
  from unnest(p_queue_ids) q(queue_id)
  cross join lateral hwqueue.eligible_classes(
    p_state.profile_id, p_state.node_id, q.queue_id, null, p_shard) e
  cross join lateral (
    select coalesce(e.cpu_milli > p_room.cpu_milli, false)
           or coalesce(e.memory_mib > p_room.memory_mib, false) as is_short) s;
  v_found := hwqueue.blocked_classes(v_checked, v_node, p_now, p_shard);
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
    insert into hwqueue.node_candidates as k (shard_id, node_id, queue_ids, classes, asks, profile_id,
      profile_version, queue_versions, node_moved, cpu_milli, memory_mib,
      term_ids, places, by_holders, fleet_next, fleet_unseen, until)
    values (p_shard, p_state.node_id, p_queue_ids, classes, blocked <> '{}', p_state.profile_id,
      v_profile_version, v_queue_versions, p_state.moved_xid,
      case when v_short <> '{}' then p_room.cpu_milli end,
      case when v_short <> '{}' then p_room.memory_mib end,
      v_known.term_ids, v_known.places, v_known.by_holders,
      v_known.fleet_next, v_known.fleet_unseen, v_known.until)
    returning k.version into v_version;
    delete from hwqueue.node_candidates k
    where k.shard_id = p_shard and k.node_id = p_state.node_id and k.version = (
      select x.version from hwqueue.node_candidates x
      where x.shard_id = p_shard and x.node_id = p_state.node_id and x.version < v_version
      order by x.version desc limit 1);
  end if;
end
$$;

-- What a claim must know of the head of a queue, like look_at_queue, of what is left where blocked classes
-- stand before it: the first entry of a few classes, as far as the next one of them (last). is_first: it
-- need not be checked against others; is_front is null then: who finds that entry taken looks again.
-- p_front itself: it is not remembered what is left, or what stands first must be checked, or nothing
-- blocked stands before it any more.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.look_behind(p_state hwqueue.node_state, p_front hwqueue.queue_look,
  p_now timestamptz, p_shard int) returns hwqueue.queue_look
language plpgsql volatile
as $$
declare
  v_front hwqueue.queue_look := p_front;
  v_classes bigint[] := (hwqueue.known_candidates(p_state, p_front.queue_ids, null, p_now, p_shard)).classes;
  v_head record;
begin
  if cardinality(v_classes) <= 16 is not true then
    return p_front;
  end if;
  select e.class_id, h.tier, h.rank, h.position, e.is_checked, case
           when lead(h.tier) over o = h.tier and lead(h.rank) over o = h.rank then lead(h.position) over o - 1
           else 9223372036854775807 end as last
  into v_head
  from unnest(v_classes) k(class_id)
  cross join lateral (  -- fenced: each by its key
    select x.class_id, x.is_checked from hwqueue.profile_eligibility x
    where x.shard_id = p_shard and x.profile_id = p_state.profile_id and x.queue_id = p_front.queue_id
      and x.class_id = k.class_id and x.gpu_count = 0 and x.custom is null offset 0) e
  left join lateral (
    select m.tiers, m.ranks, m.positions from hwqueue.low_water m
    where m.shard_id = p_shard and m.queue_id = p_front.queue_id and m.class_id = k.class_id
    order by m.version desc limit 1) w on true
  cross join lateral (
    select r.tier, r.rank, r.position from hwqueue.ready r
    where r.shard_id = p_shard and r.class_id = k.class_id and (r.deadline is null or r.deadline > p_now)
      and (r.tier, r.rank, r.position) >= (p_front.tier, p_front.rank, case
        when w.tiers = array[p_front.tier] and w.ranks = array[p_front.rank]
          then greatest(p_front.position, w.positions[1])
        else p_front.position end)
    order by r.tier, r.rank, r.position limit 1) h
  window o as (order by h.tier, h.rank, h.position)
  order by h.tier, h.rank, h.position limit 1;
  if v_head.tier = 0 and not v_head.is_checked and (v_head.rank > p_front.rank or (
      select true from hwqueue.ready r
      where r.shard_id = p_shard and r.queue_id = p_front.queue_id and r.tier = 0 and r.rank = v_head.rank
        and r.position >= p_front.position and r.position < v_head.position
      order by r.position limit 1)) then
    v_front.is_front := null;
    v_front.is_first := true;
    v_front.classes := array[v_head.class_id];
    v_front.rank := v_head.rank;
    v_front.position := v_head.position;
    v_front.last := v_head.last;
  end if;
  return v_front;
end
$$;
