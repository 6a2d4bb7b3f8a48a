-- Samples: how full the fleet was and what waited, by the minute for six hours, by the hour for 35 days.
--
-- Example: at 03:00 nodes that live have 64 A100, 60 of them are in use, and leases that wait ask for 12
-- more: a row (gpus, 03:00, A100, 60, 64, 12). 800 leases wait for a slot of their limit: (waits, 03:00,
-- limit, 0, 0, 800). The row of waits without a name has all: what runs, nodes that live, what waits.
-- Upkeep counts; claims and spawns write nothing for it. fleet_history shows it.

-- Takes the samples of this minute, and makes one of each hour that is over, if nobody has yet.
-- Locks: new rows. Idempotent.
create or replace function hwqueue.take_samples(p_now timestamptz) returns void
language plpgsql volatile
  set enable_seqscan = on set enable_hashjoin = on set plan_cache_mode = force_custom_plan
as $$
declare
  v_minute timestamptz := date_trunc('minute', p_now);
  v_hour timestamptz := date_trunc('hour', p_now, 'UTC');
begin
  if v_minute = (select max(s.at) from hwqueue.sample s where s.kind = 'waits' and not s.is_hour) then
    return;
  end if;
  with pending as materialized (
    select r.class_id, count(*) as leases from hwqueue.ready r group by 1
  ), live as materialized (
    select n.node_id, n.gpu_models from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
  ), device as (
    select d.model as name, coalesce(d.used, 0) / 1000.0 as used, 1 as present, 0.0 as waiting
    from live n
    left join hwqueue.newest_loads() u on u.node_id = n.node_id
    cross join lateral unnest(n.gpu_models, u.gpu_used) d(model, used)
    union all
    select coalesce(g.models ->> 0, ''), 0, 0,
           p.leases * case when c.gpu_milli > 0 then c.gpu_milli / 1000.0 else c.gpu_count end
    from pending p
    join hwqueue.placement_class c on c.class_id = p.class_id
    cross join lateral (  -- of one that names several models: any
      select jsonb_path_query_first(c.placement,
        '$.require[*] ? (@.label == "gpu_model" && @.op == "in" && @.values.size() == 1).values') as models
      offset 0) g
    where c.gpu_count > 0
  ), wait as (
    select case when f.reach > 0 or f.class_id is null then 'room' else coalesce(f.part, 'nodes') end as name,
           p.leases
    from pending p left join hwqueue.class_fleet f on f.class_id = p.class_id
    union all
    select s.held_by::text, count(*) from hwqueue.scheduled s where s.held_by <> 'time' group by 1
  )
  insert into hwqueue.sample (kind, is_hour, at, name, used, present, waiting)
  select o.kind, false, v_minute, o.name, o.used, o.present, o.waiting
  from (
    (select 'gpus' as kind, d.name, sum(d.used) as used, sum(d.present) as present, sum(d.waiting) as waiting
     from device d group by d.name
     order by sum(d.present) > 0 desc, sum(d.present) + sum(d.waiting) desc limit 50)
    union all
    select 'waits', w.name, 0, 0, sum(w.leases) from wait w group by w.name
    union all
    select 'waits', '', (select count(*) from hwqueue.claim c where c.is_reserved is not true),
           (select count(*) from live), (select coalesce(sum(w.leases), 0) from wait w)) o
  on conflict do nothing;
  insert into hwqueue.sample (kind, is_hour, at, name, used, present, waiting)
  select s.kind, true, h.at, s.name, sum(s.used) / h.minutes, sum(s.present) / h.minutes,
         sum(s.waiting) / h.minutes
  from (
    select date_trunc('hour', x.at, 'UTC') as at, count(*) as minutes from hwqueue.sample x
    where x.kind = 'waits' and not x.is_hour and x.name = '' and x.at < v_hour
    group by 1) h
  join hwqueue.sample s on s.kind in ('gpus', 'waits') and not s.is_hour
    and s.at >= h.at and s.at < h.at + interval '1 hour'
  where not exists (select from hwqueue.sample x where x.kind = 'waits' and x.is_hour and x.at = h.at)
  group by s.kind, s.name, h.at, h.minutes
  on conflict do nothing;
  delete from hwqueue.sample s
  where s.kind in ('gpus', 'waits') and (not s.is_hour and s.at < v_minute - interval '6 hours'
    or s.is_hour and s.at < v_hour - interval '35 days' or s.at > v_minute);  -- the clock was set back
end
$$;
