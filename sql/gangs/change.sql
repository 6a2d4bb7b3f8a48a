-- What becomes of a gang when something happens to its members.
--
-- Whatever ends, puts back or fetches a member leaves a row in team_change, and waits for nobody. Example:
-- member 2 of a running gang expires. The next tick finds one member waiting and three running, asks these to
-- stop, and once all four wait it reserves room for them again. With a min_size of 3 the three go on, and the
-- tick looks for room for the fourth. With on_lost continue its end is that of the lease.
--
-- Invariant: a change stays until a tick has looked at its gang, in the transaction that deletes it. States:
-- waiting -> reserved -> running -> completed, failed or cancelled; from waiting also to earmarked, and from
-- there to reserved; from earmarked, reserved and running to stopping, and back to waiting; from each of them
-- to cancelling.
--
-- Read look_at_earmark, look_at_gang, count_members, then take_room_back.

-- Tries to assemble a gang, or what may join it; where there is no room, to earmark it, or to take room back
-- that is kept for others. When that fails, the next try is later (back_off); at the next tick, when others
-- held what it needs or an affinity term is not published yet.
-- Locks: the caller holds the gang; as assemble_gang.
create or replace function hwqueue.try_gang(p_gang hwqueue.gang, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_goes_on boolean := p_gang.state = 'waiting' and exists (  -- some of its members do
    select from hwqueue.claim c where c.lease_id = any (p_gang.members));
  v_reason text := hwqueue.assemble_gang(p_gang, null, false, p_now);
  v_is_soon boolean;
begin
  if v_reason = 'insufficient_capacity' then
    v_reason := hwqueue.take_room_back(p_gang, v_goes_on, false, v_reason, p_now);
  end if;
  if v_reason = 'insufficient_capacity' and not v_goes_on then
    v_reason := hwqueue.earmark_gang(p_gang, p_now);
  end if;
  if v_reason in ('insufficient_capacity', 'behind_earmark') and not v_goes_on then
    v_reason := hwqueue.take_room_back(p_gang, false, true, v_reason, p_now);
  end if;
  v_is_soon := v_reason in ('busy', 'unpublished', 'cache_miss', 'gang_incomplete');
  if v_reason is not null then
    update hwqueue.gang g
    set reason = v_reason, tries = g.tries + (not v_is_soon)::int,
        next_try_at = p_now + case when v_is_soon then interval '0'
          else hwqueue.back_off(g.tries) end
    where g.gang_id = p_gang.gang_id;
  end if;
end
$$;

-- Assembles a gang in room that is kept for another gang of a later tier or rank, or, with p_is_earmark,
-- keeps that room for this one: the earmarks of the other one end, and it waits again. When some members go
-- on (p_goes_on) the other one may be of the same rank and come later in order, or wait for a node where this
-- gang runs. Else the two could wait for each other for ever: one for the other's members to end, which may
-- not without those that are lost. Room that others were stopped for only an earlier tier takes back. Returns
-- as assemble_gang or earmark_gang; p_reason: there is no such other one.
-- Locks: the caller holds the gang; earmarked gangs, skip locked; as stop_members and assemble_gang.
create or replace function hwqueue.take_room_back(p_gang hwqueue.gang, p_goes_on boolean,
  p_is_earmark boolean, p_reason text, p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_other hwqueue.gang;
  v_reason text := p_reason;
begin
  for v_other in
    select g.* from hwqueue.gang g
    where g.state = 'earmarked'
      and (g.reason is distinct from 'waits_for_preemption' or g.tier > p_gang.tier)
      and ((g.tier, g.rank) > (p_gang.tier, p_gang.rank) or p_goes_on and (
        (g.tier, g.rank, g.position) > (p_gang.tier, p_gang.rank, p_gang.position) or exists (
        select from hwqueue.claim c
        join hwqueue.claim own on own.node_id = c.node_id and own.team_id = p_gang.gang_id
        where c.lease_id = any (g.members))))
    order by g.tier desc, g.rank desc, g.position desc for no key update skip locked
  loop
    begin
      perform hwqueue.stop_members(v_other, p_now);
      v_reason := case when p_is_earmark then hwqueue.earmark_gang(p_gang, p_now)
        else hwqueue.assemble_gang(p_gang, null, false, p_now) end;
      if v_reason is not null then
        perform hwqueue.abort_subtransaction();
      end if;
      perform hwqueue.look_at_gang(v_other, p_now);
      exit;
    exception when sqlstate 'HWX01' then  -- its earmarks are there again
    end;
  end loop;
  return v_reason;
end
$$;

-- Backs the earmarks of a gang if its nodes have room by now, and takes the choice that it is an alternative
-- of; if they have none, others may have to stop for it (preempt_for_gang). Ends them if it may not keep
-- them: then it waits again, as after the loss of a member, because
-- not_kept: its queue is paused or dropped, or its policy says no.
-- node_changed: a node is silent, cordoned, registered again, or does not suit its member any more.
-- gang_incomplete: a member is asked to stop, or its deadline has passed.
-- kept_too_long: for longer than the policy earmark_time, and it is not known by when there is room.
-- any other: it may not run beside what runs now (back_earmarks).
-- Locks: the caller holds the gang; its choice, skip locked; as back_earmarks and stop_members. Wakes:
-- waiting workers.
create or replace function hwqueue.look_at_earmark(p_gang hwqueue.gang, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_leases uuid[];
  v_fault text;
begin
  if exists (select from hwqueue.team_change c where c.team_id = p_gang.gang_id) then
    return;  -- look_at_gang goes first
  end if;
  select coalesce(array_agg(c.lease_id), '{}'), case
    when bool_or(q.paused_at is not null or q.dropped_at is not null or q.earmarks = 0) then 'not_kept'
    when bool_or(n.node_id is null or n.cordoned_at is not null
      or n.registered_at > c.claimed_at and n.registered_at <= p_now  -- not before the clock was set back
      or not hwqueue.is_live(n, s, p_now) or not hwqueue.node_suits(c.class_id, n, p_now))
      then 'node_changed'
    when bool_or(c.stop_requested_at <= p_now or l.deadline <= p_now) then 'gang_incomplete'
    when bool_and(c.claimed_at + (q.tuning).earmark_time <= p_now)
      and (hwqueue.earmark_start(p_gang, p_now) >= p_now) is not true
      and hwqueue.leaving_claims(array_agg(c.node_id)) = '{}' then 'kept_too_long' end
  into v_leases, v_fault
  from hwqueue.claim c
  join hwqueue.lease l on l.lease_id = c.lease_id join hwqueue.queue q on q.queue_id = c.queue_id
  join hwqueue.node_state s on s.node_id = c.node_id
  left join hwqueue.node n on n.node_id = c.node_id and n.deregistered_at is null
  where c.lease_id = any (p_gang.members);
  if v_fault is null then
    v_fault := case when not hwqueue.take_choice(p_gang.choice_id, p_gang.gang_id, false) then 'busy'
      else hwqueue.back_earmarks(v_leases, p_gang.hold, p_now) end;
    if v_fault is null then
      perform hwqueue.take_choice(p_gang.choice_id, p_gang.gang_id);
      update hwqueue.gang g set state = 'reserved', reason = null where g.gang_id = p_gang.gang_id;
      perform hwqueue.note_gang(p_gang, 'reserved'), hwqueue.try_those_behind(p_now);
      return;
    elsif v_fault in ('insufficient_capacity', 'earlier_waits', 'busy', 'unpublished', 'cache_miss') then
      perform hwqueue.preempt_for_gang(p_gang, p_now) where v_fault = 'insufficient_capacity';
      return;
    end if;
  end if;
  update hwqueue.gang g
  set reason = v_fault,
      earmark_after = case when v_fault = 'kept_too_long' then p_now + (q.tuning).earmark_time end
  from hwqueue.queue q
  where g.gang_id = p_gang.gang_id and q.queue_id = g.queue_id;
  perform hwqueue.stop_members(p_gang, p_now), hwqueue.look_at_gang(p_gang, p_now);
end
$$;

-- How many members of a gang are where (reserved: those that are earmarked, too), and the state that it goes
-- to. One that has failed or was cancelled for good ends the gang, unless it goes on without those that are
-- lost, and enough are left: min_size, else one. While no more wait than may, it goes on; once it runs, those
-- that are reserved join it. When as many as its min_size have completed and none runs, it has: the others
-- are not needed.
create or replace function hwqueue.count_members(p_gang hwqueue.gang, out waiting int,
  out reserved int, out running int, out failed int, out cancelled int, out next_state text)
language plpgsql stable
as $$ begin
  select n.waiting, n.reserved, n.running, n.failed, n.cancelled, case
    when p_gang.state <> 'cancelling' and n.reserved + n.running = 0 and (n.failed = 0 or f.goes_on)
      and f.completed >= f.enough then 'completed'
    when n.waiting + n.reserved + n.running = 0 then case
      when n.failed > 0 then 'failed' when n.cancelled > 0 then 'cancelled' else 'completed' end
    when p_gang.state = 'cancelling' or n.failed + n.cancelled > 0
      and not (f.goes_on and f.completed + n.reserved + n.running >= f.enough) then 'cancelling'
    when n.waiting <= f.most_missing and n.reserved + n.running > 0 then case
      when n.earmarked > 0 then 'earmarked'
      when n.reserved > 0 and (p_gang.state <> 'running' or n.waiting + n.reserved > f.most_missing)
        then 'reserved'
      else 'running' end
    when p_gang.on_lost = 'replace' and n.running > 0 and p_gang.started_at is not null then 'waiting'
    when n.reserved + n.running > 0 then 'stopping'
    else 'waiting' end
  into waiting, reserved, running, failed, cancelled, next_state
  from (
    select count(*) filter (where s.state = 'scheduled')::int as waiting,
           count(c.is_earmark)::int as earmarked, count(*) filter (where c.is_reserved)::int as reserved,
           count(*) filter (where s.state = 'claimed' and c.is_reserved is not true)::int as running,
           count(*) filter (where s.state = 'failed')::int as failed,
           count(*) filter (where s.state = 'cancelled')::int as cancelled
    from unnest(p_gang.members) m(lease_id)
    cross join lateral (select hwqueue.lease_state(m.lease_id) as state offset 0) s
    left join hwqueue.claim c on c.lease_id = m.lease_id) n
  cross join lateral (
    select p_gang.on_lost = 'continue' and (p_gang.state = 'running' or p_gang.state = 'reserved'
             and n.reserved + n.cancelled = 0 and n.waiting <= b.most_missing) as goes_on,
           b.most_missing, p_gang.size - n.waiting - n.reserved - n.running - n.failed - n.cancelled
             as completed
    from (select hwqueue.may_be_missing(p_gang) as most_missing) b) g
  cross join lateral (
    select g.*, coalesce(p_gang.min_size, case when g.goes_on then 1 end) as enough) f;
end $$;

-- The gang as it is where upkeep has yet to look at what became of its members: running, or how it ended.
create or replace function hwqueue.seen_gang(p_gang hwqueue.gang) returns hwqueue.gang
language plpgsql stable
as $$
declare
  v_next text := case when p_gang.finished_at is null
    and exists (select from hwqueue.team_change c where c.team_id = p_gang.gang_id)
    then (hwqueue.count_members(p_gang)).next_state end;
begin
  if v_next in ('completed', 'failed', 'cancelled') then
    p_gang.reason := case v_next when 'failed' then hwqueue.ending_reason(p_gang) else p_gang.reason end;
    p_gang.finished_at := (
      select max(o.finished_at) from hwqueue.outcome o where o.lease_id = any (p_gang.members));
  end if;
  if v_next in ('running', 'completed', 'failed', 'cancelled') then
    p_gang.state := v_next;
  end if;
  return p_gang;
end
$$;

-- Works off the changes of a gang: brings its state up to date, cancels members that wait in vain, and stops
-- those that may not go on.
-- Locks: the caller holds the gang; the entries, skip locked; as stop_members.
create or replace function hwqueue.look_at_gang(p_gang hwqueue.gang, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_found record;
  v_next text;
  v_missing int;
  v_is_loss boolean;
  v_is_ending boolean;  -- a member has completed: no other one joins
  v_leases uuid[];
begin
  delete from hwqueue.team_change c where c.team_id = p_gang.gang_id;
  select c.* into v_found from hwqueue.count_members(p_gang) c;
  v_next := v_found.next_state;
  while v_next in ('cancelling', 'completed') and v_found.waiting > 0 loop
    -- their ends are changes of the gang, so a later tick looks again; of a step they end its items
    v_leases := hwqueue.cancel_waiting(array(
        select s.lease_id from hwqueue.scheduled s
        where (s.queue_id, s.available_at) = (p_gang.queue_id, 'infinity')
          and s.lease_id = any (p_gang.members) order by s.lease_id limit 100 for update skip locked),
      jsonb_build_object('reason', 'gang_incomplete', 'gang_id', p_gang.gang_id, 'detail', p_gang.reason),
      'cancelled: its gang has ended', jsonb_build_object('gang_id', p_gang.gang_id));
    if v_leases = '{}' then  -- others hold them all: a later tick looks again
      insert into hwqueue.team_change (team_id) values (p_gang.gang_id);
    end if;
    exit when cardinality(v_leases) < 100 or hwqueue.is_time_up();
  end loop;
  if v_next in ('cancelling', 'stopping') and v_found.reserved + v_found.running > 0 then
    perform hwqueue.stop_members(p_gang, p_now);
  end if;
  v_missing := case when v_next in ('earmarked', 'reserved', 'running') then v_found.waiting else 0 end;
  v_is_loss := v_missing > p_gang.missing or v_next = 'waiting';
  v_is_ending := v_next = 'running' and v_missing > 0 and p_gang.size - v_found.failed - v_found.cancelled
    > v_missing + v_found.reserved + v_found.running;
  if v_next <> p_gang.state or v_missing <> p_gang.missing
    or v_is_ending and p_gang.next_try_at < 'infinity'
    or v_next = 'waiting' and v_found.running = 0  -- no one is left there
      and (p_gang.place is not null or p_gang.started_at is not null) then
    update hwqueue.gang g
    set state = v_next, missing = v_missing, losses = g.losses + v_is_loss::int,
        reason = case when v_next in ('cancelling', 'failed') then hwqueue.ending_reason(g)
          else nullif(g.reason, 'waits_for_preemption') end,
        place = case when v_next = 'waiting' and v_found.running = 0 then null else g.place end,
        next_try_at = case
          when v_is_ending then 'infinity'
          when v_is_loss and g.losses = 0 and v_found.running > 0 then p_now  -- before others take its room
          when v_is_loss
            then p_now + least(interval '1 second' * 2 ^ least(g.losses, 7), interval '2 minutes')
          else greatest(g.next_try_at, p_now) end,  -- not below the mark of reap
        started_at = case when v_next in ('running', 'completed')
          then coalesce(g.started_at, (  -- when the last was fetched of those that run or have ended
            select max(coalesce(c.claimed_at, o.claimed_at))
            from unnest(g.members) m(lease_id)
            left join hwqueue.claim c on c.lease_id = m.lease_id
            left join hwqueue.outcome o on o.lease_id = m.lease_id))
          when v_next = 'waiting' and v_found.running = 0 then null  -- it starts as a whole again
          else g.started_at end,
        finished_at = case when v_next in ('completed', 'failed', 'cancelled') then p_now end
    where g.gang_id = p_gang.gang_id;
  end if;
  if v_next <> p_gang.state then
    perform hwqueue.note_gang(p_gang, v_next);
    if p_gang.state = 'earmarked' then
      perform hwqueue.try_those_behind(p_now);
    end if;
  end if;
end
$$;

-- Why a gang that is in this state is to end: deadline_exceeded, by which a member had not been fetched;
-- too_few_left, of one that goes on without members that are lost; what the first one said that has failed;
-- else the reason that it has.
create or replace function hwqueue.ending_reason(p_gang hwqueue.gang) returns text
language plpgsql stable
as $$ begin return
  case
    when p_gang.state <> 'cancelling' and exists (
      select from hwqueue.outcome o where o.lease_id = any (p_gang.members) and o.state = 'failed'
        and o.error ->> 'reason' = 'deadline_exceeded') then 'deadline_exceeded'
    when p_gang.on_lost = 'continue' and p_gang.state = 'running' then 'too_few_left'
    when p_gang.state <> 'cancelling' then coalesce((
      select format('rank %s %s: %s', m.ordinality - 1, o.state, hwqueue.error_words(o.error))
      from unnest(p_gang.members) with ordinality m(lease_id, ordinality)
      join hwqueue.outcome o on o.lease_id = m.lease_id
      where o.state <> 'completed' order by o.finished_at, m.ordinality limit 1), p_gang.reason)
    else p_gang.reason end;
end $$;

-- Deletes gangs none of whose leases is left, of the p_limit that ended first, the p_limit oldest ones of
-- dropped queues and those of p_ended that have ended.
-- Locks: the gangs, skip locked.
create or replace function hwqueue.prune_gangs(p_limit int, p_ended uuid[] default '{}') returns void
language plpgsql volatile
as $$ begin
  with gone as (
    delete from hwqueue.gang d where d.gang_id = any (array(
      select g.gang_id from hwqueue.gang g
      where g.gang_id = any (array(
          (select f.gang_id from hwqueue.gang f where f.finished_at is not null
           order by f.finished_at limit p_limit)
          union all
          (select w.gang_id from hwqueue.gang w
           where w.state = 'waiting' and not exists (
             select from hwqueue.queue q where q.queue_id = w.queue_id and q.dropped_at is null)
           order by w.tier, w.rank, w.position limit p_limit)
          union all
          select e.gang_id from hwqueue.gang e where e.gang_id = any (p_ended) and e.finished_at is not null))
        and not exists (select from hwqueue.lease l where l.lease_id = any (g.members))
      order by g.gang_id for update skip locked))
    returning d.gang_id
  )
  delete from hwqueue.team_change c using gone d where c.team_id = d.gang_id;
end $$;
