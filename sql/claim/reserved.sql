-- Reservations: claims that a node has not fetched yet.
--
-- gangs/assemble writes them: the room of all members of a gang is booked in one transaction, on several
-- nodes, and the next claim of each node fetches its members. claim_task and settle_and_claim (api/claims)
-- call fetch_reserved before they look for other work. Example: member 3 of a gang is reserved on gpu-1
-- until 10:00:30. gpu-1 asks for work at 10:00:01 and gets it, with its devices and the token that the
-- reservation has.
--
-- Invariant: a reservation is a claim in all other respects. It counts for capacity and affinity terms, it
-- expires, and its end puts the lease back (end_claim), but uses up no attempt.

-- Returns reservations of a node as claims that begin now, up to the number that is asked for, of the queues
-- and tasks that are asked for. One that the node may not run any more is released: its gang is placed again.
-- Locks: the caller holds node_state; the claims by lease_id, skip locked; as end_claim. Not idempotent.
create or replace function hwqueue.fetch_reserved(p_request hwqueue.claim_request)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb, shard_id int)
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_node hwqueue.node := hwqueue.read_node(p_request.node_id, p_request.shard_id);
  v_claims hwqueue.claim[];
  v_claim hwqueue.claim;
  v_lease hwqueue.lease;
begin
  shard_id := p_request.shard_id;
  score := 0;
  v_claims := array(
    select c from hwqueue.claim c
    join hwqueue.queue q on q.shard_id = c.shard_id and q.queue_id = c.queue_id
    join hwqueue.lease l on l.shard_id = c.shard_id and l.lease_id = c.lease_id
    where c.shard_id = p_request.shard_id and c.node_id = p_request.node_id and c.is_reserved
      and c.expires_at > v_now and q.name = any (p_request.queues) and q.dropped_at is null
      and q.paused_at is null and (p_request.tasks is null or l.task_name = any (p_request.tasks))
    order by c.lease_id limit p_request.qty for update of c skip locked);
  foreach v_claim in array v_claims loop
    select l.* into v_lease from hwqueue.lease l
    where l.shard_id = p_request.shard_id and l.lease_id = v_claim.lease_id;
    select q.name into queue from hwqueue.queue q
    where q.shard_id = p_request.shard_id and q.queue_id = v_claim.queue_id;
    if v_claim.stop_requested_at <= v_now or v_lease.deadline <= v_now or v_node.cordoned_at is not null
      or not hwqueue.node_suits(v_claim.class_id, v_node, v_now) then
      perform hwqueue.end_claim(v_claim, 'released', null, v_now, v_now, p_request.shard_id);
      continue;
    end if;
    update hwqueue.claim c
    set is_reserved = null, claimed_at = v_now, claim_timeout = t.span, expires_at = v_now + t.span,
        check_at = v_now + t.span
    from (select coalesce(v_lease.claim_timeout, p_request.claim_timeout, v_claim.claim_timeout) as span) t
    where c.shard_id = p_request.shard_id and c.lease_id = v_claim.lease_id
    returning c.lease_id, c.claim_token, c.attempt, c.expires_at, c.assignment
    into lease_id, claim_token, attempt, expires_at, assignment;
    task_name := v_lease.task_name;
    params := v_lease.params;
    headers := v_lease.headers;
    return next;
  end loop;
  insert into hwqueue.gang_change (shard_id, gang_id)
  select distinct p_request.shard_id, c.gang_id from unnest(v_claims) c;
  update hwqueue.node_state s set has_reserved = false
  where s.shard_id = p_request.shard_id and s.node_id = p_request.node_id and not exists (
    select from hwqueue.claim c
    where c.shard_id = p_request.shard_id and c.node_id = p_request.node_id and c.is_reserved);
end
$$;

-- Whether a node may run leases of a class, by the static rules as they are now.
create or replace function hwqueue.node_suits(p_class_id bigint, p_node hwqueue.node, p_now timestamptz)
returns boolean
language sql stable
as $$
  select hwqueue.suits(c, p, p_node.node_id, p_node.resources || p_node.gpu_ids,
    hwqueue.attested_at(p_node, p_now), p_node.gpu_ids, p_node.gpu_parents)
  from hwqueue.placement_class c
  join hwqueue.profile p on p.shard_id = p_node.shard_id and p.profile_id = p_node.profile_id
  where c.shard_id = p_node.shard_id and c.class_id = p_class_id
$$;
