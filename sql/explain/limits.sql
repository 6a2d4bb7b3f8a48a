-- What a lease waits for in its lane, in words.
--
-- explain/explain calls limit_wait. Example: "3rd of 120 of key u42 in limit per_user; 2 of 2 slots are in
-- use: 0197... runs on gpu-1, 0197... runs on gpu-2".

-- Says where a waiting lease stands in its lane, what is through, and when the lane opens, if that is known.
-- code: limit_reached (slots), rate_limited (a rate, or a lane that is closed), behind_its_key (fair). Nulls:
-- it stands in none.
create or replace function hwqueue.limit_wait(p_lease hwqueue.lease, p_now timestamptz,
  out headline text, out code text, out opens_at timestamptz)
language plpgsql stable
as $$
declare
  v_entry hwqueue.scheduled;
  v_rule hwqueue.limit_rule;
  v_lane hwqueue.lane;
  v_ref hwqueue.lane_ref;
  v_before bigint;
begin
  select s.* into v_entry from hwqueue.scheduled s
  where s.queue_id = p_lease.queue_id and s.available_at = p_lease.available_at
    and s.lease_id = p_lease.lease_id;
  if v_entry.lane_id & 3 = 3 then
    code := 'queue_paused';
    headline := (select format('waits for its limits when queue %s goes on', q.name) from hwqueue.queue q
                 where q.queue_id = v_entry.queue_id);
    return;
  end if;
  v_ref := p_lease.lanes[coalesce(p_lease.lanes_passed, 0) + (v_entry.lane_id is not null)::int];
  select r.* into v_rule from hwqueue.limit_rule r where r.limit_id = v_ref.limit_id;
  if v_entry.lane_id is null then
    if v_rule.kind = 'rate' and p_lease.lanes_passed = cardinality(p_lease.lanes) then
      headline := format('limit %s opens for it in %s', v_rule.name,
        hwqueue.span_words(v_entry.available_at - p_now));
      code := 'rate_limited';
      opens_at := v_entry.available_at;
    end if;
    return;
  end if;
  select l.* into v_lane from hwqueue.lane l where l.lane_id = v_entry.lane_id;
  v_lane.weight := coalesce(v_lane.weight, hwqueue.lane_weight(v_rule, v_ref.key));
  v_before := (select count(*) from (
    select 1 from hwqueue.scheduled s
    where s.lane_id = v_entry.lane_id
      and (s.tier, s.rank, s.turn) < (v_entry.tier, v_entry.rank, v_entry.turn) limit 10000) b);
  headline := format('%s of %s%s in limit %s', to_char(v_before + 1, 'FM99999th'), (
      select case when count(*) > 10000 then 'more than 10000' else count(*)::text end
      from (select 1 from hwqueue.scheduled s where s.lane_id = v_entry.lane_id limit 10001) c),
    coalesce(' of ' || replace(v_rule.spec ->> 'by', 'quota', 'tenant') || ' ' || v_ref.key, ''),
    v_rule.name);
  case v_rule.kind
    when 'slots' then
      code := 'limit_reached';
      headline := headline || format('; %s of %s slots are in use', coalesce(hwqueue.lane_used(v_lane), 0),
        hwqueue.lane_most(v_rule, v_lane)) || (
        select coalesce(': ' || string_agg(format('%s runs on %s', c.lease_id,
          coalesce(n.name, c.node_id::text)), ', ' order by c.claimed_at, c.lease_id), '')
        from (select x.* from hwqueue.claim x where v_entry.lane_id = any (x.lanes)
              order by x.claimed_at, x.lease_id limit 5) c
        left join hwqueue.node n on n.node_id = c.node_id);
    when 'rate' then
      code := 'rate_limited';
      opens_at := greatest(p_now, v_lane.tat + v_before * v_rule.per);
      headline := headline || format('; one starts each %s, it not before %s from now',
        hwqueue.span_words(v_rule.per), hwqueue.span_words(opens_at - p_now));
    else
      code := 'behind_its_key';
      headline := headline || format('; keys take turns, and %s of this one may be in line',
        hwqueue.lane_most(v_rule, v_lane));
  end case;
  if v_lane.closed_until > p_now then
    code := 'rate_limited';
    opens_at := greatest(opens_at, v_lane.closed_until);
    headline := headline || format('; closed for %s more', hwqueue.span_words(v_lane.closed_until - p_now));
  end if;
end
$$;

-- Returns the classes with most leases that wait for a limit, and what the one that was spawned first waits
-- for: ids that nobody chose rise with time.
create or replace function hwqueue.parked_reasons(p_queue_id int, p_class bigint, p_limit int,
  p_now timestamptz)
returns table (class_id bigint, pending bigint, oldest_at timestamptz, code text, message text)
language plpgsql stable set enable_nestloop = on
as $$ begin return query
  select w.class_id, w.pending, (l.lease).created_at, t.code, t.headline
  from (
    select s.class_id, count(*) as pending, min(s.lease_id::text collate "C")::uuid as first_id
    from hwqueue.scheduled s
    where s.lane_id is not null and (p_queue_id is null or s.queue_id = p_queue_id)
      and (p_class is null or s.class_id = p_class)
    group by s.class_id order by 2 desc, 1 limit p_limit) w
  cross join lateral (select x as lease from hwqueue.lease x where x.lease_id = w.first_id offset 0) l
  cross join lateral hwqueue.limit_wait(l.lease, p_now) t;
end $$;
