-- The usual end of a claim, in as few looks as can be: completes it if the token is right. With p_is_plain only if nothing was set
-- aside for it, so that no node is involved; with p_node only if it is that node's, else only if it is the caller's. False: nothing was
-- done, settle_claim says why.
-- Locks: node_state is held by the caller unless p_is_plain; the claim; the lease row. Raises: nothing. Idempotent: no.
create or replace function hwqueue.finish_claim(p_lease uuid, p_token bigint, p_node uuid, p_is_plain boolean, p_result jsonb, p_shard int)
returns boolean
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_now timestamptz;
begin
  delete from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token and (c.assignment is null or not p_is_plain)
    and (c.node_id = p_node or p_node is null and hwqueue.is_own(c.login))
  returning c.* into v_claim;
  if not found then
    return false;
  end if;
  if v_claim.assignment is not null then
    perform hwqueue.give_back(v_claim.node_id, v_claim.assignment, p_shard);
  end if;
  if v_claim.counted is not null then
    perform hwqueue.add_counts(v_claim.counted, -1, p_shard);
  end if;
  v_now := hwqueue.clock();
  update hwqueue.lease l
  set state = 'completed', attempt_count = v_claim.attempt, claim_token = p_token, node_id = v_claim.node_id,
      claimed_at = v_claim.claimed_at, finished_at = v_now, result = p_result
  where l.shard_id = p_shard and l.lease_id = p_lease;
  insert into hwqueue.finished (shard_id, queue_id, state, finished_at, lease_id)
  values (p_shard, v_claim.queue_id, 'completed', v_now, p_lease);
  return true;
end
$$;

-- finish_claim for many: by lease and token, claims for which nothing was set aside or counted and that bring no result; with p_node only that
-- node's, else only the caller's. Gives the places in the list of those that it completed.
-- Locks: the claims and the lease rows by lease_id. Raises: nothing. Idempotent: no.
create or replace function hwqueue.finish_claims(p_leases uuid[], p_tokens bigint[], p_node uuid, p_shard int) returns int[]
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  v_done int[];
begin
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_ender)
  v_now := hwqueue.clock();
  with item as (
    select i.lease_id, i.claim_token, min(i.ordinality)::int as ordinal
    from unnest(p_leases, p_tokens) with ordinality i(lease_id, claim_token, ordinality)
    group by i.lease_id, i.claim_token order by i.lease_id
  ), ended as (
    -- fences (offset 0) and places: by key, item for item. How many there are is in no statistics, and the planner might read all
    -- claims or leases there are
    delete from hwqueue.claim c using item i
    cross join lateral (
      select x.ctid as place from hwqueue.claim x where x.shard_id = p_shard and x.lease_id = i.lease_id offset 0) p
    where c.ctid = p.place and c.lease_id = i.lease_id and c.claim_token = i.claim_token
      and (c.node_id = p_node or p_node is null and hwqueue.is_own(c.login))
      and c.assignment is null and c.counted is null
    returning i.ordinal, c.lease_id, c.queue_id, c.attempt, c.claim_token, c.node_id, c.claimed_at
  ), record as (
    update hwqueue.lease l
    set state = 'completed', attempt_count = e.attempt, claim_token = e.claim_token, node_id = e.node_id, claimed_at = e.claimed_at,
        finished_at = v_now, result = null
    from ended e
    cross join lateral (
      select x.ctid as place from hwqueue.lease x where x.shard_id = p_shard and x.lease_id = e.lease_id offset 0) p
    where l.ctid = p.place
  ), noted as (
    insert into hwqueue.finished (shard_id, queue_id, state, finished_at, lease_id)
    select p_shard, e.queue_id, 'completed', v_now, e.lease_id from ended e
  )
  select array_agg(e.ordinal) into v_done from ended e;
  return coalesce(v_done, '{}');
end
$$;
