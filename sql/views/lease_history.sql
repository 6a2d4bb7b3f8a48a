-- The life line of a lease, oldest first. event: spawned; scheduled (waits until at, which may lie ahead), ready; claimed; how an attempt ended
-- (failed, expired, superseded, released, cancelled); how the lease did (completed, failed, cancelled). lasted: the time until the
-- event after it, or until now for the last of an open lease. detail: the error of an attempt or of the lease, what a claim has set aside.
-- Written from the lease, its attempts, its outcome and where it is now: when a retry became claimable in between is not kept.
-- Locks: none. Raises: QHL04. Idempotent: yes.
create or replace function hwqueue.lease_history(p_lease uuid, p_shard int default 0)
returns table (shard_id int, lease_id uuid, ordinal int, at timestamptz, event text, attempt int, claim_token bigint, node_id uuid, node_name text,
               lasted interval, detail jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.find_lease(p_lease, p_shard);
  return query
    with step as (
      select l.created_at as at, 1 as turn, 'spawned' as event, null::int as attempt, null::bigint as claim_token, null::uuid as node_id,
             null::jsonb as detail
      from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease
      union all
      select x.at, x.turn, x.event, a.attempt, a.claim_token, a.node_id, x.detail
      from hwqueue.attempt a
      cross join lateral (values (a.claimed_at, 3, 'claimed', null), (a.ended_at, 4, a.outcome, a.error)) x(at, turn, event, detail)
      where a.shard_id = p_shard and a.lease_id = p_lease
      union all
      select l.available_at, 5, 'scheduled', null, null, null, null
      from hwqueue.lease l
      join hwqueue.scheduled d on d.shard_id = p_shard and d.queue_id = l.queue_id and d.available_at = l.available_at and d.lease_id = l.lease_id
      where l.shard_id = p_shard and l.lease_id = p_lease
      union all
      select r.eligible_at, 5, 'ready', null, null, null, null
      from hwqueue.lease l
      join hwqueue.ready r on r.shard_id = p_shard and r.queue_id = l.queue_id and r.tier = l.tier and r.rank = l.rank
        and r.position = l.position and r.lease_id = l.lease_id
      where l.shard_id = p_shard and l.lease_id = p_lease
      union all
      select c.claimed_at, 3, 'claimed', c.attempt, c.claim_token, c.node_id, c.assignment
      from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease
      union all
      select x.at, x.turn, x.event, o.attempt, nullif(o.claim_token, 0), o.node_id, x.detail
      from hwqueue.outcome o
      cross join lateral (values (o.claimed_at, 3, 'claimed', null), (o.finished_at, 6, o.state, o.error)) x(at, turn, event, detail)
      where o.shard_id = p_shard and o.lease_id = p_lease and (x.turn = 6 or o.state = 'completed')
    )
    select p_shard, p_lease, (row_number() over o)::int, s.at, s.event, s.attempt, s.claim_token, s.node_id, n.name,
           case when s.turn < 6 then coalesce(lead(s.at) over o, greatest(s.at, v_now)) - s.at end, s.detail
    from step s
    left join hwqueue.node n on n.shard_id = p_shard and n.node_id = s.node_id
    window o as (order by s.at, coalesce(s.claim_token, case when s.turn > 1 then 9223372036854775807 else 0 end), s.turn)
    order by 3;
end
$$;

-- The life lines of all leases; ask for one by its lease_id. A caller of one tenant sees the tenant's own: what is another's is left out here,
-- since the function's refusal would name it.
create or replace view hwqueue.lease_history as
select h.shard_id, l.lease_id, h.ordinal, h.at, h.event, h.attempt, h.claim_token, h.node_id, h.node_name, h.lasted, h.detail
from hwqueue.shard s
join hwqueue.lease l on l.shard_id = s.shard_id
  and (coalesce(current_setting('hwqueue.tenant', true), '') = '' or exists (
    select from hwqueue.placement_class c
    where c.shard_id = l.shard_id and c.class_id = l.class_id and c.tenant = current_setting('hwqueue.tenant', true)))
cross join lateral hwqueue.lease_history(l.lease_id, l.shard_id) h;
