-- Judges the classes that a node's profile has not seen yet (and, for classes that name nodes, resources or trust domains, that
-- the node has not), and remembers which are eligible. A class is unseen if the transaction that wrote it could still have
-- been running when the profile last looked: so a spawn of a new class tells nobody and waits for nobody.
-- Gives in extra what could not be remembered, because another claim is judging for the profile at this moment, as
-- [{"class_id", "affinity"}]; and whether there may be more to judge.
-- Locks: node_state is held by the caller; the profile row, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.judge_classes(p_node hwqueue.node, p_state hwqueue.node_state, p_shard int,
                                                 out extra jsonb, out more boolean)
language plpgsql volatile
as $$
declare
  -- read before the classes are: whatever finished below the horizon, the statements below can see
  v_horizon xid8 := pg_snapshot_xmin(pg_current_snapshot());
  v_state hwqueue.node_state;
  v_profile hwqueue.profile;
  v_locked hwqueue.profile;
  v_batch bigint[];
begin
  extra := '[]'::jsonb;
  more := false;
  -- ordered, so that it is one look at the index: mostly there is nothing, and a scan would read every class to find that out
  perform 1 from hwqueue.placement_class c
  where c.shard_id = p_shard and c.created_xid >= (
    select least(hwqueue.valid_mark(p.classes_seen), hwqueue.valid_mark(p_state.classes_seen))
    from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = p_node.profile_id)
  order by c.created_xid limit 1;
  if not found then
    return;
  end if;
  select p.* into v_profile from hwqueue.profile p where p.shard_id = p_shard and p.profile_id = p_node.profile_id;
  -- read anew: current_generation has set the marks back since, if this is another server
  select s.* into v_state from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node.node_id;
  more := hwqueue.judge_pinned(p_node, v_state, v_horizon, p_shard);
  select p.* into v_locked from hwqueue.profile p
  where p.shard_id = p_shard and p.profile_id = p_node.profile_id for no key update skip locked;
  if found then
    more := hwqueue.judge_for_profile(v_locked, v_horizon, p_shard) or more;
  else
    v_batch := hwqueue.unseen_classes(hwqueue.valid_mark(v_profile.classes_seen), v_profile.classes_judged,
                                      hwqueue.profile_anchors(p_node.labels, p_node.rack), false, p_shard);
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
