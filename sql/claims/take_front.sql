-- Locks the oldest entries of the best tier and rank of a queue that a plain node may run, up to p_limit of them, and gives their
-- places; no places: they are not at the front, or what the node may run of this queue is not all alike to it, see pick_leases.
-- Walks a stretch of as many positions as the queue's window has entries: some may be other queues'.
-- Locks: the entries, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_front(p_profile_id bigint, p_classes_seen xid8, p_queue_id int, p_tasks text[], p_limit int,
                                              p_now timestamptz, p_shard int) returns tid[]
language plpgsql volatile
as $$
declare
  v_eligible record;
  v_start record;
  v_places tid[];
begin
  select s.is_plain, s.classes, s.task_names, p.classes_seen, greatest(q.window_size, p_limit) as reach into v_eligible
  from hwqueue.profile p
  join hwqueue.profile_queue s on s.shard_id = p_shard and s.profile_id = p_profile_id and s.queue_id = p_queue_id
  join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = p_queue_id
  where p.shard_id = p_shard and p.profile_id = p_profile_id;
  if v_eligible.is_plain is distinct from true then
    return '{}';
  end if;
  perform 1 from hwqueue.placement_class c
  where c.shard_id = p_shard and c.created_xid >= least(v_eligible.classes_seen, p_classes_seen) order by c.created_xid limit 1;
  if found then
    return '{}';
  end if;
  v_start := hwqueue.front_start(p_queue_id, p_shard);
  loop
    if cardinality(v_eligible.classes) <= 200
       and (p_tasks is null or cardinality(v_eligible.task_names) <= 50 and v_eligible.task_names <@ p_tasks) then
      v_places := array(
        select r.ctid from hwqueue.ready r
        where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = v_start.tier and r.rank = v_start.rank
          and r.position between v_start.position and v_start.position + v_eligible.reach - 1
          and r.class_id = any (v_eligible.classes) and (r.deadline is null or r.deadline > p_now)
        order by r.position limit p_limit
        for update skip locked);
    else
      v_places := array(
        select r.ctid from hwqueue.ready r
        where r.shard_id = p_shard and r.queue_id = p_queue_id and r.tier = v_start.tier and r.rank = v_start.rank
          and r.position between v_start.position and v_start.position + v_eligible.reach - 1
          and exists (select 1 from hwqueue.profile_eligibility e
                      where e.shard_id = p_shard and e.profile_id = p_profile_id and e.queue_id = p_queue_id and e.class_id = r.class_id
                        and (p_tasks is null or e.task_name = any (p_tasks)))
          and (r.deadline is null or r.deadline > p_now)
        order by r.position limit p_limit
        for update skip locked);
    end if;
    if v_places <> '{}' or v_start.is_entry then
      return v_places;
    end if;
    -- the mark is far behind: once more, from the first entry that lives
    v_start := hwqueue.queue_front(p_queue_id, p_shard);
    if v_start.tier is null then
      return '{}';
    end if;
  end loop;
end
$$;
