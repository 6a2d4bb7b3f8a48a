-- What may be unused is found by looking at it in turn: p_limit classes and profiles a call, from where the last call ended, at the end
-- from the start. Only who holds the mark does it (take_prune_turn), and notes there that it has pruned.
-- Locks: class and profile rows, skip locked.
create or replace function hwqueue.prune_unused(p_mark hwqueue.prune_mark, p_limit int, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_next_class bigint;
  v_next_profile bigint;
begin
  if p_mark.shard_id is null then
    return;
  end if;
  v_next_class := hwqueue.retire_classes(p_mark.class_id, p_limit, p_now, p_shard);
  v_next_profile := hwqueue.prune_profiles(p_mark.profile_id, p_limit, p_now, p_shard);
  update hwqueue.prune_mark m set class_id = v_next_class, profile_id = v_next_profile, pruned_at = p_now where m.shard_id = p_shard;
end
$$;

-- Marks classes after p_after that no lease refers to, so that spawns do not find them any more: step 1 of stamp_retired.
-- Gives where to go on.
-- Locks: class rows, skip locked.
create or replace function hwqueue.retire_classes(p_after bigint, p_limit int, p_now timestamptz, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last bigint := (
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after order by c.class_id offset p_limit - 1 limit 1);
  v_unused bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after and c.class_id <= coalesce(v_last, 9223372036854775807)
      and c.retired_at is null and c.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.class_id = c.class_id)
    for update of c skip locked);
begin
  update hwqueue.placement_class c set retired_at = p_now where c.shard_id = p_shard and c.class_id = any (v_unused);
  return coalesce(v_last, 0);
end
$$;

-- Removes profiles after p_after that no node has any more, with what was judged for them. A registration that is about to use one
-- holds its row. Ends after the profile with which p_limit eligibilities have gone, too; gives where to go on.
-- Locks: profile rows, skip locked.
create or replace function hwqueue.prune_profiles(p_after bigint, p_limit int, p_now timestamptz, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_last bigint := (
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id > p_after order by p.profile_id offset p_limit - 1 limit 1);
  v_profile_id bigint;
  v_rows int;
  v_hanging int := 0;
begin
  for v_profile_id in
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id > p_after and p.profile_id <= coalesce(v_last, 9223372036854775807)
      and p.created_at < p_now - interval '1 hour'
      and not exists (select 1 from hwqueue.node n where n.shard_id = p_shard and n.profile_id = p.profile_id)
      and not exists (select 1 from hwqueue.profile j where j.shard_id = p_shard and j.judged_as = p.profile_id)
    order by p.profile_id for update of p skip locked
  loop
    -- again, now that the row is held: a registration may have committed between the look and the lock
    continue when exists (select 1 from hwqueue.node n where n.shard_id = p_shard and n.profile_id = v_profile_id)
               or exists (select 1 from hwqueue.profile j where j.shard_id = p_shard and j.judged_as = v_profile_id);
    delete from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.profile_id = v_profile_id;
    get diagnostics v_rows = row_count;
    delete from hwqueue.profile_queue s where s.shard_id = p_shard and s.profile_id = v_profile_id;
    delete from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = v_profile_id;
    v_hanging := v_hanging + v_rows;
    if v_hanging >= p_limit then
      return v_profile_id;
    end if;
  end loop;
  return coalesce(v_last, 0);
end
$$;
