-- Finds new classes that mention left-out labels, and has up to p_limit of the nodes concerned judged by
-- their own profiles from now on. Returns how many.
-- Locks: left_out_label, node_state, profiles, all skip locked.
create or replace function hwqueue.split_profiles(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_label hwqueue.left_out_label;
  v_nodes uuid[];
  v_profiles bigint[];
begin
  for v_label in
    select o.* from hwqueue.left_out_label o
    where o.shard_id = p_shard and not o.is_mentioned
      and hwqueue.has_new_classes(hwqueue.valid_mark(o.next_xid), o.unseen, p_shard)
    order by o.key for no key update skip locked
  loop
    update hwqueue.left_out_label o
    set unseen = s.unseen, next_xid = s.next_xid,
        is_mentioned = exists (
            select 1 from hwqueue.placement_class c
            where c.shard_id = p_shard and not c.is_pinned and c.created_xid >= hwqueue.valid_mark(v_label.next_xid)
              and hwqueue.mentions_label(c, array[v_label.key]))
          or exists (
            select 1 from hwqueue.placement_class c
            where c.shard_id = p_shard and not c.is_pinned and c.created_xid = any (v_label.unseen)
              and hwqueue.mentions_label(c, array[v_label.key]))
    from hwqueue.seen_now() s
    where o.shard_id = p_shard and o.key = v_label.key;
  end loop;
  v_profiles := array(  -- mostly none
    select p.profile_id from hwqueue.profile s
    join hwqueue.profile p on p.shard_id = p_shard and p.judged_as = s.profile_id
    where s.shard_id = p_shard and s.left_out && array(
      select o.key from hwqueue.left_out_label o where o.shard_id = p_shard and o.is_mentioned));
  if v_profiles = '{}' then
    return 0;
  end if;
  v_nodes := array(
    select s.node_id from hwqueue.node n join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.profile_id = any (v_profiles) and s.profile_id <> n.profile_id
    order by s.node_id limit p_limit for no key update of s skip locked);
  -- read again, now that they are held
  update hwqueue.node_state s set profile_id = n.profile_id
  from hwqueue.node n
  where s.shard_id = p_shard and s.node_id = any (v_nodes) and n.shard_id = p_shard and n.node_id = s.node_id
    and n.profile_id = any (v_profiles);
  -- for update: who is about to register with the profile holds it for key share
  v_profiles := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id = any (v_profiles)
    order by p.profile_id limit p_limit for update skip locked);
  update hwqueue.profile p set judged_as = null
  where p.shard_id = p_shard and p.profile_id = any (v_profiles) and not exists (
    select 1 from hwqueue.node n join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.profile_id = p.profile_id and s.profile_id <> n.profile_id);
  return cardinality(v_nodes);
end
$$;
