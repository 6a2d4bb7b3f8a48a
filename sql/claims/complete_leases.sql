-- complete_lease for many, without results, in one call: p_lease_ids[i] was claimed with p_tokens[i]. One that cannot be completed undoes
-- none of the others. Gives those that were not completed, in their order, counted from 1, and why (verdict: lost, cancelled, finished,
-- bad_token; a lease that does not exist is lost); no rows: all of them were.
-- Locks: node_state of the claims' nodes, by node_id; the claims by lease_id; the lease rows.
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
  v_done int[] := '{}';
  v_item record;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_completions(p_lease_ids, p_tokens);
  -- all of their nodes: what is set aside for a running claim may change until its node is held
  v_nodes := array(
    select distinct c.node_id
    from unnest(p_lease_ids, p_tokens) i(lease_id, claim_token)
    cross join lateral (
      select x.node_id from hwqueue.claim x
      where x.shard_id = p_shard and x.lease_id = i.lease_id and x.claim_token = i.claim_token offset 0) c);
  perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = any (v_nodes) order by s.node_id for no key update;
  v_is_counted := exists (
    select from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = any (v_nodes) and s.is_counted);
  if not v_is_counted then
    v_done := hwqueue.finish_claims(p_lease_ids, p_tokens, null, p_shard);
  end if;
  if cardinality(v_done) < cardinality(p_lease_ids) then
    for v_item in
      select i.lease_id, i.claim_token, i.ordinality::int as ordinal
      from unnest(p_lease_ids, p_tokens) with ordinality i(lease_id, claim_token, ordinality)
      where i.ordinality <> all (v_done) order by i.lease_id, i.ordinality
    loop
      if hwqueue.finish_claim(v_item.lease_id, v_item.claim_token, null, false, null, p_shard) then
        v_done := v_done || v_item.ordinal;
      end if;
    end loop;
    return query
      select i.ordinality::int, i.lease_id, case w.verdict when 'unknown' then 'lost' else w.verdict end, w.state, p_shard
      from unnest(p_lease_ids, p_tokens) with ordinality i(lease_id, claim_token, ordinality)
      cross join lateral hwqueue.why_not_settled(i.lease_id, i.claim_token, (
        select c.claim_token from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = i.lease_id), p_shard) w
      where i.ordinality <> all (v_done) order by i.ordinality;
  end if;
end
$$;

-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_completions(p_lease_ids uuid[], p_tokens bigint[]) returns void
language plpgsql immutable
as $$
begin
  if array_ndims(p_lease_ids) > 1 or array_ndims(p_tokens) > 1 or cardinality(p_lease_ids) is distinct from cardinality(p_tokens)
     or cardinality(p_lease_ids) is null or cardinality(p_lease_ids) > 1000 then
    perform hwqueue.refuse('QHA01', 'p_lease_ids and p_tokens must be lists of the same length, of at most 1000',
      jsonb_build_object('field', 'p_lease_ids'), 'give each lease''s claim_token at the same place as its lease_id');
  end if;
  if array_position(p_lease_ids, null) is not null then
    perform hwqueue.refuse('QHA01', 'p_lease_ids must not contain null', jsonb_build_object('field', 'p_lease_ids'),
      'pass each lease_id as claim_task gave it');
  end if;
  if array_position(p_tokens, null) is not null then
    perform hwqueue.refuse('QHA01', 'p_tokens must not contain null', jsonb_build_object('field', 'p_tokens'),
      'pass each claim_token as claim_task gave it');
  end if;
end
$$;
