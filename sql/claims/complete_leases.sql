-- complete_lease for many, without results, in one call: p_lease_ids[i] was claimed with p_tokens[i]. One that cannot be completed undoes
-- none of the others. Gives those that were not completed, in their order, counted from 1, and why (verdict: lost, cancelled, finished,
-- bad_token: never granted, or to another login; a lease that does not exist is lost; busy: another session holds the claim, complete it
-- again later); no rows: all of them were.
-- Locks: node_state of the claims' nodes, by node_id; the claims by lease_id.
-- Raises: QHA01, QHA02. Idempotent: no, the second call finds them finished. Plans: by index, as in claim_task.
create or replace function hwqueue.complete_leases(p_lease_ids uuid[], p_tokens bigint[], p_shard int default 0)
returns table (ordinal int, lease_id uuid, verdict text, state text, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_nodes uuid[];
  v_is_counted boolean;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_completions(p_lease_ids, p_tokens, 'p_lease_ids', 'p_tokens');
  -- all of their nodes: what is set aside for a running claim may change until its node is held
  v_nodes := array(
    select distinct c.node_id
    from unnest(p_lease_ids, p_tokens) i(lease_id, claim_token)
    cross join lateral (
      select x.node_id from hwqueue.claim x
      where x.shard_id = p_shard and x.lease_id = i.lease_id and x.claim_token = i.claim_token and hwqueue.is_own(x.login) offset 0) c);
  perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = any (v_nodes) order by s.node_id for no key update;
  v_is_counted := exists (
    select from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = any (v_nodes) and s.is_counted);
  return query
    select c.ordinal, c.lease_id, c.verdict, c.state, p_shard
    from hwqueue.complete_claims(p_lease_ids, p_tokens, null, v_is_counted, p_shard) c;
end
$$;

-- Completes what it can and tells what it could not and why; with p_node only that node's claims.
-- Locks: node_state is held by the caller; the claims by lease_id, as settle_each. Raises: nothing. Idempotent: no.
create or replace function hwqueue.complete_claims(p_lease_ids uuid[], p_tokens bigint[], p_node uuid, p_is_counted boolean, p_shard int)
returns table (ordinal int, lease_id uuid, verdict text, state text)
language plpgsql volatile
as $$
declare
  v_done int[] := '{}';
  v_item record;
begin
  if not p_is_counted then
    v_done := hwqueue.finish_claims(p_lease_ids, p_tokens, p_node, p_shard);
  end if;
  if cardinality(v_done) < cardinality(p_lease_ids) then
    for v_item in
      select i.lease_id, i.claim_token, i.ordinality::int as ordinal
      from unnest(p_lease_ids, p_tokens) with ordinality i(lease_id, claim_token, ordinality)
      where i.ordinality <> all (v_done) order by i.lease_id, i.ordinality
    loop
      if hwqueue.finish_claim(v_item.lease_id, v_item.claim_token, p_node, false, false, null, p_shard) then
        v_done := v_done || v_item.ordinal;
      end if;
    end loop;
  end if;
  if cardinality(v_done) < cardinality(p_lease_ids) then
    return query
      with rest as (
        select i.lease_id, i.claim_token, i.ordinality::int as ordinal, row_number() over (order by i.ordinality) as place
        from unnest(p_lease_ids, p_tokens) with ordinality i(lease_id, claim_token, ordinality) where i.ordinality <> all (v_done)
      )
      select r.ordinal, r.lease_id, s.verdict, s.state
      from hwqueue.settle_each(p_node, (
        select jsonb_agg(jsonb_build_object('lease_id', r.lease_id, 'claim_token', r.claim_token, 'outcome', 'complete') order by r.place)
        from rest r), p_shard) s
      join rest r on r.place = s.ordinal
      where s.verdict <> 'ok' order by r.ordinal;
  end if;
end
$$;

-- How many there are, if the two lists match. The arguments' names are for its errors.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_completions(p_lease_ids uuid[], p_tokens bigint[], p_ids_name text, p_tokens_name text) returns int
language plpgsql immutable
as $$
begin
  if array_ndims(p_lease_ids) > 1 or array_ndims(p_tokens) > 1 or cardinality(p_lease_ids) is distinct from cardinality(p_tokens)
     or cardinality(p_lease_ids) is null or cardinality(p_lease_ids) > 1000 then
    perform hwqueue.refuse('QHA01', format('%s and %s must be lists of the same length, of at most 1000', p_ids_name, p_tokens_name),
      jsonb_build_object('field', p_ids_name), 'give each lease''s claim_token at the same place as its lease_id');
  end if;
  if array_position(p_lease_ids, null) is not null then
    perform hwqueue.refuse('QHA01', format('%s must not contain null', p_ids_name), jsonb_build_object('field', p_ids_name),
      'pass each lease_id as claim_task gave it');
  end if;
  if array_position(p_tokens, null) is not null then
    perform hwqueue.refuse('QHA01', format('%s must not contain null', p_tokens_name), jsonb_build_object('field', p_tokens_name),
      'pass each claim_token as claim_task gave it');
  end if;
  return cardinality(p_lease_ids);
end
$$;
