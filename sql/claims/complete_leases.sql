-- complete_lease for many, without results, in one call: p_lease_ids[i] was claimed with p_tokens[i]. One that cannot be completed undoes
-- none of the others. Gives those that were not completed, and why; no rows: all of them were.
-- Locks: node_state, by node_id, of claims for which something was set aside; the claims by lease_id; the lease rows.
-- Raises: QHA01, QHA02. Idempotent: no, the second call finds them finished. Plans: by index, as in claim_task.
create or replace function hwqueue.complete_leases(p_lease_ids uuid[], p_tokens bigint[], p_shard int default 0)
returns table (ordinal int, lease_id uuid, verdict text, state text, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_nodes uuid[];
  v_done int[];
  v_token bigint;
begin
  perform hwqueue.require_read_committed(), hwqueue.check_completions(p_lease_ids, p_tokens);
  -- a peek: if a claim moves before the locks are held, its token will not match any more
  v_nodes := array(
    select distinct c.node_id
    from unnest(p_lease_ids) i(lease_id)
    cross join lateral (
      select x.node_id from hwqueue.claim x
      where x.shard_id = p_shard and x.lease_id = i.lease_id and x.assignment is not null offset 0) c);
  if v_nodes <> '{}' then
    perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = any (v_nodes) order by s.node_id for no key update;
  end if;
  v_done := hwqueue.finish_claims(p_lease_ids, p_tokens, null, p_shard);
  if cardinality(v_done) = cardinality(p_lease_ids) then
    return;
  end if;
  shard_id := p_shard;
  for ordinal, lease_id, v_token in
    select i.ordinality, i.lease_id, i.claim_token
    from unnest(p_lease_ids, p_tokens) with ordinality i(lease_id, claim_token, ordinality)
    where i.ordinality <> all (v_done)
    order by i.lease_id, i.ordinality
  loop
    continue when hwqueue.finish_claim(lease_id, v_token, null, false, null, p_shard);
    select case w.verdict when 'unknown' then 'lost' else w.verdict end, w.state into verdict, state
    from hwqueue.why_not_settled(lease_id, v_token, (
      select c.claim_token from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = complete_leases.lease_id), p_shard) w;
    return next;
  end loop;
end
$$;

-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.check_completions(p_lease_ids uuid[], p_tokens bigint[]) returns void
language plpgsql immutable
as $$
begin
  if array_ndims(p_lease_ids) > 1 or array_ndims(p_tokens) > 1 or cardinality(p_lease_ids) is distinct from cardinality(p_tokens)
     or cardinality(p_lease_ids) is null or cardinality(p_lease_ids) > 10000 then
    perform hwqueue.refuse('QHA01', 'p_lease_ids and p_tokens must be lists of the same length, of at most 10000',
      jsonb_build_object('field', 'p_lease_ids'), 'give each lease''s claim_token at the same place as its lease_id');
  end if;
  if array_position(p_lease_ids, null) is not null or array_position(p_tokens, null) is not null then
    perform hwqueue.refuse('QHA01', 'p_lease_ids and p_tokens must not contain null', jsonb_build_object('field', 'p_lease_ids'),
      'pass both as claim_task gave them');
  end if;
end
$$;
