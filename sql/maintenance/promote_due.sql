-- Makes scheduled leases claimable whose time has come, oldest first, at most p_limit of them. Mostly there are none, and every claim
-- asks: that is one look at the index.
-- p_from: where the scan starts; null: at the mark.
-- Locks: their entries, skip locked; then their lease rows; then classes that waited for them, skip locked.
create or replace function hwqueue.promote_due(p_queue_ids int[], p_limit int, p_now timestamptz, p_shard int, p_from timestamptz default null)
returns int
language plpgsql volatile
as $$
declare
  v_from timestamptz;
  v_due hwqueue.scheduled[];
  v_waiting bigint[];
begin
  perform 1 from hwqueue.scheduled s
  where s.shard_id = p_shard and s.queue_id = any (p_queue_ids) and s.available_at <= p_now and s.available_at >= coalesce(p_from, (
    select m.scheduled_from from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1), '-infinity')
  limit 1;
  if not found then
    return 0;
  end if;
  select m.scheduled_from into v_from from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1;
  v_from := coalesce(p_from, v_from, '-infinity');
  v_due := array(
    select d.entry
    from (select distinct u.queue_id from unnest(p_queue_ids) u(queue_id)) q  -- one's own locks are not skipped: each queue once
    cross join lateral (
      select s as entry, s.available_at from hwqueue.scheduled s
      where s.shard_id = p_shard and s.queue_id = q.queue_id and s.available_at >= v_from and s.available_at <= p_now
      order by s.available_at limit p_limit for update skip locked
    ) d
    order by d.available_at limit p_limit);
  if v_due = '{}' then
    return 0;  -- held by others
  end if;
  with gone as (
    delete from hwqueue.scheduled s using unnest(v_due) d
    where s.shard_id = p_shard and s.queue_id = d.queue_id and s.available_at = d.available_at and s.lease_id = d.lease_id
    returning s.class_id
  )
  select array_agg(c.class_id) into v_waiting
  from gone g join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = g.class_id
  where c.waits;
  with entry as (
    insert into hwqueue.ready as r (shard_id, queue_id, tier, attempt_count, claim_count, rank, class_id, lease_id, eligible_at, deadline)
    -- one that is too late already must not come below the mark of the deadlines
    select p_shard, d.queue_id, d.tier, d.attempt_count, d.claim_count, d.rank, d.class_id, d.lease_id,
           case when d.deadline <= p_now then p_now else d.available_at end, d.deadline
    from unnest(v_due) d order by d.available_at
    returning r.lease_id, r.position
  )
  update hwqueue.lease l set position = e.position
  from entry e where l.shard_id = p_shard and l.lease_id = e.lease_id;
  if v_waiting is not null then
    perform hwqueue.wake_due(v_waiting, p_shard);
  end if;
  return cardinality(v_due);
end
$$;
