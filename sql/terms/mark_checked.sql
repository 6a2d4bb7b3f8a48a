-- Marks classes that must be checked at the claim wherever it is remembered that somebody may run them. True when there was something to
-- mark, or a profile or node was held by another session.
-- Locks: profile rows and node_eligibility, skip locked.
create or replace function hwqueue.mark_checked(p_class_ids bigint[], p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_profile_ids bigint[];
  v_locked bigint[];
  v_pinned boolean := exists (
    select 1 from hwqueue.node_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids) and not e.is_checked);
begin
  if v_pinned then
    update hwqueue.node_eligibility e set is_checked = true
    -- skip locked: register_node deletes them, in a transaction that may last. One that is updated between the snapshot and the lock is missed:
    -- v_pinned says that there was something to mark, and whoever is told so asks again
    where e.ctid = any (array(
      select o.ctid from hwqueue.node_eligibility o
      where o.shard_id = p_shard and o.class_id = any (p_class_ids) and not o.is_checked for update skip locked));
  end if;
  v_profile_ids := array(
    select distinct e.profile_id from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.class_id = any (p_class_ids) and not e.is_checked);
  v_locked := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id = any (v_profile_ids) for no key update skip locked);
  update hwqueue.profile_eligibility e set is_checked = true
  where e.shard_id = p_shard and e.class_id = any (p_class_ids) and e.profile_id = any (v_locked) and not e.is_checked;
  update hwqueue.profile_queue s
  set checked = array(select distinct u from unnest(s.checked || array(
        select e.class_id from hwqueue.profile_eligibility e
        where e.shard_id = p_shard and e.profile_id = s.profile_id and e.queue_id = s.queue_id and e.class_id = any (p_class_ids)
          and e.gpu_count = 0 and e.custom is null)) u limit 201)
  where s.shard_id = p_shard and s.profile_id = any (v_locked);
  return v_pinned or v_profile_ids <> '{}';
end
$$;
