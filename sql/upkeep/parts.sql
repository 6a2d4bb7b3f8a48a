-- The parts of reap and prune, of which none undoes another: api/upkeep.reap and prune call run_parts.
--
-- Example: statement_timeout ends the part that rolls up figures. That part is undone; claims that had
-- expired are ended all the same. The next calls run it last, and let it count half as much.
--
-- Invariant: however short the statement_timeout of the caller, a part that takes longer keeps no other one
-- from being done. What a part has done is whole.

-- Runs the parts of p_kind that are due, each in a savepoint: what is cut short or fails is undone alone and
-- noted (base/postponed). Once time is up no further part begins, because it would not be timed again, and
-- the part that took longest is to blame. Nothing is caught where the notes are another session's.
-- Locks, wakes: as the parts.
create or replace function hwqueue.run_parts(p_kind text, p_parts text[], p_limit int,
  p_done hwqueue.upkeep_done, p_now timestamptz) returns hwqueue.upkeep_done
language plpgsql volatile
as $$
declare
  v_part record;
  v_done hwqueue.upkeep_done;
  v_began_at timestamptz;
  v_longest interval := '-1';
  v_slowest text;
  v_is_over boolean;
  v_state text;
  v_error text;
begin
  for v_part in select d.part, d.most from hwqueue.parts_due(p_kind, p_parts, p_limit, p_now) d loop
    v_began_at := clock_timestamp();
    v_state := null;
    v_error := null;
    begin
      v_done := case p_kind when 'reap'
          then hwqueue.reap_part(v_part.part, v_part.most, p_limit, p_done, p_now)
        else hwqueue.prune_part(v_part.part, v_part.most, p_done, p_now) end;
      perform hwqueue.follow_ended(true);
      p_done := v_done;  -- a variable is not undone with its savepoint
    exception when query_canceled or others then
      v_state := sqlstate;
      v_error := sqlerrm;
      if not p_done.holds then
        raise;
      end if;
    end;
    if clock_timestamp() - v_began_at > v_longest then
      v_longest := clock_timestamp() - v_began_at;
      v_slowest := v_part.part;
    end if;
    v_is_over := p_done.holds and hwqueue.is_time_up();
    continue when v_state is null and not v_is_over;
    perform hwqueue.postpone(p_kind || ' ' || case when v_is_over then v_slowest else v_part.part end, null,
      case when not v_is_over or v_slowest = v_part.part then v_state end, v_error, p_now);
    p_done.more := p_done.more or v_is_over;
    exit when v_is_over;
  end loop;
  return p_done;
end
$$;

-- Runs one part of prune, about p_most rows of it, and returns p_done with what it did.
-- Locks: as prune.
create or replace function hwqueue.prune_part(p_part text, p_most int, p_done hwqueue.upkeep_done,
  p_now timestamptz) returns hwqueue.upkeep_done
language plpgsql volatile
as $$
declare
  v_count int := 0;
  v_workflows bigint[];
  v_queue_id int;
  v_state hwqueue.node_state;
  v_node hwqueue.node;
begin
  case p_part
  when 'leases' then v_count := hwqueue.prune_leases(p_done.prune_cursor, p_most, p_now);
  when 'old_runs' then v_count := hwqueue.prune_runs(p_most, p_now);
  when 'workflows' then
    -- definitions of ad hoc runs that are gone, once no submission that found them can still be open
    v_workflows := array(
      select w.workflow_id from hwqueue.workflow w
      where w.retired_at is not null and w.retired_before <= pg_snapshot_xmin(pg_current_snapshot())
        and not exists (select from hwqueue.run r where r.workflow_id = w.workflow_id)
      order by w.retired_at limit p_most for update skip locked);
    delete from hwqueue.workflow_step d where d.workflow_id = any (v_workflows);
    delete from hwqueue.workflow w where w.workflow_id = any (v_workflows);
    delete from hwqueue.traced_run t where t.ctid = any (array(  -- no worker with a tracer has taken them
      select x.ctid from hwqueue.traced_run x where x.finished_at < p_now - interval '1 hour'
      limit p_most for update skip locked));
  when 'old_teams' then
    perform hwqueue.prune_teams(p_most, p_now);
    delete from hwqueue.postponed d where d.at <= p_now - interval '10 minutes';
  when 'old_classes' then v_count := hwqueue.prune_classes(p_most);
  when 'nodes' then v_count := hwqueue.prune_nodes(p_most, p_now);
  when 'silent' then  -- for longer than node_expiry; but those with claims, or with what an operator set
    for v_state in
      select s.* from hwqueue.node n
      join hwqueue.node_state s on s.node_id = n.node_id
      where n.silent_since is not null
        and s.seen_at < p_now - (select d.node_expiry from hwqueue.installation d)
      order by s.node_id limit p_most for no key update of s skip locked
    loop
      select n.* into v_node from hwqueue.node n
      where n.node_id = v_state.node_id and n.deregistered_at is null;
      continue when not found or hwqueue.is_kept_by_operators(v_node) or exists (
        select from hwqueue.claim c where c.node_id = v_state.node_id);
      perform hwqueue.leave_fleet(v_node, format('silent since %s', v_state.seen_at),
        jsonb_build_object('reason', 'silent', 'seen_at', v_state.seen_at), p_now);
    end loop;
  when 'unused' then
    update hwqueue.prune_cursor m set class_id = hwqueue.retire_classes(m.class_id, p_most, p_now),
      profile_id = hwqueue.prune_profiles(m.profile_id, p_most, p_now)
    where p_done.holds;
  when 'queues' then v_count := hwqueue.purge_queues(p_most);
  when 'old_terms' then v_count := hwqueue.prune_terms(p_most);
  when 'idle_lanes' then
    v_count := case when p_done.holds then hwqueue.prune_lanes(p_most, p_now) else 0 end;
  when 'caches' then
    -- prices that ran out an hour ago: claims of a queue that no planner serves any more look for none
    for v_queue_id in
      select q.queue_id from hwqueue.queue q where q.has_prices and not exists (
        select from hwqueue.queue_price p
        where p.queue_id = q.queue_id and p.worth_until > p_now - interval '1 hour')
      order by q.queue_id for no key update skip locked
    loop
      update hwqueue.queue q set has_prices = false where q.queue_id = v_queue_id;
      delete from hwqueue.queue_price p
      where p.queue_id = v_queue_id and p.worth_until <= p_now - interval '1 hour';
    end loop;
    -- facts that no claim has used for an hour: one that needs them computes them again
    delete from hwqueue.spread_fleet f where f.ctid = any (array(
      select o.ctid from hwqueue.spread_fleet o where o.live_until < p_now - interval '1 hour'
      limit p_most for update skip locked));
    delete from hwqueue.class_range r where r.ctid = any (array(
      select o.ctid from hwqueue.class_range o
      where (o.live_until < p_now - interval '1 hour' or not exists (
        select from hwqueue.placement_class c where c.class_id = o.class_id))
      limit p_most for update skip locked));
  when 'deaths' then  -- those that nobody has taken for an hour
    delete from hwqueue.death d where d.lease_id = any (array(
      select x.lease_id from hwqueue.death x where x.died_at < p_now - interval '1 hour'
      order by x.died_at limit p_most for update skip locked));
    get diagnostics v_count = row_count;
  when 'deliveries' then  -- those that finished longer ago than events are kept
    delete from hwqueue.webhook_delivery x where x.delivery_id = any (array(
      select d.delivery_id from hwqueue.webhook_delivery d
      where d.finished_at < p_now - (select s.event_days * interval '1 day' from hwqueue.installation s)
      order by d.finished_at limit p_most for update skip locked));
    get diagnostics v_count = row_count;
  when 'fires' then
    delete from hwqueue.schedule_fire f where f.ctid = any (array(
      select x.ctid from hwqueue.schedule_fire x where x.keep_until < p_now
      order by x.keep_until limit p_most for update skip locked));
    get diagnostics v_count = row_count;
  when 'old_figures' then
    -- minutes older than a day, but for the last one: rows hold totals, and the next is read as what it adds
    delete from hwqueue.minute_stat m where m.ctid = any (array(
      select o.row_ctid
      from hwqueue.queue q
      cross join lateral (
        select x.minute from hwqueue.minute_stat x
        where x.queue_id = q.queue_id and x.minute < p_now - interval '1 day'
        order by x.minute desc limit 1) k
      cross join lateral (
        select x.ctid as row_ctid from hwqueue.minute_stat x
        where x.queue_id = q.queue_id and x.minute < k.minute
        order by x.minute limit p_most for update skip locked) o
      limit p_most));
    delete from hwqueue.run_total t where t.ctid = any (array(  -- not counted for 30 days: room for others
      select x.ctid from hwqueue.run_total x where x.workflow <> '(other)' and not exists (
        select from hwqueue.run_total y
        where y.workflow = x.workflow and y.counted_at >= p_now - interval '30 days')
      order by x.workflow, x.outcome limit p_most for update skip locked));
  when 'events' then perform hwqueue.prune_events(p_now);
  end case;
  p_done.leases := p_done.leases + case when p_part in ('leases', 'old_runs') then v_count else 0 end;
  p_done.classes := p_done.classes + case when p_part = 'old_classes' then v_count else 0 end;
  p_done.nodes := p_done.nodes + case when p_part = 'nodes' then v_count else 0 end;
  p_done.more := p_done.more
    or v_count >= case when p_part in ('old_classes', 'nodes') then 1 else p_most end;
  return p_done;
end
$$;
