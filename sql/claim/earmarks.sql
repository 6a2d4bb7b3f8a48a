-- Claims of nodes that have reservations: what is reserved, what passes earmarks, what fits beside them.
--
-- claim_task and settle_and_claim (api/claims) call claim_beside_reserved for a node with has_reserved,
-- instead of the claims that all other nodes make. An example: a gang is earmarked on gpu-1. A lease of the
-- same rank that needs no GPU runs beside it; one that needs a GPU waits, unless its tier or rank is earlier.
--
-- Invariant: a claim that is granted in room that is kept for others comes before them by tier and rank. The
-- load of the node counts both meanwhile.

-- Grants what a node has reserved. Where there is none, leases that come before what is earmarked there, as
-- if that were not; then leases that fit beside it. A node that has just registered grants none of these
-- before everywhere tasks have booked their room (expands_until).
-- Locks: the caller holds node_state; as fetch_reserved and claim_general. Raises as claim_general. Not
-- idempotent.
create or replace function hwqueue.claim_beside_reserved(p_request hwqueue.claim_request,
  p_state hwqueue.node_state, p_moves boolean, p_drawn bigint)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb)
language plpgsql volatile
as $$
declare
  v_request hwqueue.claim_request := p_request;
  v_before hwqueue.later_class;
begin
  return query select f.* from hwqueue.fetch_reserved(p_request) f;
  if found or p_state.expands_until > hwqueue.clock() then
    return;
  end if;
  for v_before in
    select distinct 0, o.tier, o.rank from hwqueue.claim c
    cross join lateral hwqueue.earmark_order(c.lease_id) o
    where c.node_id = p_request.node_id and c.is_earmark
    order by o.tier, o.rank
  loop
    return query select b.* from hwqueue.claim_over_earmarks(p_request, p_state, v_before) b;
    if found then
      return;
    end if;
  end loop;
  -- an earmark waits for a place of the worker as it waits for a device
  select case when count(*) filter (where c.is_earmark) = 0 then p_request.qty
    else greatest(0, least(p_request.qty, min(n.concurrency) - count(*)::int)) end
  into v_request.qty
  from hwqueue.claim c
  join hwqueue.node n on n.node_id = c.node_id
  where c.node_id = p_request.node_id;
  if v_request.qty > 0 then
    return query select g.* from hwqueue.claim_general(v_request, p_state, null, p_moves, p_drawn) g;
  end if;
end
$$;

-- Grants leases as if the earmarks of a node that are of this tier and rank or come later were not there:
-- leases before that tier and rank. Not idempotent.
-- Locks: the caller holds node_state; as choose_by_score; what it passes, skip locked. Raises: QHQ01, QHN01.
create or replace function hwqueue.claim_over_earmarks(p_request hwqueue.claim_request,
  p_state hwqueue.node_state, p_before hwqueue.later_class)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb)
language plpgsql volatile
as $$
declare
  v_node hwqueue.node := hwqueue.read_node(p_state.node_id);
  v_passed uuid[] := hwqueue.later_earmarks(p_state.node_id, p_before.tier, p_before.rank);
  v_kept jsonb[] := hwqueue.booked_on(p_state.node_id, v_passed);
  v_load hwqueue.node_load := hwqueue.add_uses(hwqueue.read_load(p_state.node_id), v_node, v_kept, -1);
  v_generation bigint := hwqueue.node_generation(p_state.node_id);
  v_left int;
  v_room hwqueue.headroom;
  v_picked hwqueue.picked_entries;
  v_class hwqueue.placement_class;
  v_taken record;
begin
  p_request.now := hwqueue.clock();
  p_request.queue_ids := hwqueue.open_queues(p_request.queues);
  v_left := least(p_request.qty, v_node.concurrency - (
    select count(*)::int from hwqueue.claim c
    where c.node_id = p_state.node_id and c.lease_id <> all (v_passed)));
  while v_left > 0 loop
    v_room := hwqueue.node_headroom(v_node, v_load);
    begin
      v_picked := hwqueue.choose_by_score(p_request, p_state, v_room, 1, '{}', false, p_before);
      if v_picked.ctids <> '{}' and cardinality(v_passed) > cardinality(array(
          select c.lease_id from hwqueue.claim c
          where c.lease_id = any (v_passed) and c.is_earmark for update skip locked)) then
        perform hwqueue.abort_subtransaction();
      end if;
    exception when sqlstate 'HWX01' then  -- upkeep backs one of them
      v_picked.ctids := '{}';
    end;
    exit when v_picked.ctids = '{}';
    select c.* into v_class from hwqueue.placement_class c
    where c.class_id = (
      select r.class_id from hwqueue.ready r where r.ctid = v_picked.ctids[1]);
    v_taken := hwqueue.allocate_for_class(v_class, v_node, v_room, v_load);
    v_left := v_left - 1;
    v_load := v_taken.p_load;
    return query
      select g.* from hwqueue.grant_entries(p_request, v_picked, p_state, null, v_generation,
        v_taken.assignment) g;
  end loop;
  if v_class.class_id is not null then
    perform hwqueue.write_load(hwqueue.add_uses(v_load, v_node, v_kept, 1));
  end if;
end
$$;
