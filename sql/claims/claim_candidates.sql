-- The classes of these queues that a claim of a node has to look at: all that the node may run but those that are known to be blocked. What blocked
-- them is asked once, of all of them, and remembered with its proof (node_candidates). Later claims ask whether the proof still holds, which
-- costs a look at each count that blocks and is the same for one class and a thousand:
--   counts of terms in the node's places are still above 0 (away: both ways);
--   the first of the leases that wait for a better node has not waited enough, and no node has moved (class_range);
--   the node is the same, and so are what its profile may run and the queues' policies (versions: read before what they guard).
-- Only what is claimable may depend on it: a class that is left out too long is late, until `until` at most; one that is
-- not left out is decided as ever. Null: all of them; where leases of the node alone wait, nothing is remembered.
-- blocked: those of the classes that were found blocked now; met: all that were, null when the proof of an earlier claim held.
-- Locks: node_state is held by the caller. Raises: QHN01. Idempotent: yes.
create or replace function hwqueue.claim_candidates(p_state hwqueue.node_state, p_queue_ids int[], p_now timestamptz, p_shard int,
  out classes bigint[], out blocked bigint[], out met bigint[])
language plpgsql volatile
as $$
declare
  v_known hwqueue.node_candidates;
  v_node hwqueue.node;
  v_versions text[];
  v_all bigint[];
  v_checked bigint[];
  v_found record;
begin
  select k.* into v_known
  from hwqueue.node_candidates k
  where k.shard_id = p_shard and k.node_id = p_state.node_id and k.queue_ids = p_queue_ids and k.profile_id = p_state.profile_id
    and not k.queue_ids && p_state.pinned_queues
    and k.node_moved = p_state.moved_xid and k.until > p_now
    and k.versions = hwqueue.candidate_versions(p_state.profile_id, p_queue_ids, p_shard)
    and (k.fleet_next is null or not hwqueue.has_moved(k.fleet_unseen, k.fleet_next, p_shard))
    and not exists (
      select 1 from unnest(k.term_ids, k.places, k.by_holders) b(term_id, place, by_holders)
      where coalesce((
        select sum(case when b.by_holders then c.holders else c.leases end) from hwqueue.term_count c
        where c.shard_id = p_shard and c.term_id = b.term_id and c.domain = b.place), 0) <= 0);
  if found and not v_known.asks then
    classes := v_known.classes;
    blocked := '{}';
    return;
  end if;
  v_node := hwqueue.judged_node(p_state, p_now, p_shard);
  if v_known.asks then
    classes := v_known.classes;
    blocked := (hwqueue.blocked_classes(classes, v_node, p_now, p_shard)).blocked;
    return;
  end if;
  v_versions := hwqueue.candidate_versions(p_state.profile_id, p_queue_ids, p_shard);
  select coalesce(array_agg(e.class_id), '{}'), coalesce(array_agg(e.class_id) filter (where e.is_checked), '{}') into v_all, v_checked
  from unnest(p_queue_ids) q(queue_id)
  cross join lateral hwqueue.eligible_classes(p_state.profile_id, p_state.node_id, q.queue_id, null, p_shard) e;
  v_found := hwqueue.blocked_classes(v_checked, v_node, p_now, p_shard);
  met := v_found.blocked;
  if p_queue_ids && p_state.pinned_queues then
    blocked := met;
    return;
  end if;
  classes := array(select c from unnest(v_all) c where c not in (select unnest(v_found.lasting)));
  blocked := array(select b from unnest(v_found.blocked) b where b not in (select unnest(v_found.lasting)));
  if v_found.lasting <> '{}' and cardinality(classes) <= 200 and cardinality((v_found.known).term_ids) <= 1000 then
    insert into hwqueue.node_candidates (shard_id, node_id, queue_ids, classes, asks, profile_id, node_moved, versions, term_ids, places,
                                         by_holders, fleet_next, fleet_unseen, until)
    values (p_shard, p_state.node_id, p_queue_ids, classes, blocked <> '{}', p_state.profile_id, p_state.moved_xid, v_versions,
            (v_found.known).term_ids, (v_found.known).places, (v_found.known).by_holders, (v_found.known).fleet_next,
            (v_found.known).fleet_unseen, (v_found.known).until)
    on conflict (shard_id, node_id) do update
    set queue_ids = excluded.queue_ids, classes = excluded.classes, asks = excluded.asks, profile_id = excluded.profile_id,
        node_moved = excluded.node_moved, versions = excluded.versions, term_ids = excluded.term_ids, places = excluded.places,
        by_holders = excluded.by_holders, fleet_next = excluded.fleet_next, fleet_unseen = excluded.fleet_unseen, until = excluded.until;
  end if;
end
$$;

-- Which versions of its rows say what a profile may run of these queues, and how long it waits there. A SQL function of one
-- select: it is put in place of its call.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.candidate_versions(p_profile_id bigint, p_queue_ids int[], p_shard int) returns text[]
language sql stable
as $$
  select array(
    select p.xmin::text from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = p_profile_id
    union all
    select q.xmin::text from (
      select x.xmin from hwqueue.queue x where x.shard_id = p_shard and x.queue_id = any (p_queue_ids) order by x.queue_id offset 0) q)
$$;
