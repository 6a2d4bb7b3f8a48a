-- The usual end of a claim, in as few looks as can be: completes it if the token is right. With p_is_plain only if nothing was set
-- aside for it, so that no node is involved; with p_node only if it is that node's, else only if it is the caller's. It never waits: a claim that another session
-- holds is skipped, unless the caller holds it (p_holds). False: nothing was done, settle_claim says why.
-- A lease whose claim has eligible_at goes at once, and its result with it; its outcome stays until prune, for figures and dependents.
-- Locks: node_state is held by the caller unless p_is_plain; the claim; the lease row, if that goes. Raises: nothing. Idempotent: no.
create or replace function hwqueue.finish_claim(p_lease uuid, p_token bigint, p_node uuid, p_is_plain boolean, p_holds boolean,
                                                p_result jsonb, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_queue_id int;
  v_node_id uuid;
  v_attempt smallint;
  v_claimed_at timestamptz;
  v_assignment jsonb;
  v_counted jsonb;
  v_eligible_at timestamptz;
begin
  delete from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token and (c.assignment is null or not p_is_plain)
    and (c.node_id = p_node or p_node is null and hwqueue.is_own(c.login)) and (p_holds or c.xmax = '0' or hwqueue.is_let_go(c.xmax))
  returning c.queue_id, c.node_id, c.attempt, c.claimed_at, c.assignment, c.counted, c.eligible_at
  into v_queue_id, v_node_id, v_attempt, v_claimed_at, v_assignment, v_counted, v_eligible_at;
  if not found then
    return false;
  end if;
  if v_assignment is not null then
    perform hwqueue.give_back(v_node_id, v_assignment, p_shard);
  end if;
  if v_counted is not null then
    v_counted := hwqueue.add_counts(v_counted, -1, p_shard);
  end if;
  insert into hwqueue.outcome (shard_id, lease_id, queue_id, finished_at, claimed_at, claim_token, node_id, attempt, state, result,
                               eligible_at)
  values (p_shard, p_lease, v_queue_id, hwqueue.clock(), v_claimed_at, p_token, v_node_id, v_attempt, 'completed',
          case when v_eligible_at is null then p_result end, v_eligible_at);
  if v_eligible_at is not null then
    delete from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease;
  end if;
  return true;
end
$$;

-- finish_claim for many: by lease and token, claims for which nothing was set aside or counted and that bring no
-- result; with p_node only that node's, else only the caller's. Claims that other sessions hold are left alone. Returns the places in the
-- list of those that it completed.
-- Locks: the claims by lease_id; the rows of leases that go. Raises: nothing. Idempotent: no.
create or replace function hwqueue.finish_claims(p_leases uuid[], p_tokens bigint[], p_node uuid, p_shard int) returns int[]
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  v_done int[];
  v_gone uuid[];
begin
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_ender)
  v_now := hwqueue.clock();
  with ended as (
    delete from hwqueue.claim c using hwqueue.batch_items(p_leases, p_tokens, p_shard) i
    where c.shard_id = i.shard_id and c.lease_id = i.lease_id and c.claim_token = i.claim_token
      and (c.node_id = p_node or p_node is null and hwqueue.is_own(c.login)) and c.assignment is null and c.counted is null
      and (c.xmax = '0' or hwqueue.is_let_go(c.xmax))
    returning i.ordinal, c.lease_id, c.queue_id, c.attempt, c.claim_token, c.node_id, c.claimed_at, c.eligible_at
  ), noted as (
    insert into hwqueue.outcome (shard_id, lease_id, queue_id, finished_at, claimed_at, claim_token, node_id, attempt, state,
                                 eligible_at)
    select p_shard, e.lease_id, e.queue_id, v_now, e.claimed_at, e.claim_token, e.node_id, e.attempt, 'completed', e.eligible_at
    from ended e
  )
  select coalesce(array_agg(e.ordinal), '{}'), array_agg(e.lease_id) filter (where e.eligible_at is not null)
  into v_done, v_gone from ended e;
  if v_gone is not null then
    delete from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = any (v_gone);
  end if;
  return v_done;
end
$$;

-- The items of a batch in the order in which they are locked, each once, with its first place in the list. It
-- fixes the plans of those who join it by both columns of a key: item for item (rows 1: from a larger
-- estimate the planner may read all claims or leases, and the length of a list is in no statistics), never
-- the other way round (without a constant shard_id the index of the other table has no condition to begin
-- with).
create or replace function hwqueue.batch_items(p_leases uuid[], p_tokens bigint[], p_shard int)
returns table (shard_id int, lease_id uuid, claim_token bigint, ordinal int)
language plpgsql immutable rows 1
as $$
begin
  return query
    select p_shard, i.lease_id, i.claim_token, min(i.ordinality)::int
    from unnest(p_leases, p_tokens) with ordinality i(lease_id, claim_token, ordinality)
    group by i.lease_id, i.claim_token order by i.lease_id;
end
$$;
