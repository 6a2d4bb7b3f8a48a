-- The parts of reap and prune, of which none undoes another.
--
-- api/upkeep.reap and prune call run_parts. Example: statement_timeout ends the part that rolls up figures.
-- That part is undone; claims that had expired are ended all the same. The next calls run it last, and let it
-- count half as much.
--
-- Invariant: however short the statement_timeout of the caller, a part that takes longer keeps no other one
-- from being done. What a part has done is whole.
--
-- Read run_parts; what a part does is in upkeep/reap.reap_part and prune_part.

-- Runs the parts of p_kind that are due, each in a savepoint: what is cut short or fails is undone alone and
-- noted (base/postponed). Once time is up no further part begins, because it would not be timed again, and
-- the part that took longest is to blame. Nothing is caught where the notes are another session's.
-- Locks, wakes: as the parts. Plans are made once, for any arguments, and by index: a table that is small now
-- may be large before the session ends.
create or replace function hwqueue.run_parts(p_kind text, p_parts text[], p_limit int,
  p_done hwqueue.upkeep_done, p_now timestamptz) returns hwqueue.upkeep_done
language plpgsql volatile
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_part record;
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
      p_done := case p_kind when 'reap'
          then hwqueue.reap_part(v_part.part, v_part.most, p_limit, p_done, p_now)
        else hwqueue.prune_part(v_part.part, v_part.most, p_done, p_now) end;
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
begin
  case p_part
  when 'leases' then v_count := hwqueue.prune_leases(p_done.prune_cursor, p_most, p_now);
  when 'runs' then v_count := hwqueue.prune_runs(p_most, p_now);
  when 'workflows' then
    perform hwqueue.prune_workflows(p_most);
    delete from hwqueue.traced_run t where t.ctid = any (array(  -- no worker with a tracer has taken them
      select x.ctid from hwqueue.traced_run x
      where x.finished_at < p_now - interval '1 hour'
      limit p_most for update skip locked));
  when 'gangs' then
    perform hwqueue.prune_gangs(p_most), hwqueue.prune_everywhere(p_most),
      hwqueue.prune_choices(p_most, p_now);
    delete from hwqueue.postponed d where d.at <= p_now - interval '10 minutes';
  when 'classes' then v_count := hwqueue.prune_classes(p_most);
  when 'nodes' then v_count := hwqueue.prune_nodes(p_most, p_now);
  when 'silent' then perform hwqueue.expire_nodes(p_most, p_now);
  when 'unused' then perform hwqueue.prune_unused(p_done.prune_cursor, p_most, p_now);
  when 'queues' then v_count := hwqueue.purge_queues(p_most);
  when 'terms' then v_count := hwqueue.prune_terms(p_most);
  when 'fleets' then
    perform hwqueue.prune_prices(p_now);
    -- facts that no claim has used for an hour: one that needs them computes them again
    delete from hwqueue.spread_fleet f where f.ctid = any (array(
      select o.ctid from hwqueue.spread_fleet o
      where o.live_until < p_now - interval '1 hour'
      limit p_most for update skip locked));
    delete from hwqueue.class_range r where r.ctid = any (array(
      select o.ctid from hwqueue.class_range o
      where (o.live_until < p_now - interval '1 hour' or not exists (
        select from hwqueue.placement_class c where c.class_id = o.class_id))
      limit p_most for update skip locked));
  when 'deaths' then v_count := hwqueue.prune_deaths(p_most, p_now);
  when 'deliveries' then v_count := hwqueue.prune_deliveries(p_most, p_now);
  when 'figures' then
    perform hwqueue.prune_minutes(p_most, p_now);
    delete from hwqueue.run_total t where t.ctid = any (array(  -- not counted for 30 days: room for others
      select x.ctid from hwqueue.run_total x
      where x.workflow <> '(other)' and not exists (
        select from hwqueue.run_total y
        where y.workflow = x.workflow and y.counted_at >= p_now - interval '30 days')
      order by x.workflow, x.outcome limit p_most for update skip locked));
  else perform hwqueue.prune_events(p_now);
  end case;
  p_done.leases := p_done.leases + case when p_part in ('leases', 'runs') then v_count else 0 end;
  p_done.classes := p_done.classes + case when p_part = 'classes' then v_count else 0 end;
  p_done.nodes := p_done.nodes + case when p_part = 'nodes' then v_count else 0 end;
  p_done.more := p_done.more or v_count >= case when p_part in ('classes', 'nodes') then 1 else p_most end;
  return p_done;
end
$$;
