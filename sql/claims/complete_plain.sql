-- The usual end of a claim, in as few looks as can be: completes it if the token is right and nothing was set aside for it, so that no
-- node is involved; with p_node, only a claim of that node. False: nothing was done, settle_claim says why or does it.
-- Locks: the claim; the lease row. Raises: nothing. Idempotent: no.
create or replace function hwqueue.complete_plain(p_lease uuid, p_token bigint, p_node uuid, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
begin
  delete from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = p_lease and c.claim_token = p_token and c.assignment is null
    and (p_node is null or c.node_id = p_node)
  returning c.* into v_claim;
  if not found then
    return false;
  end if;
  perform hwqueue.finish_completed(v_claim, null, hwqueue.clock(), p_shard);
  return true;
end
$$;

-- Writes down that the claimed work is done.
-- Locks: the claim is held (and deleted) by the caller; the lease row. Raises: nothing. Idempotent: no.
create or replace function hwqueue.finish_completed(p_claim hwqueue.claim, p_result jsonb, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.lease l
  set state = 'completed', attempt_count = p_claim.attempt, claim_token = p_claim.claim_token, node_id = p_claim.node_id,
      claimed_at = p_claim.claimed_at, finished_at = p_now, result = p_result
  where l.shard_id = p_shard and l.lease_id = p_claim.lease_id;
  insert into hwqueue.finished (shard_id, queue_id, state, finished_at, lease_id)
  values (p_shard, p_claim.queue_id, 'completed', p_now, p_claim.lease_id);
end
$$;

-- complete_plain for a batch: [{"lease_id", "claim_token", "outcome": "complete"}], see is_plain_batch. Gives what it completed.
-- Locks: the claims and the lease rows by lease_id. Raises: nothing. Idempotent: no.
create or replace function hwqueue.complete_plain_batch(p_settle jsonb, p_node uuid, p_now timestamptz, p_shard int)
returns table (ordinal int, lease_id uuid)
language plpgsql volatile
as $$
begin
  return query
    with item as (
      select min(e.ordinality)::int as ordinal, (e.value ->> 'lease_id')::uuid as lease_id, (e.value ->> 'claim_token')::bigint as claim_token
      from jsonb_array_elements(p_settle) with ordinality e
      group by 2, 3 order by 2
    ), ended as (
      -- fences (offset 0) and places: by key, item for item. How many there are is in no statistics, and the planner might read all
      -- claims or leases there are
      delete from hwqueue.claim c using item i
      cross join lateral (
        select x.ctid as place from hwqueue.claim x where x.shard_id = p_shard and x.lease_id = i.lease_id offset 0) p
      where c.ctid = p.place and c.lease_id = i.lease_id and c.claim_token = i.claim_token and c.node_id = p_node and c.assignment is null
      returning i.ordinal, c.lease_id, c.queue_id, c.attempt, c.claim_token, c.claimed_at
    ), record as (
      update hwqueue.lease l
      set state = 'completed', attempt_count = e.attempt, claim_token = e.claim_token, node_id = p_node, claimed_at = e.claimed_at,
          finished_at = p_now, result = null
      from ended e
      cross join lateral (
        select x.ctid as place from hwqueue.lease x where x.shard_id = p_shard and x.lease_id = e.lease_id offset 0) p
      where l.ctid = p.place
    ), noted as (
      insert into hwqueue.finished (shard_id, queue_id, state, finished_at, lease_id)
      select p_shard, e.queue_id, 'completed', p_now, e.lease_id from ended e
    )
    select e.ordinal, e.lease_id from ended e;
end
$$;

-- Whether a settlement needs no closer look: a completion without result, well formed.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.is_plain_completion(p_item jsonb) returns boolean
language sql immutable parallel safe
as $$
  select jsonb_typeof(p_item) = 'object'
     and p_item - '{lease_id,claim_token,outcome}'::text[] = '{}'
     and p_item ->> 'outcome' = 'complete'
     and jsonb_typeof(p_item -> 'claim_token') = 'number' and p_item ->> 'claim_token' ~ '^[0-9]{1,18}$'
     and p_item ->> 'lease_id' ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
$$;

-- Whether a whole batch is of that kind.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.is_plain_batch(p_settle jsonb) returns boolean
language plpgsql immutable
as $$
begin
  if jsonb_typeof(p_settle) is distinct from 'array' then
    return false;
  end if;
  for i in 0 .. jsonb_array_length(p_settle) - 1 loop
    if hwqueue.is_plain_completion(p_settle -> i) is distinct from true then
      return false;
    end if;
  end loop;
  return true;
end
$$;
