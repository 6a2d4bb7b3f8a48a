-- Removes profiles that no node has any more, with what was judged for them. A registration that is about to use one holds
-- its row.
-- Locks: profile rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.prune_profiles(p_limit int, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_gone bigint[];
begin
  v_gone := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.node n where n.shard_id = p_shard and n.profile_id = p.profile_id)
    limit p_limit for update skip locked);
  -- again, now that the rows are held: a registration may have committed between the look and the lock
  v_gone := array(
    select g from unnest(v_gone) g
    where not exists (select 1 from hwqueue.node n where n.shard_id = p_shard and n.profile_id = g));
  delete from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.profile_id = any (v_gone);
  delete from hwqueue.profile_queue s where s.shard_id = p_shard and s.profile_id = any (v_gone);
  delete from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = any (v_gone);
end
$$;
