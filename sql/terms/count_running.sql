-- Counts for a term what runs already and was claimed by calls that did not know it. False when a claim is held by somebody, who
-- may be settling it, or when there are any and p_holds is false: then nothing was done, and a later call tries again.
-- Locks: claims, skip locked; term_count, skip locked.
create or replace function hwqueue.count_running(p_term hwqueue.term, p_holds boolean, p_shard int) returns boolean
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_known jsonb := jsonb_build_array(jsonb_build_object('t', p_term.term_id));
  v_lease uuid := (p_term.spec #>> '{all,0,lease}')::uuid;
  v_classes bigint[];
  v_claims uuid[];
  v_locked int;
  v_count record;
begin
  v_classes := array(
    select m.class_id from hwqueue.class_term m where m.shard_id = p_shard and m.term_id = p_term.term_id
    union
    select k.class_id from hwqueue.placement_class k
    where p_term.use = 'away' and k.shard_id = p_shard and k.terms <> '[]'
      and k.terms @> jsonb_build_array(jsonb_build_object('digest', p_term.digest)));
  v_claims := array(
    select c.lease_id
    from hwqueue.claim c
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
    where c.shard_id = p_shard and c.class_id = any (v_classes) and (c.counted @> v_known) is not true
      and (coalesce(c.lease_id = v_lease, true)
           or p_term.use = 'away' and k.terms @> jsonb_build_array(jsonb_build_object('digest', p_term.digest))));
  if v_claims <> '{}' and not p_holds then
    return false;
  end if;
  select count(*) into v_locked from (
    select 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = any (v_claims) for update skip locked) l;
  if v_locked < cardinality(v_claims) then
    return false;
  end if;
  for v_count in
    select c.lease_id, jsonb_build_array(t.value) as counted
    from hwqueue.claim c
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = c.class_id
    join hwqueue.node n on n.shard_id = p_shard and n.node_id = c.node_id
    cross join lateral jsonb_array_elements(hwqueue.counts_of(k, c.lease_id, n, p_shard)) t
    -- asked again: before it was ours, register_node may have counted it anew
    where c.shard_id = p_shard and c.lease_id = any (v_claims) and (c.counted @> v_known) is not true
      and (t.value -> 't')::bigint = p_term.term_id
  loop
    update hwqueue.claim c set counted = coalesce(c.counted, '[]') || v_count.counted
    where c.shard_id = p_shard and c.lease_id = v_count.lease_id;
    perform hwqueue.add_counts(v_count.counted, 1, p_shard);
  end loop;
  return true;
end
$$;
