-- Tallies: counting what ends, without anybody waiting.
--
-- Example: two parents of a join are completed at the same time. The first one locks the tally and counts.
-- The second finds it locked and leaves an arrival. The next session that locks the tally, or
-- advance_workflows, folds the arrival: the join is complete and its step is released.
--
-- Invariant: a count is either in the tally, written under its lock, or in an arrival that stays until a
-- holder of the lock folds it. So each count is seen once. An arrival is visible when its transaction has
-- committed, and with it all that the transaction rests on: a holder that folds all visible arrivals sees a
-- consistent cut, in which open work is 0 only when nothing is open.

-- Adds a delta to a tally, of the items of a map or, if not p_is_of_items, of part 0. Leaves an arrival
-- instead when another session holds the tally, or with p_leave.
-- is_full: everything has arrived, and this session holds the tally; folded: how many arrivals it has
-- folded; failed: how many items of these have not completed; tally: as it is now, null when it left an
-- arrival. p_tenant: of the run, for an arrival; null: it is read.
-- It folds up to 1,000 arrivals; if there are more it is not full yet, and another call goes on.
-- Locks: the tally, skip locked. Not idempotent.
create or replace function hwqueue.arrive(p_run uuid, p_step int, p_is_of_items boolean,
  p_delta hwqueue.tally_delta, p_leave boolean, p_now timestamptz, p_tenant text,
  out is_full boolean, out folded int, out failed int, out tally hwqueue.tally)
language plpgsql volatile
as $$
declare
  v_part int;
  v_counted record;
  v_kind text := case when p_is_of_items then 'item' else 'count' end;
begin
  is_full := false;
  folded := 0;
  failed := 0;
  if not p_leave and p_is_of_items then
    v_part := hwqueue.hold_items(p_run, p_step);
  elsif not p_leave then
    select t.part into v_part from hwqueue.tally t
    where t.run_id = p_run and t.step_no = p_step and t.part = 0
    for no key update skip locked;
  end if;
  if v_part is null then
    -- a delta of nothing is of a sweep, whose arrivals stay
    insert into hwqueue.arrival (run_id, step_no, kind, need, arrived, unmet, failed, skipped, at, tenant)
    select p_run, p_step, v_kind, p_delta.need, p_delta.arrived, p_delta.unmet, p_delta.failed,
           p_delta.skipped, p_now, coalesce(p_tenant, hwqueue.run_tenant(p_run))
    where p_delta <> row(0, 0, 0, 0, 0)::hwqueue.tally_delta;
    return;
  end if;
  -- a statement of its own, after the lock: it sees what former holders left
  with gone as (
    delete from hwqueue.arrival a where a.ctid = any (array(
      select x.ctid from hwqueue.arrival x
      where x.run_id = p_run and x.step_no = p_step and x.kind = v_kind limit 1000
      for update skip locked))
    returning a.need, a.arrived, a.unmet, a.failed, a.skipped
  ), added as (
    select coalesce(sum(g.need), 0) as need, coalesce(sum(g.arrived), 0) as arrived,
           coalesce(sum(g.unmet), 0) as unmet, coalesce(sum(g.failed), 0) as failed,
           coalesce(sum(g.skipped), 0) as skipped, count(*)::int as folded
    from gone g
  )
  update hwqueue.tally t
  set need = t.need + a.need + p_delta.need, arrived = t.arrived + a.arrived + p_delta.arrived,
      unmet = t.unmet + a.unmet + p_delta.unmet, failed = t.failed + a.failed + p_delta.failed,
      skipped = t.skipped + a.skipped + p_delta.skipped
  from added a
  where t.run_id = p_run and t.step_no = p_step and t.part = v_part
  returning a.folded, (a.failed + a.skipped)::int as failed, a.arrived + p_delta.arrived as arrived,
    t as tally into v_counted;
  folded := v_counted.folded;
  failed := v_counted.failed;
  tally := v_counted.tally;
  if p_is_of_items and tally.arrived / 64 > (tally.arrived - v_counted.arrived) / 64 then
    -- a new row, the next part, after 64 items: while any transaction on the server is open that has written,
    -- the former versions of a row stay, and a search by its key walks over all of them. The highest part is
    -- found at once (as the newest version in node_load)
    delete from hwqueue.tally t where t.run_id = p_run and t.step_no = p_step and t.part = v_part;
    tally.part := v_part + 1;
    insert into hwqueue.tally select tally.*;
  end if;
  is_full := tally.arrived >= tally.need and (folded < 1000 or not exists (
    select from hwqueue.arrival a where a.run_id = p_run and a.step_no = p_step and a.kind = v_kind));
end
$$;

-- Locks the tally of the items of a map and returns its part; null when there is none, or another session
-- holds it.
-- Locks: that row, skip locked.
create or replace function hwqueue.hold_items(p_run uuid, p_step int) returns int
language plpgsql volatile
as $$ begin
  return (
    select t.part from hwqueue.tally t
    where t.run_id = p_run and t.step_no = p_step and t.part > 0
    order by t.part desc limit 1 for no key update skip locked);
end $$;

-- Counts parents that have ended for a step with several, and adds it to released or skipped when that
-- decides about it.
-- A step of join `any` is released by the first edge that holds. Where the caller's transaction may stay
-- open (not p_is_short) its tally is left alone: another parent could not release the step meanwhile. A
-- step of join `all` cannot be released before that transaction ends in any case.
-- A parent that is not counted yet is open work: else the run could end before its child is released.
-- Locks: the tally, skip locked. Not idempotent.
create or replace function hwqueue.count_parents(p_run hwqueue.run, p_step int, p_is_any boolean,
  p_delta hwqueue.tally_delta, p_is_short boolean, p_now timestamptz, p hwqueue.run_progress)
returns hwqueue.run_progress
language plpgsql volatile
as $$
declare
  v_count record;
begin
  if p_is_any and not p_is_short and (
    select t.is_decided from hwqueue.tally t
    where t.run_id = p_run.run_id and t.step_no = p_step and t.part = 0) then
    return p;  -- nobody needs the count any more
  end if;
  v_count := hwqueue.arrive(p_run.run_id, p_step, false, p_delta, p_is_any and not p_is_short, p_now,
    p_run.tenant);
  p.closed := p.closed + v_count.folded;
  if (v_count.tally).run_id is null then
    p.opened := p.opened + (p_delta.arrived > 0)::int;
    return p;
  elsif (v_count.tally).is_decided then
    return p;
  elsif p_is_any and (v_count.tally).arrived > (v_count.tally).unmet
    or v_count.is_full and not p_is_any and (v_count.tally).unmet = 0 then
    p.released := p.released || p_step;
  elsif v_count.is_full then
    p.skipped := p.skipped || p_step;
    p.reasons := p.reasons || case when (v_count.tally).failed > 0 then 'parent_failed'
      when (v_count.tally).skipped > 0 then 'parent_skipped' else 'parent_completed' end;  -- by the worst
  else
    return p;
  end if;
  update hwqueue.tally t set is_decided = true
  where t.run_id = p_run.run_id and t.step_no = p_step and t.part = 0;
  return p;
end
$$;

-- Whether an edge holds for a parent that ended like this (p_wants null: it is to complete). One that was
-- cancelled has failed.
create or replace function hwqueue.edge_holds(p_wants text, p_state text) returns boolean
language sql immutable parallel safe
as $$
  select coalesce(p_wants, 'completed') in (
    'ended', case p_state when 'cancelled' then 'failed' else p_state end)
$$;

-- Leaves work for the next session that can do it, on these steps of a run.
create or replace function hwqueue.leave_arrivals(p_run uuid, p_steps int[], p_kind text, p_reasons text[],
  p_now timestamptz) returns void
language plpgsql volatile
as $$ begin
  insert into hwqueue.arrival (run_id, step_no, kind, reason, at, tenant)
  select p_run, s.step_no, p_kind, s.reason, p_now, t.tenant
  from unnest(p_steps, p_reasons) s(step_no, reason)
  cross join (select hwqueue.run_tenant(p_run) as tenant offset 0) t;
end $$;

-- Takes the arrivals of one kind at a step of a run: how many there were, and their reason. None: another
-- session holds them, or has worked them off.
-- Locks: the arrivals, skip locked.
create or replace function hwqueue.take_arrivals(p_run uuid, p_step int, p_kind text,
  out arrivals int, out reason text)
language plpgsql volatile
as $$ begin
  with gone as (
    delete from hwqueue.arrival a where a.ctid = any (array(
      select x.ctid from hwqueue.arrival x
      where x.run_id = p_run and x.step_no = p_step and x.kind = p_kind
      for update skip locked))
    returning a.reason
  )
  select count(*)::int, min(g.reason) into arrivals, reason from gone g;
end $$;

-- The tenant of a run: sweeps take turns by it. '' for one that has none, or is gone.
create or replace function hwqueue.run_tenant(p_run uuid) returns text
language plpgsql stable
as $$ begin
  return coalesce((
    select r.tenant from hwqueue.run r where r.run_id = p_run), '');
end $$;
