-- Tells once when leases of a class wait that no live node may run, by what the nodes are, what they serve
-- and have in all, and when that is over. Cordoned nodes count: what they would run is not refused for good.
-- By what reap_fleets has found out of these nodes: looks first at what it found out just now,
-- for half of the time: otherwise, where nodes change all the time, a row would be out of date whenever its
-- turn comes. Then at p_limit classes after p_after of those that no node may run, or were told of, in turn
-- over the calls. For up to 50 ms (of the real clock), at one at least; gives where to go on. A class that
-- another session holds, prune for one, is left for another time.
-- Locks: the caller holds the mark of reap; rows of class_fleet, skip locked.
create or replace function hwqueue.watch_classes(p_after bigint, p_limit int, p_look hwqueue.fleet_look, p_now timestamptz, p_shard int)
returns bigint
language plpgsql volatile
as $$
declare
  v_began_at timestamptz := clock_timestamp();
  v_fleet record;
  v_count int := 0;
  v_last bigint := 0;
begin
  for v_fleet in
    select f.class_id, f.told_at, hwqueue.is_unmatched(m, p_look.live) as unmatched
    from hwqueue.class_fleet f
    join hwqueue.class_nodes m on m.shard_id = p_shard and m.class_id = f.class_id and m.digest = p_look.digest
    where f.shard_id = p_shard and f.looked_at = p_now
      and hwqueue.is_unmatched(m, p_look.live) = (f.told_at is null)
    order by f.class_id
  loop
    perform hwqueue.watch_class(v_fleet.class_id, v_fleet.told_at, v_fleet.unmatched, p_now, p_shard);
    exit when clock_timestamp() - v_began_at > interval '25 milliseconds';
  end loop;
  for v_fleet in
    select f.class_id, f.told_at, hwqueue.is_unmatched(m, p_look.live) as unmatched
    from hwqueue.class_fleet f
    left join hwqueue.class_nodes m on m.shard_id = p_shard and m.class_id = f.class_id and m.digest = p_look.digest
    where f.shard_id = p_shard and f.class_id > p_after and (f.unmatched or f.told_at is not null)
    order by f.class_id limit p_limit
  loop
    v_count := v_count + 1;
    v_last := v_fleet.class_id;
    perform hwqueue.watch_class(v_fleet.class_id, v_fleet.told_at, v_fleet.unmatched, p_now, p_shard);
    if clock_timestamp() - v_began_at > interval '50 milliseconds' then
      return v_last;
    end if;
  end loop;
  return case when v_count = p_limit then v_last else 0 end;
end
$$;

-- Whether no live node may run a class, cordoned ones included; null: not known.
create or replace function hwqueue.is_unmatched(p_fit hwqueue.class_nodes, p_live bit varying) returns boolean
language sql immutable parallel safe
as $$ select case when bit_count((p_fit).nodes & p_live) = 0 then true when (p_fit).is_known then false end $$;

-- Tells of one class what there is to tell. p_told_at: since when it is told of; p_unmatched: as is_unmatched.
-- Locks: its row of class_fleet, skip locked.
create or replace function hwqueue.watch_class(p_class_id bigint, p_told_at timestamptz, p_unmatched boolean, p_now timestamptz, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_waits boolean := exists (
    select 1 from hwqueue.ready r
    join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = r.queue_id
    where r.shard_id = p_shard and r.class_id = p_class_id and q.dropped_at is null);
  v_is_news boolean := case when p_told_at is null then p_unmatched and v_waits else not (v_waits and coalesce(p_unmatched, true)) end;
begin
  if v_is_news then
    -- as it is now: it may have been told just before
    perform 1 from hwqueue.class_fleet f
    where f.shard_id = p_shard and f.class_id = p_class_id and f.told_at is not distinct from p_told_at
    for no key update skip locked;
    if not found then
      return;
    elsif p_told_at is null then
      perform hwqueue.tell_unmatched(p_class_id, p_now, p_shard);
    else
      update hwqueue.class_fleet f set told_at = null where f.shard_id = p_shard and f.class_id = p_class_id;
      perform hwqueue.note_event('class_unmatched_over', format('leases of task %s: %s', c.task_name,
          case when v_waits then 'a live node matches' else 'none is waiting any more' end), p_shard,
        p_queue => hwqueue.queue_name(c.queue_id, p_shard), p_class => c.class_id)
      from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
    end if;
  end if;
end
$$;

-- The name of a queue, dropped or not.
create or replace function hwqueue.queue_name(p_queue_id int, p_shard int) returns text
language sql stable
as $$ select q.name from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_queue_id $$;

-- Tells that leases of a class wait that no live node may run, with the commonest permanent reason among
-- twenty live nodes, fewer of a class that costs much to judge.
-- Locks: the class's row of class_fleet. Idempotent: no.
create or replace function hwqueue.tell_unmatched(p_class_id bigint, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
  v_nodes int;
  v_reasons jsonb;
  v_first record;
begin
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  update hwqueue.class_fleet f set told_at = p_now where f.shard_id = p_shard and f.class_id = p_class_id;
  with sample as (
    select n.node_id, hwqueue.class_reasons(v_class, n, hwqueue.idle_load(n), null, p_now, p_shard) as reasons
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
    order by n.node_id limit greatest(1, least(20, 20 * hwqueue.judge_budget() / v_class.cost))
  ), counted as (
    select r.value ->> 'code' as code, min(r.value ->> 'message') as message, count(distinct s.node_id) as nodes
    from sample s, jsonb_array_elements(s.reasons) r
    where (r.value ->> 'permanent')::boolean group by 1
  )
  select (select count(*) from sample), (select jsonb_object_agg(c.code, c.nodes) from counted c) into v_nodes, v_reasons;
  select c.key as code, c.value::int as nodes into v_first
  from jsonb_each_text(v_reasons) c order by c.value::int desc, c.key limit 1;
  perform hwqueue.note_event('class_unmatched', format('no live node matches leases of task %s that wait: %s', v_class.task_name,
      case when v_nodes = 0 then 'no node is live' else format('%s on %s of %s', v_first.code, v_first.nodes, v_nodes) end),
    p_shard, jsonb_build_object('reason', case when v_nodes = 0 then 'node_not_live' else v_first.code end, 'reasons', v_reasons),
    p_queue => hwqueue.queue_name(v_class.queue_id, p_shard), p_class => p_class_id);
end
$$;
