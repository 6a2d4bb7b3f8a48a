-- Judges the classes that a node's profile has not seen yet (and, for classes that name nodes, resources or trust domains, that
-- the node has not), and remembers which are eligible. A spawn of a new class tells nobody and waits for nobody (judge_batch.sql).
-- Returns in extra what could not be remembered, because another session is judging for the profile at this moment, as
-- [{"class_id", "affinity"}]; whether there may be more to judge; and, if there was
-- anything to judge, whether terms wait to be in force.
-- Locks: node_state is held by the caller; the profile row, skip locked.
create or replace function hwqueue.judge_classes(p_node hwqueue.node, p_state hwqueue.node_state, p_shard int,
                                                 out extra jsonb, out more boolean, out awaits boolean)
language plpgsql volatile
as $$
declare
  c_limit constant int := 500;
  v_state hwqueue.node_state;
  v_profile hwqueue.profile;
  v_locked hwqueue.profile;
  v_batch bigint[];
begin
  extra := '[]'::jsonb;
  more := false;
  awaits := false;
  select p.* into v_profile from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = p_node.profile_id;
  -- mostly there is nothing: one question for both
  if not hwqueue.has_new_classes(least(hwqueue.valid_mark(v_profile.classes_seen), hwqueue.valid_mark(p_state.classes_seen)),
                                 v_profile.classes_unseen || p_state.classes_unseen, p_shard) then
    return;
  end if;
  awaits := hwqueue.terms_pending(p_shard);
  -- read again: current_generation has reset what was seen since, if this is another server
  select s.* into v_state from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node.node_id;
  if hwqueue.has_new_classes(hwqueue.valid_mark(v_state.classes_seen), v_state.classes_unseen, p_shard) then
    more := hwqueue.judge_pinned(p_node, v_state, c_limit, p_shard) = c_limit;
  end if;
  if not hwqueue.has_new_classes(hwqueue.valid_mark(v_profile.classes_seen), v_profile.classes_unseen, p_shard) then
    return;
  end if;
  select p.* into v_locked from hwqueue.profile p
  where p.shard_id = p_shard and p.profile_id = p_node.profile_id for no key update skip locked;
  if found then
    more := hwqueue.judge_for_profile(v_locked, c_limit, false, p_shard) = c_limit or more;
  else
    v_batch := (hwqueue.next_classes(
      row(v_profile.classes_seen, v_profile.classes_unseen, v_profile.judged_xid, v_profile.judged_class)::hwqueue.judged,
      v_profile.anchors, false, c_limit, p_shard)).batch;
    perform hwqueue.rebind_classes(v_batch, false, p_shard), hwqueue.note_selected(v_batch, p_shard);
    select coalesce(jsonb_agg(jsonb_build_object('class_id', c.class_id, 'affinity',
             hwqueue.fixed_affinity(c, v_profile.labels, v_profile.rack, null, '{}', v_profile.taints))), '[]') into extra
    from unnest(v_batch) u(class_id)
    join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = u.class_id
    where hwqueue.suits(c, v_profile, null, '{}')
      and not exists (select 1 from hwqueue.profile_eligibility e
                        where e.shard_id = p_shard and e.profile_id = p_node.profile_id
                          and e.queue_id = c.queue_id and e.class_id = c.class_id);
  end if;
end
$$;
