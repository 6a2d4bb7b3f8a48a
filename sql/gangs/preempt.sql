-- Preemption: a lease of an earlier tier gets room that leases of later tiers use.
--
-- Example: all GPUs run leases of tier scavenger. Queue `live` has the policy preempt, and a lease of tier
-- guaranteed has waited in it for five seconds. Upkeep finds gpu-1, which has room for it once two of them
-- stop. In one transaction it books that room as an earmark (reserve), and asks the two to stop within 30
-- seconds. When they are gone the reservation is backed, and gpu-1 fetches it. The two are where they were in
-- line, and have used no attempt; one that goes on is ended a claim timeout later.
--
-- Invariant: the room is booked before anybody is asked to go, so neither those that go nor others can take
-- it, but for an earlier tier (earmark_order). Only claims of a later tier are asked. So the number of stops
-- is bounded by that of the leases that come.
--
-- A lease that looks for room has a row in `replacement`, as one that replaces another lease has, and upkeep
-- looks at it as at those (look_at_replacement). Read find_preemptors, then try_preemption.

-- Writes the rows of leases that may preempt: of each of p_limit classes after p_after, in turn over the
-- calls, the first lease that has waited for long enough; 20 at most, tenants take turns. So neither leases
-- that no stop helps nor a class with many of them keeps others from it. A class looks for one lease at a
-- time.
-- Locks: none that others wait for. Idempotent.
create or replace function hwqueue.find_preemptors(p_after bigint, p_limit int, p_now timestamptz)
returns void
language plpgsql volatile
as $$ begin
  insert into hwqueue.replacement (lease_id, old_goes, is_overlapping, state, next_try_at)
  with live as materialized (
    select q.queue_id, p_now - make_interval(secs => (q.preempt -> 'after')::double precision) as since,
           hwqueue.queue_scan_starts(array[q.queue_id], p_limit) as starts
    from hwqueue.queue q
    where q.preempt @> '{"enabled": true}' and q.dropped_at is null and q.paused_at is null
  )
  select e.lease_id, 'requeue', false, 'preempting', p_now
  from (
    select x.class_id, x.queue_id, x.tenant, x.is_choice from hwqueue.placement_class x
    where x.class_id > p_after order by x.class_id limit p_limit) c
  join live q on q.queue_id = c.queue_id and (q.starts).queue_ids is not null
  cross join lateral hwqueue.class_start(c.class_id, q.starts) s
  cross join lateral (
    select f.* from (
      select * from hwqueue.ready r
      where r.class_id = c.class_id and (r.tier, r.rank, r.position) >= (s.tier, s.rank, s.position)
      order by r.tier, r.rank, r.position limit 100) f
    where (f.eligible_at <= q.since or f.eligible_at > p_now + interval '1 minute')  -- the clock was set back
      and (f.deadline is null or f.deadline > p_now)
      and not exists (select from hwqueue.replacement r where r.lease_id = f.lease_id)
    order by f.tier, f.rank, f.position limit 1) e
  where not c.is_choice and e.tier < 2 and (c.class_id, e.tier) not in (
    select l.class_id, l.tier from hwqueue.replacement r join hwqueue.lease l on l.lease_id = r.lease_id
    where r.state = 'preempting' and not exists (select from hwqueue.claim o where o.lease_id = r.lease_id)
      and not exists (select from hwqueue.outcome o where o.lease_id = r.lease_id))
  order by row_number() over (partition by c.tenant order by e.tier, e.rank, e.position) limit 20
  on conflict do nothing;
end $$;

-- Returns the claims of nodes that somebody may stop, up to 50 of each, in the order in which that costs
-- least: single leases before members of other gangs, the later tier, the lower priority, then the younger
-- claim, as recheck_claims has it. What is reserved does not run yet, and the lease of an everywhere task
-- would only start again.
-- p_tier null: a person stops them; a caller of one tenant is told of its own alone. Else: those that a lease
-- of this tier may preempt. Not those that are asked already, have run for less than their queue's min_run,
-- or were preempted max_times within a day.
create or replace function hwqueue.stoppable_claims(p_node_ids uuid[], p_tier smallint, p_now timestamptz)
returns uuid[]
language plpgsql stable
as $$
declare
  v_tenants text[] := case when p_tier is null then hwqueue.my_tenants() end;
begin
  return array(
    select x.lease_id
    from (
      select t.lease_id, t.turn, row_number() over (partition by t.node_id order by t.turn) as nth
      from (
        select c.lease_id, c.node_id, row_number() over (order by c.team_id is not null, l.tier desc,
                 l.priority, c.claimed_at desc, c.lease_id desc) as turn
        from hwqueue.claim c
        join hwqueue.lease l on l.lease_id = c.lease_id
        join hwqueue.queue q on q.queue_id = c.queue_id
        cross join lateral (
          select coalesce(q.preemptible, hwqueue.default_values('preemptible')) as own) p
        where c.node_id = any (p_node_ids) and c.is_reserved is not true
          and c.team_id is distinct from c.lease_id
          and (v_tenants is null or hwqueue.is_own_lease(c.lease_id, v_tenants))
          and (p_tier is null or l.tier > p_tier and c.stop_requested_at is null
            and c.claimed_at <= p_now - make_interval(
              secs => (p.own -> 'min_run')::double precision)
            and (select count(*) from hwqueue.attempt a
                 where a.lease_id = c.lease_id and a.error ->> 'reason' = 'tier_preempted'
                   and a.ended_at > p_now - interval '1 day')
              < (p.own -> 'max_times')::int)) t) x
    where x.nth <= 50 order by x.turn);
end
$$;

-- Returns where a lease would have room once claims of later tiers have stopped, 16 nodes at most, the best
-- one first: where the worst of them has the latest tier, fewest members of gangs stop, fewest stop at all,
-- and they have run for least. Nodes that are earmarked for a gang are left out, and those that have not
-- fetched this lease within ten minutes: others would stop in vain again. p_turn: of more than 64 nodes,
-- which 64 are looked at; of these, 16 that have such claims. It ends after a quarter of the time that upkeep
-- has.
-- stops: the claims that would be asked, none in vain; {}: those that were asked before, for others, are
-- enough. A row without a node: some node has room now. No row: none of this helps.
create or replace function hwqueue.find_victims(p_lease hwqueue.lease, p_turn int, p_now timestamptz)
returns table (node_id uuid, stops uuid[])
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class := (
    select c from hwqueue.placement_class c where c.class_id = p_lease.class_id);
  v_most int := (  -- a preview may be of a queue without the policy
    select coalesce(q.preempt, hwqueue.default_values('preempt')) -> 'most'
    from hwqueue.queue q where q.queue_id = p_lease.queue_id);
  v_rooms hwqueue.gang_room[] := hwqueue.gang_rooms(array[v_class], '{1}', 'both', p_now);
  v_until timestamptz := clock_timestamp() + hwqueue.upkeep_budget() / 4;
begin
  if exists (select from unnest(v_rooms) r where r.copies > 0) then
    return query select null::uuid, '{}'::uuid[];
    return;
  end if;
  return query
    select p.node_id, p.stops
    from (
      select n.node_id, array(select s from unnest(t.plan) s where s <> all (n.leaving)) as stops
      from (
        select r.node_id, hwqueue.leaving_claims(array[r.node_id]) as leaving,
               hwqueue.stoppable_claims(array[r.node_id], p_lease.tier, p_now) as able
        from (
          select x.node_id from unnest(v_rooms) x
          where x.emptied > 0 and not exists (
            select from hwqueue.claim c
            where c.node_id = x.node_id and c.is_earmark and c.team_id is not null) and not exists (
            select from hwqueue.attempt a
            where a.lease_id = p_lease.lease_id and a.node_id = x.node_id and a.outcome = 'released'
              and a.error ->> 'reason' = 'claim_expired' and a.ended_at > p_now - interval '10 minutes')
          order by hashtextextended(x.node_id::text, p_turn) limit 64) r
        offset 0) n
      cross join lateral (
        select case when clock_timestamp() < v_until
          then hwqueue.stops_on_node(n.node_id, '{1}', array[v_class], '{1}', n.leaving, n.able) end as plan
        offset 0) t
      where n.able || n.leaving <> '{}' and t.plan is not null limit 16) p
    cross join lateral (
      select coalesce(min(l.tier), 3) as tier, count(c.team_id) as members,
             sum(p_now - c.claimed_at) as ran
      from hwqueue.claim c join hwqueue.lease l on l.lease_id = c.lease_id
      where c.lease_id = any (p.stops)) v
    where cardinality(p.stops) <= v_most
    order by v.tier desc, v.members, cardinality(p.stops), v.ran, p.node_id;
end
$$;

-- The claims of nodes that go because a preemption has asked them, or because they were cancelled since.
create or replace function hwqueue.leaving_claims(p_nodes uuid[]) returns uuid[]
language plpgsql stable
as $$ begin return array(
  select c.lease_id from hwqueue.claim c
  where c.node_id = any (p_nodes) and c.stop_by is not null
    and c.stop_reason in ('tier_preempted', 'cancelled'));
end $$;

-- Books room for a lease that waits, and asks those that use it to stop. Returns null when it has, else why
-- not; then nothing is written:
-- fits: a node has room now, so a claim may take it. no_victims: find_victims finds nothing.
-- busy: others hold what it needs. does_not_suit, insufficient_capacity and reasons of terms: as reserve, of
-- the last node that was tried.
-- Locks: node_state, the claims by lease_id, the entry, all skip locked; as reserve. Not idempotent.
create or replace function hwqueue.try_preemption(p_row hwqueue.replacement, p_lease hwqueue.lease,
  p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_queue hwqueue.queue := (select q from hwqueue.queue q where q.queue_id = p_lease.queue_id);
  v_place record;
  v_held uuid[];
  v_entry hwqueue.scheduled;
  v_reason text := 'no_victims';
begin
  if v_queue.preempt @> '{"enabled": true}' is not true or v_queue.paused_at is not null
    or v_queue.dropped_at is not null then
    return 'no_victims';
  end if;
  for v_place in select f.* from hwqueue.find_victims(p_lease, p_row.tries, p_now) f loop
    if v_place.node_id is null then
      return 'fits';
    end if;
    v_reason := 'busy';
    begin
      if not hwqueue.lock_free_node(v_place.node_id) then
        perform hwqueue.abort_subtransaction();
      end if;
      v_held := array(
        select c.lease_id from hwqueue.claim c
        where c.lease_id = any (v_place.stops) and c.node_id = v_place.node_id and c.is_reserved is null
          and c.stop_requested_at is null
        order by c.lease_id for update skip locked);
      v_entry := (select e from hwqueue.take_free_entries(array[p_lease.lease_id]) e);
      v_reason := case when v_entry.lease_id is null
          or v_entry.held_by <> 'time'
          or v_entry.available_at > greatest(p_now, p_lease.available_at, p_lease.created_at) or exists (
            select from hwqueue.claim c
            where c.node_id = v_place.node_id and c.is_earmark and c.team_id is not null) then 'busy'
        else hwqueue.reserve(v_entry, v_place.node_id, null, true,
          v_held || hwqueue.leaving_claims(array[v_place.node_id]), p_now) end;
      if v_reason is not null then
        perform hwqueue.abort_subtransaction();
      end if;
      perform hwqueue.ask_to_stop(v_place.node_id, v_held,
        p_now + make_interval(secs => (v_queue.preempt -> 'grace')::double precision),
        'a lease of an earlier tier needs the room', p_now,
        jsonb_build_object('reason', 'tier_preempted', 'lease_id', p_lease.lease_id));
      update hwqueue.replacement r set state = 'stopping', reason = null
      where r.lease_id = p_lease.lease_id;
      return null;
    exception when sqlstate 'HWX01' then  -- the node, its claims and the entry are free again
    end;
  end loop;
  return v_reason;
end
$$;

-- Looks for victims for a gang whose earmarks have no room. Where it finds them, the gang is earmarked there
-- instead, and waits for them alone (waits_for_preemption). A gang does so after as long, and asks as many
-- for each of its members, as a lease may; after a try in vain later (back_off), and keeps its earmarks
-- meanwhile. It books the room once as if all of later tiers were to go; whom that needs is then known; then
-- for these alone, as terms would have it without them.
-- Locks: the caller holds the gang; as stop_members and assemble_gang; claims of victims, skip locked.
create or replace function hwqueue.preempt_for_gang(p_gang hwqueue.gang, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_policy jsonb := (
    select q.preempt from hwqueue.queue q where q.queue_id = p_gang.queue_id);
  v_nodes uuid[];
  v_leaving uuid[];
  v_able uuid[];
  v_stops uuid[];
begin
  if v_policy @> '{"enabled": true}' is not true or p_gang.reason is not distinct from 'waits_for_preemption'
    or p_gang.tier > 1 or p_gang.choice_id is not null
    -- but for times of before the clock was set back
    or p_gang.next_try_at > p_now and p_gang.next_try_at < p_now + interval '3 minutes'
    or p_gang.created_at > p_now - make_interval(secs => (v_policy -> 'after')::double precision)
    and p_gang.created_at < p_now + interval '1 minute' then
    return;
  end if;
  p_gang.place := null;
  v_nodes := array(  -- where other leases run, in turn over the tries
    select n.node_id from hwqueue.node n
    where n.deregistered_at is null and n.cordoned_at is null and exists (
      select from hwqueue.claim c where c.node_id = n.node_id and c.is_reserved is null)
    order by hashtextextended(n.node_id::text, p_gang.tries) limit greatest(64, 4 * p_gang.size));
  v_leaving := hwqueue.leaving_claims(v_nodes);
  begin
    perform hwqueue.stop_members(p_gang, p_now);
    if exists (select from hwqueue.claim c where c.lease_id = any (p_gang.members)) then
      perform hwqueue.abort_subtransaction();  -- others hold a node of them
    end if;
    for v_tier in reverse 2 .. p_gang.tier loop  -- those that leave, the latest tier, all
      v_able := hwqueue.stoppable_claims(v_nodes, v_tier::smallint, p_now);
      continue when v_able || v_leaving = '{}';
      begin
        if hwqueue.assemble_gang(p_gang, null, true, p_now, v_able || v_leaving) is null then
          v_stops := hwqueue.gang_victims(p_gang, v_able, v_leaving);
        end if;
        perform hwqueue.abort_subtransaction();
      exception when sqlstate 'HWX01' then  -- only who is needed is known
      end;
      exit when v_stops is not null;
    end loop;
    if cardinality(v_stops) <= p_gang.size * (v_policy -> 'most')::int is not true
      or hwqueue.assemble_gang(p_gang, null, true, p_now, v_stops || v_leaving) is not null then
      perform hwqueue.abort_subtransaction();
    elsif hwqueue.gang_victims(p_gang, v_stops, v_leaving) is distinct from v_stops then
      perform hwqueue.abort_subtransaction();
    end if;
    perform hwqueue.ask_to_stop(c.node_id, array_agg(c.lease_id),
      p_now + make_interval(secs => (v_policy -> 'grace')::double precision),
      'a gang of an earlier tier needs the room', p_now,
      jsonb_build_object('reason', 'tier_preempted', 'gang_id', p_gang.gang_id))
    from hwqueue.claim c where c.lease_id = any (v_stops) group by c.node_id;
    update hwqueue.gang g set reason = 'waits_for_preemption' where g.gang_id = p_gang.gang_id;
    return;
  exception when sqlstate 'HWX01' then  -- its earmarks are there again
  end;
  update hwqueue.gang g set tries = g.tries + 1, next_try_at = p_now + hwqueue.back_off(g.tries)
  where g.gang_id = p_gang.gang_id;
end
$$;

-- Which of these claims have to stop besides those that leave so that a gang has room for its earmarks, none
-- in vain; null: they are not enough.
create or replace function hwqueue.gang_victims(p_gang hwqueue.gang, p_able uuid[], p_leaving uuid[])
returns uuid[]
language plpgsql stable
as $$ begin return (
  with plan as materialized (
    select hwqueue.stops_on_node(n.node_id, '{}', '{}', '{}', p_leaving, array(
      select c.lease_id from hwqueue.claim c
      where c.node_id = n.node_id and c.lease_id = any (p_able)
      order by array_position(p_able, c.lease_id))) as stops
    from (select distinct c.node_id from hwqueue.claim c where c.lease_id = any (p_gang.members)) n
  )
  select case when bool_and(p.stops is not null) then array(
      select s from plan x cross join unnest(x.stops) s where s <> all (p_leaving) order by s) end
  from plan p
); end $$;
