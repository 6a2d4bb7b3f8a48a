-- Judges new classes ahead of claims, profile by profile, so that a claim mostly finds it done and holds
-- its node for less time. What names nodes, resources or trust domains is left to the claims of those
-- nodes: only they hold the node. So is a class that costs more than judge_budget. Looks at p_limit
-- profiles after p_after, in turn over the calls, and judges up to p_limit classes, each for one profile.
-- Profiles that nobody registers with any more are left out. Also forgets which transactions ran when a
-- profile judged last, once they have ended: each is an index probe for every claim. Stops after
-- p_until, by the real clock, but not before it has judged something. Returns how many it judged, whether
-- there may be more, and where to go on: at the same profile if the limit or the time came in between.
-- Locks: profile rows, skip locked; the shard's row, skip locked.
create or replace function hwqueue.reap_classes(p_after bigint, p_limit int, p_until timestamptz, p_shard int,
                                                out judged int, out more boolean, out next_after bigint)
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last bigint := (
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id > p_after order by p.profile_id offset p_limit - 1 limit 1);
  v_profile_id bigint;
  v_profile hwqueue.profile;
  v_wanted int;
  v_count int;
begin
  judged := 0;
  more := true;
  for v_profile_id in
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id > p_after and p.profile_id <= coalesce(v_last, 9223372036854775807)
      and (hwqueue.has_new_classes(hwqueue.valid_mark(p.classes_seen), p.classes_unseen, p_shard)
           or p.classes_unseen <> '{}' and exists (select 1 from unnest(p.classes_unseen) u where hwqueue.has_ended(u)))
      and p.judged_as is null and exists (
        select 1 from hwqueue.node n
        where n.shard_id = p_shard and n.profile_id = any (hwqueue.profiles_judged_as(p.profile_id, p_shard))
          and n.deregistered_at is null)
    order by p.profile_id
  loop
    loop
      v_wanted := least(500, p_limit - judged);
      if v_wanted = 0 or judged > 0 and clock_timestamp() >= p_until then
        next_after := v_profile_id - 1;
        return;
      end if;
      select p.* into v_profile from hwqueue.profile p
      where p.shard_id = p_shard and p.profile_id = v_profile_id for no key update skip locked;
      exit when not found;
      if not hwqueue.has_new_classes(hwqueue.valid_mark(v_profile.classes_seen), v_profile.classes_unseen, p_shard) then
        -- the time of judging stays as it was: a new one would bring in those who run now
        v_profile.classes_unseen := hwqueue.still_unseen(v_profile.classes_unseen, p_shard);
        update hwqueue.profile p set classes_unseen = v_profile.classes_unseen
        where p.shard_id = p_shard and p.profile_id = v_profile_id;
        update hwqueue.profile_queue s set classes_unseen = v_profile.classes_unseen
        where s.shard_id = p_shard and s.profile_id = v_profile_id;
        exit;
      end if;
      v_count := hwqueue.judge_for_profile(v_profile, v_wanted, true, p_shard);
      judged := judged + v_count;
      exit when v_count < v_wanted;
    end loop;
  end loop;
  more := judged = p_limit;
  next_after := coalesce(v_last, 0);
end
$$;
