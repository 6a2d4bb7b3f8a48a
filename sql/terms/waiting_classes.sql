-- Those of these classes whose leases all wait for a better node, as far as it is remembered how well nodes suit them.
-- until: when the first of them may have waited enough, if no node moves (next_xid, unseen: what this look has
-- seen). At most for a second: a lease that gets another class (update_lease), or is committed late, is older.
-- What is known of many classes is read at once and joined by hash: in half the time.
create or replace function hwqueue.waiting_classes(p_classes bigint[], p_node hwqueue.node, p_now timestamptz, p_shard int,
  out classes bigint[], out until timestamptz, out next_xid xid8, out unseen xid8[])
language plpgsql stable set enable_hashjoin = on set enable_nestloop = off
as $$
declare
  v_moved xid8;
  v_profile_id bigint;  -- that is judged for the node
begin
  classes := '{}';
  perform 1 from hwqueue.class_range r where r.shard_id = p_shard limit 1;
  if not found then  -- nothing waits
    return;
  end if;
  v_profile_id := (select s.profile_id from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node.node_id);
  v_moved := (select s.moved_xid from hwqueue.node_state s where s.shard_id = p_shard order by s.moved_xid desc limit 1);
  with fresh as materialized (
    select r.* from hwqueue.class_range r
    where r.shard_id = p_shard and r.class_id = any (p_classes) and r.live_until > p_now and v_moved < r.next_xid
  ), moving as materialized (
    select array(
      select s.moved_xid from hwqueue.node_state s
      where s.shard_id = p_shard and s.moved_xid = any (array(
        select u from (select distinct f.unseen from fresh f) d, unnest(d.unseen) u))
      order by s.moved_xid) as xids  -- in order, for the index on it
  ), alive as materialized (
    select s.node_id, s.seen_at + s.heartbeat_timeout as until from hwqueue.node_state s
    where s.shard_id = p_shard and s.node_id = any (array(
      select f.best_node from fresh f union select f.worst_node from fresh f))
  ), known as materialized (
    select r.class_id, r.best, r.worst, least(b.until, w.until, r.live_until) as live_until, c.queue_id, c.patience
    from fresh r
    join alive b on b.node_id = r.best_node and b.until > p_now
    join alive w on w.node_id = r.worst_node and w.until > p_now
    join hwqueue.placement_class c on c.class_id = r.class_id
    where c.shard_id = p_shard and c.class_id = any (p_classes) and not r.unseen && (select m.xids from moving m)
  ), open_queue as materialized (
    select q.queue_id, q.patience, f.tier, f.rank, f.position,
           (select true from hwqueue.ready x  -- mostly a queue has one tier and rank
            where x.shard_id = p_shard and x.queue_id = q.queue_id and (x.tier, x.rank) > (f.tier, f.rank)
            order by x.tier, x.rank, x.position limit 1) as has_more
    from hwqueue.queue q
    cross join lateral hwqueue.queue_front(q.queue_id, p_shard) f
    where q.shard_id = p_shard and q.queue_id = any (array(select distinct k.queue_id from known k))
  )
  select coalesce(array_agg(k.class_id), '{}'), min(least(h.eligible_at + w.wait, k.live_until, p_now + interval '1 second'))
  into classes, until
  from known k
  join open_queue q on q.queue_id = k.queue_id
  cross join lateral (
    select e.affinity from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.profile_id = v_profile_id and e.queue_id = k.queue_id and e.class_id = k.class_id
    union all
    select e.affinity from hwqueue.node_eligibility e
    where e.shard_id = p_shard and e.node_id = p_node.node_id and e.queue_id = k.queue_id and e.class_id = k.class_id
    limit 1) e
  cross join lateral (
    select x.tier, x.rank, x.eligible_at from hwqueue.ready x
    where x.shard_id = p_shard and x.class_id = k.class_id and (x.tier, x.rank, x.position) >= (q.tier, q.rank, q.position)
    order by x.tier, x.rank, x.position limit 1) h
  cross join lateral (select hwqueue.wait_between(coalesce(k.patience, q.patience), e.affinity, k.best, k.worst) as wait) w
  where h.eligible_at + w.wait > p_now
    -- behind it in this tier and rank all are younger. No anti join, which would read all that wait
    and (q.has_more is null or (
      select true from hwqueue.ready x
      where x.shard_id = p_shard and x.class_id = k.class_id and (x.tier, x.rank) > (h.tier, h.rank)
      order by x.tier, x.rank, x.position limit 1) is null);
  if classes <> '{}' then
    select s.next_xid, s.unseen into next_xid, unseen from hwqueue.seen_now() s;
  end if;
end
$$;
