-- Brings back what nobody settles: expired claims, due schedules, leases past their deadline; notes when
-- claims have to leave tainted nodes, or their queue was dropped; finds out which nodes suit a class;
-- publishes terms; counts what has ended (roll_up); tells which nodes are silent and which classes no node
-- may run; judges new classes ahead of claims. Safe to call from anywhere at any time; every part takes at
-- most p_limit and skips what others hold. What may take long, judging and ending claims, stops when
-- upkeep_budget is used up, so that what is done is kept under a statement_timeout, too. p_unless_within: do
-- nothing if somebody reaped less than that ago, so that any number of workers can call it. reaches: classes
-- of which it has found out which nodes suit them (class_fleet). more: a part has
-- reached its limit or used up its time, call again.
-- Locks: its mark, entries, claims, node_state: all skip locked; then lease rows. Raises: QHA01, QHA02.
-- Idempotent: yes.
-- Wakes: waiting workers.
create or replace function hwqueue.reap(p_limit int default 1000, p_unless_within interval default '0', p_shard int default 0)
returns table (expired int, promoted int, deadlines int, reaches int, more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_turn record;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 100000, 'call again for more');
  if p_unless_within is null or p_unless_within not between '0' and interval '1 day' then
    perform hwqueue.refuse('QHA01', format('p_unless_within must be from 0 to one day, got %s', coalesce(p_unless_within::text, 'null')),
      jsonb_build_object('field', 'p_unless_within'), 'give a span such as interval ''1 second''');
  end if;
  v_now := hwqueue.clock();
  select t.* into v_turn from hwqueue.take_reap_turn(p_unless_within, v_now, p_shard) t;
  if v_turn.goes then
    return query select * from hwqueue.reap_all(p_limit, v_turn.mark, v_turn.holds, v_now, p_shard);
  else
    return query select 0, 0, 0, 0, false;
  end if;
end
$$;

-- Reaps. p_mark: what its scans start at; if the caller holds it, it is moved on. Every five minutes the
-- scans start at the very start, should anything have come below the mark after all (a clock that was set
-- back), and low-water marks are checked for the same reason. What holds up others comes last: nodes. Where
-- reap_fleets has used up the time, watching classes and judging ahead take turns, by the version of the
-- mark: each gets its step in every other call.
-- Locks, wakes: as reap. Raises: nothing. Idempotent: yes. Plans are made once, for any arguments, and by
-- index: a table that is small now is large before the session ends.
create or replace function hwqueue.reap_all(p_limit int, p_mark hwqueue.reap_mark, p_holds boolean, p_now timestamptz, p_shard int,
                                            out expired int, out promoted int, out deadlines int, out reaches int, out more boolean)
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_from hwqueue.reap_mark := p_mark;
  v_queues int[] := array(select q.queue_id from hwqueue.queue q where q.shard_id = p_shard);
  v_again boolean;
  v_sweeps boolean;
  v_found record;
  v_counted record;
  v_postponed int;
  v_scheduled int;
  v_stays int;
  v_judged record;
  v_dropped int;
  v_uncounted boolean := false;
  v_until timestamptz := clock_timestamp() + hwqueue.upkeep_budget();
begin
  perform hwqueue.current_generation(p_shard);
  reaches := 0;
  if p_holds then
    -- first: it only reads, and what the others lock is held to the end
    select r.mark, r.more into v_counted from hwqueue.roll_up(10 * p_limit, p_mark, p_now, p_shard) r;
    v_from := v_counted.mark;
    v_uncounted := v_counted.more;
    v_sweeps := p_now not between p_mark.swept_at and p_mark.swept_at + interval '5 minutes';
    if v_sweeps then
      v_from.swept_at := p_now;
      v_from.claims_from := '-infinity';
      v_from.deadlines_from := '-infinity';
      v_from.scheduled_from := '-infinity';
    end if;
    perform hwqueue.reap_positions(v_sweeps, p_shard);
    v_again := p_now not between p_mark.estimated_at and p_mark.estimated_at + interval '10 seconds';
    select e.* into v_found from hwqueue.reap_fleets(p_mark.class_id, p_limit, v_again, p_now, p_shard) e;
    reaches := v_found.fleets;
    v_uncounted := v_uncounted or reaches >= p_limit;
    v_from.class_id := v_found.next_after;
    if v_again then
      perform hwqueue.wake_missed(10 * p_limit, p_shard);
      v_from.watched_node := hwqueue.watch_nodes(p_mark.watched_node, 5 * p_limit, p_now, p_shard);
      if clock_timestamp() < v_until or p_mark.version % 2 = 0 then
        v_from.estimated_at := p_now;
        v_from.watched_class := hwqueue.watch_classes(p_mark.watched_class, p_limit, v_found.look, p_now, p_shard);
      else
        v_uncounted := true;
      end if;
    end if;
  end if;
  perform hwqueue.publish_terms(least(p_limit, 100), true, p_now, p_shard);
  promoted := hwqueue.promote_due(v_queues, p_limit, p_now, p_shard, v_from.scheduled_from);
  deadlines := hwqueue.reap_deadlines(p_limit, p_now, p_shard, v_from.deadlines_from);
  v_scheduled := hwqueue.reap_scheduled(p_limit, p_now, p_shard);
  if p_holds then
    perform hwqueue.split_profiles(p_limit, p_shard);
    if clock_timestamp() < v_until or p_mark.version % 2 = 1 then
      select c.more, c.next_after into v_judged from hwqueue.reap_classes(p_mark.judged_profile, p_limit, v_until, p_shard) c;
      v_from.judged_profile := v_judged.next_after;
      v_uncounted := v_uncounted or v_judged.more;
    else
      v_uncounted := true;
    end if;
  end if;
  v_postponed := hwqueue.postpone_checks(p_limit, p_now, p_shard, v_from.claims_from);
  v_until := clock_timestamp() + hwqueue.upkeep_budget();
  expired := hwqueue.expire_claims(p_limit, p_now, p_shard, v_from.claims_from, v_until);
  v_stays := hwqueue.reap_stays(p_limit, p_now, p_shard);
  v_dropped := hwqueue.reap_dropped(p_limit, coalesce(v_again, true), p_now, p_shard);
  more := v_uncounted or expired > 0 and clock_timestamp() >= v_until
    or p_limit in (promoted, deadlines, v_scheduled, v_postponed, expired, v_stays, v_dropped);
  deadlines := deadlines + v_scheduled;
  if p_holds then
    perform hwqueue.move_reap_mark(p_mark, v_from, p_now, p_shard);
  end if;
end
$$;
