-- Turns a ready entry that the caller has locked and deleted into a claim. Reads its queue's name and timeout if they are not given.
-- Locks: none. Raises: nothing. Idempotent: no.
create or replace function hwqueue.grant_lease(p_entry hwqueue.ready, p_node uuid, p_epoch bigint, p_assignment jsonb, p_claim_timeout interval,
  p_generation bigint, p_now timestamptz, p_shard int, inout queue text, inout queue_timeout interval, out task_name text, out params jsonb, out headers jsonb,
  out expires_at timestamptz)
language plpgsql volatile
as $$
declare
  v_timeout interval;
begin
  if queue is null then
    select q.name, q.claim_timeout into queue, queue_timeout
    from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_entry.queue_id;
  end if;
  select l.task_name, l.params, l.headers, l.claim_timeout into task_name, params, headers, v_timeout
  from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_entry.lease_id;
  v_timeout := coalesce(v_timeout, p_claim_timeout, queue_timeout);
  expires_at := p_now + v_timeout;
  insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt, claim_timeout,
                             claimed_at, expires_at, check_at, assignment)
  values (p_shard, p_entry.lease_id, p_entry.queue_id, p_entry.class_id, p_node, p_epoch, (p_generation << 40) + p_entry.claim_count + 1,
          p_entry.attempt_count + 1, v_timeout, p_now, expires_at, expires_at, p_assignment);
end
$$;

-- Sets aside on a node what a class needs.
-- Locks: none, the caller holds node_state and writes p_load back. Raises: nothing. Idempotent: no.
create or replace function hwqueue.set_aside(p_class_id bigint, p_node hwqueue.node, p_shard int, inout p_load hwqueue.node_load,
                                             out assignment jsonb)
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
  v_taken record;
begin
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  v_taken := hwqueue.take_room(v_class, p_node,
    case when v_class.gpu_count > 0 then hwqueue.choose_devices(v_class.gpu_count, v_class.gpu_milli, v_class.gpu_wanted,
      hwqueue.node_headroom(p_node, p_load)) end, p_load);
  p_load := v_taken.p_load;
  assignment := v_taken.assignment;
end
$$;

-- The same for entries that score alike and that the caller has locked, all in one statement, in the order of claim_task: where nothing is set
-- aside.
-- Locks: none. Raises: nothing. Idempotent: no.
create or replace function hwqueue.grant_batch(p_places tid[], p_node uuid, p_epoch bigint, p_claim_timeout interval, p_generation bigint,
  p_now timestamptz, p_shard int)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb, headers jsonb,
               expires_at timestamptz)
language plpgsql volatile
as $$
begin
  return query
    with taken as (
      delete from hwqueue.ready r where r.ctid = any (p_places) returning r.*
    ), detail as materialized (
      select t.lease_id, t.queue_id, t.class_id, t.tier, t.rank, t.position, (p_generation << 40) + t.claim_count + 1 as claim_token,
             (t.attempt_count + 1)::smallint as attempt, q.name, l.task_name, l.params, l.headers,
             coalesce(l.claim_timeout, p_claim_timeout, q.claim_timeout) as claim_timeout
      from taken t
      -- fences (offset 0): by key, lease for lease. How many are taken is in no statistics, and the planner might read all leases there are
      cross join lateral (
        select * from hwqueue.lease x where x.shard_id = p_shard and x.lease_id = t.lease_id offset 0) l
      cross join lateral (
        select * from hwqueue.queue x where x.shard_id = p_shard and x.queue_id = t.queue_id offset 0) q
    ), granted as (
      insert into hwqueue.claim (shard_id, lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt, claim_timeout,
                                 claimed_at, expires_at, check_at)
      select p_shard, d.lease_id, d.queue_id, d.class_id, p_node, p_epoch, d.claim_token, d.attempt, d.claim_timeout,
             p_now, p_now + d.claim_timeout, p_now + d.claim_timeout
      from detail d
    )
    select d.lease_id, d.claim_token, d.attempt, d.name, d.task_name, d.params, d.headers, p_now + d.claim_timeout
    from detail d order by d.tier, d.rank, d.position;
end
$$;
