-- Which teams a call of reap, a tick, looks at, and in which order: gangs, choices, leases that replace
-- others, and leases of everywhere tasks; schedules, too. One loop looks at all of them (reap_teams). Each
-- kind has its list (due_teams) and its rule (look_at_team); sql/README.md says what else a new kind needs.
--
-- reap calls reap_teams. Example: two tenants have 40 and 2 gangs that wait. A tick tries 20: the first gang
-- of each tenant, the second of each, then 16 more of the first one.
--
-- Invariant: what a tick does for a team, and what follows in the run of a gang, is undone together when it
-- fails, and nothing else is.

-- Makes these looks one after the other, each at up to p_limit teams, at all gangs that are earmarked. Each
-- stops after p_budget, but looks at one first; when the time of the call is up only the first begins. Teams
-- that others hold do not count. A look that is cut short by statement_timeout, or fails, is undone alone and
-- postponed. p_from: the marks of reap. Returns whether a look was left before its end. One session does it
-- at a time: the one that leads upkeep; but any one fires schedules, and notes nothing if it does not lead
-- (p_leads).
-- Locks: as look_at_team.
create or replace function hwqueue.reap_teams(p_looks text[], p_limit int, p_budget interval,
  p_from hwqueue.reap_cursor, p_now timestamptz, p_leads boolean default true) returns boolean
language plpgsql volatile
as $$
declare
  v_look text;
  v_kind text;
  v_id uuid;
  v_seen uuid[];
  v_until timestamptz;
  v_is_cut boolean;
  v_more boolean := false;
begin
  foreach v_look in array p_looks loop
    exit when v_look <> p_looks[1] and hwqueue.is_time_up();
    v_kind := split_part(v_look, ' ', 1);
    v_seen := '{}';
    v_is_cut := false;
    v_until := clock_timestamp() + p_budget;
    for v_id in select d.team_id from hwqueue.due_teams(v_look, v_kind, p_limit, p_from, p_now) d loop
      begin
        if hwqueue.look_at_team(v_look, v_id, p_now) then
          v_seen := v_seen || v_id;
        end if;
        perform hwqueue.follow_ended(true);  -- here, so that a run that cannot go on keeps its gang alone
        delete from hwqueue.postponed d where d.part = v_kind and d.item = v_id;
      exception when query_canceled or others then  -- undone alone, and the others go on
        continue when not p_leads and sqlstate = '55P03';  -- that another session holds: it fires it
        if not p_leads then
          raise;
        end if;
        perform hwqueue.postpone(v_kind, v_id, sqlstate, sqlerrm, p_now);
        update hwqueue.gang g set reason = 'upkeep_postponed' where v_look = 'gang' and g.gang_id = v_id;
        with late as (delete from hwqueue.team_change c where c.team_id = v_id returning c.kind, c.retry_at)
        insert into hwqueue.team_change (team_id, kind, retry_at)  -- behind others'
        select v_id, l.kind, l.retry_at from late l;
      end;
      v_is_cut := cardinality(v_seen) >= p_limit and v_look <> 'gang earmark'
        or clock_timestamp() >= v_until or hwqueue.is_time_up();
      exit when v_is_cut;
    end loop;
    update hwqueue.replacement r set next_try_at = p_now  -- those that wait on go behind those that are left
    where v_look = 'replacement' and r.lease_id = any (v_seen) and r.next_try_at >= p_from.replacements_from
      and r.next_try_at < p_now - case when v_is_cut then '0' else '10 s' end::interval;
    v_more := v_more or v_is_cut;
  end loop;
  return v_more;
end
$$;

-- The teams that a look is to see, the first one first: tenants take turns among those that are due for
-- longest, 10 to 200 times p_limit, and those of a tenant are in order of rank and age; an earlier tier
-- first. Changes and due leases of everywhere tasks take turns, too. Those that are put off are left out.
-- p_from: nothing is due earlier, and no change is older.
create or replace function hwqueue.due_teams(p_look text, p_kind text, p_limit int,
  p_from hwqueue.reap_cursor, p_now timestamptz) returns table (team_id uuid)
language sql stable
as $$
  with off as materialized (
    select d.item from hwqueue.postponed d
    where d.part = p_kind and hwqueue.is_put_off(p_kind, d.item, p_now)
  ), due as materialized (
    -- no back-off is as long as three minutes: such a next try is of before the clock was set back
    select g.gang_id, g.tenant, g.tier, g.rank, g.position, g.queue_id from hwqueue.gang g
    where p_look = 'gang' and (g.state = 'waiting' or g.state = 'running' and g.missing > 0)
      and g.next_try_at >= p_from.gangs_from and (g.next_try_at <= p_now or hwqueue.may_be_tried(g, p_now)
        and g.next_try_at > p_now + interval '3 minutes' and g.next_try_at < 'infinity')
    order by g.next_try_at limit 200 * p_limit + 1
  ), few as materialized (select count(*) <= 200 * p_limit as are_all from due)
  select d.team_id
  from (
    (select x.team_id, case p_look
         when 'gang change' then (select g.tenant from hwqueue.gang g where g.gang_id = x.team_id)
         when 'choice' then (select h.tenant from hwqueue.choice h where h.choice_id = x.team_id)
         else 'change' end, 0::smallint, null::timestamptz, 0::bigint, x.change_id
     from hwqueue.team_change x
     where p_look in ('gang change', 'choice', 'everywhere') and x.kind = p_kind
       and x.change_id >= p_from.changes_from and x.team_id not in (select o.item from off o)
     order by x.change_id limit least(200 * p_limit, 5000))
    union all
    select g.gang_id, g.tenant, g.tier, null, g.rank, g.position from hwqueue.gang g
    where p_look = 'gang earmark' and g.state = 'earmarked'
    union all
    (select g.gang_id, g.tenant, g.tier, null, g.rank, g.position from due g
     join hwqueue.queue q on q.queue_id = g.queue_id and q.paused_at is null and q.dropped_at is null
     where (select f.are_all from few f))
    union all
    (select g.gang_id, g.tenant, g.tier, null, g.rank, g.position  -- too many to read: in order
     from hwqueue.gang g
     join hwqueue.queue q on q.queue_id = g.queue_id and q.paused_at is null and q.dropped_at is null
     where not (select f.are_all from few f) and (g.next_try_at <= p_now or hwqueue.may_be_tried(g, p_now)
         and g.next_try_at > p_now + interval '3 minutes' and g.next_try_at < 'infinity')
       and (g.state = 'waiting' or g.state = 'running' and g.missing > 0)
     order by g.tier, g.rank, g.position limit 200 * p_limit)
    union all
    (select w.lease_id, c.tenant, 0, w.next_try_at, 0, row_number() over ()
     from (select x.lease_id, x.next_try_at from hwqueue.replacement x
           where p_look = 'replacement' and x.next_try_at >= p_from.replacements_from
             and (x.next_try_at <= p_now
               or x.next_try_at > p_now + interval '15 seconds')  -- the clock was set back
             and x.lease_id not in (select o.item from off o)
           order by x.next_try_at, x.lease_id limit 10 * p_limit) w
     left join hwqueue.lease l using (lease_id) left join hwqueue.placement_class c using (class_id))
    union all
    (select s.node_id, '', 0, null, 0, 0 from hwqueue.node_state s
     where p_look = 'everywhere node' and s.expands_until is not null order by s.node_id limit p_limit)
    union all
    (select r.lease_id, 'due', 0, r.due_at, 0, 0 from hwqueue.everywhere_node r
     where p_look = 'everywhere' and r.due_at <= p_now order by r.due_at limit 10 * p_limit)
    union all
    select s.schedule_id, s.tenant, 0, s.next_at, 0, 0 from hwqueue.schedule s
    where p_look = 'schedule' and s.paused_at is null and s.next_at <= p_now and not hwqueue.is_dry(s, p_now)
  ) d(team_id, turn, tier, at, rank, position)
  where d.team_id not in (select o.item from off o)
  group by d.team_id, d.turn
  order by min(d.tier), row_number() over (partition by d.turn
      order by min(d.tier), min(d.at), min(d.rank), min(d.position)), min(d.at), min(d.rank), min(d.position)
$$;

-- Looks at one team: a gang, a choice, a lease that replaces another one, a lease of an everywhere task, a
-- node that has registered, or a schedule. False: another session holds it, or there is nothing to do any
-- more.
-- Locks: the team, or its node, skip locked; then as its rule.
create or replace function hwqueue.look_at_team(p_look text, p_id uuid, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
begin
  case p_look
  when 'choice' then return hwqueue.look_at_choice(p_id);
  when 'replacement' then return hwqueue.look_at_replacement(p_id, p_now);
  when 'everywhere' then return hwqueue.look_at_everywhere(p_id, p_now);
  when 'schedule' then return hwqueue.fire_due(p_id, p_now);
  when 'everywhere node' then
    perform hwqueue.expand_node(s.state) from (
      select x as state from hwqueue.node_state x
      where x.node_id = p_id and x.expands_until is not null for no key update skip locked) s;
  else
    perform case p_look when 'gang change' then hwqueue.look_at_gang(s.gang, p_now)
        when 'gang earmark' then hwqueue.look_at_earmark(s.gang, p_now)
        else hwqueue.try_gang(s.gang, p_now) end
    from (select x as gang from hwqueue.gang x
          where x.gang_id = p_id and case p_look when 'gang change' then true
            when 'gang earmark' then x.state = 'earmarked'
            else x.state = 'waiting' or x.state = 'running' and x.missing > 0 end
          for no key update skip locked) s;
    if not found then
      delete from hwqueue.team_change c
      where c.team_id = p_id and not exists (select from hwqueue.gang g where g.gang_id = p_id);
    end if;
  end case;
  return found;
end
$$;

-- Deletes teams none of whose leases is left, and their changes, about p_limit of each kind: gangs;
-- everywhere tasks that have stopped, the first first, and those of queues that are gone; choices, of those
-- that it has not looked at for ten minutes.
-- Locks: the teams, skip locked.
create or replace function hwqueue.prune_teams(p_limit int, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_choices uuid[];
begin
  perform hwqueue.prune_gangs(p_limit);
  v_choices := array(
    select h.choice_id from hwqueue.choice h where h.checked_at <= p_now - interval '10 minutes'
    order by h.checked_at limit p_limit for update skip locked);
  with gone as (
    delete from hwqueue.everywhere d where d.everywhere_id = any (array(
      select e.everywhere_id from hwqueue.everywhere e
      where e.everywhere_id = any (array(
          (select f.everywhere_id from hwqueue.everywhere f
           where f.finished_at is not null order by f.finished_at limit p_limit)
          union all
          (select f.everywhere_id from hwqueue.everywhere f
           where not exists (select from hwqueue.queue q where q.queue_id = f.queue_id) limit p_limit)))
        and not exists (
          select from hwqueue.everywhere_node r join hwqueue.lease l on l.lease_id = r.lease_id
          where r.everywhere_id = e.everywhere_id)
      order by e.everywhere_id for update skip locked))
    returning d.everywhere_id
  ), gone_nodes as (
    delete from hwqueue.everywhere_node r using gone d where r.everywhere_id = d.everywhere_id
    returning r.lease_id
  ), gone_choices as (
    delete from hwqueue.choice h
    where h.choice_id = any (v_choices)
      and not exists (select from hwqueue.lease l where l.lease_id = any (h.members))
      and not exists (select from hwqueue.gang g where g.gang_id = any (h.members))
    returning h.choice_id
  )
  delete from hwqueue.team_change c
  where c.team_id in (select r.lease_id from gone_nodes r union all select h.choice_id from gone_choices h);
  update hwqueue.choice h set checked_at = p_now where h.choice_id = any (v_choices);
end
$$;

-- Returns leases and teams that contradict each other, for verify_invariants. What a change says is to be
-- looked at is left out.
create or replace function hwqueue.broken_teams() returns table (rule text, subject uuid, detail jsonb)
language sql stable
as $$
  -- a member that waits is where no claim finds it
  select 'gang_entry', l.lease_id, jsonb_build_object('gang_id', l.team_id,
         'is_ready', r.lease_id is not null, 'scheduled_for', s.available_at)
  from hwqueue.lease l
  left join hwqueue.ready r on r.class_id = l.class_id and r.lease_id = l.lease_id
  left join hwqueue.scheduled s on s.lease_id = l.lease_id
  where l.team_id is not null and (r.lease_id is not null or s.held_by <> 'team')
  union all
  -- a gang that waits holds nothing; one that is reserved or runs holds room for all members that it needs,
  -- and knows how many others it lacks; it lacks one for good only if it goes on without it
  select 'gang_members', g.gang_id, jsonb_build_object('state', g.state, 'waiting', m.waiting,
         'claimed', m.claimed, 'missing', g.missing)
  from hwqueue.gang g
  cross join lateral (
    select count(*) filter (where x.state = 'scheduled') as waiting,
           count(*) filter (where x.state = 'claimed') as claimed,
           count(*) filter (where x.state in ('failed', 'cancelled')) as lost
    from (select hwqueue.lease_state(k) as state from unnest(g.members) k) x) m
  where not exists (select from hwqueue.team_change c where c.team_id = g.gang_id)
    and case when g.state = 'waiting' then m.claimed > 0 and (g.on_lost <> 'replace' or g.started_at is null)
             when g.state in ('earmarked', 'reserved', 'running')
               then m.waiting > hwqueue.may_be_missing(g) or m.waiting <> g.missing or m.claimed = 0
                 or m.lost > 0 and (g.on_lost <> 'continue' or g.state <> 'running'
                   or g.size - m.waiting - m.lost < coalesce(g.min_size, 1))
             when g.finished_at is not null then m.waiting + m.claimed > 0
             else false end
  union all
  select 'gang_reserved', c.lease_id, jsonb_build_object('node_id', c.node_id, 'gang_id', c.team_id)
  from hwqueue.claim c join hwqueue.node_state s on s.node_id = c.node_id
  where c.is_reserved and (not s.has_reserved or c.team_id is null and not exists (
      select from hwqueue.replacement r where r.lease_id = c.lease_id)
    and not exists (
      select from hwqueue.lease l where l.lease_id = c.lease_id and hwqueue.is_assigned(c, l)))
  union all
  -- a gang is earmarked with all of its reservations, or with none
  select 'gang_earmark', g.gang_id, jsonb_build_object('state', g.state, 'earmarks', m.earmarks, 'claims',
         m.claims)
  from hwqueue.gang g
  cross join lateral (
    select count(c.is_earmark) as earmarks, count(*) as claims
    from hwqueue.claim c where c.lease_id = any (g.members)) m
  where g.finished_at is null and not exists (select from hwqueue.team_change c where c.team_id = g.gang_id)
    and case g.state when 'earmarked' then m.earmarks = 0 or m.earmarks < m.claims
        when 'cancelling' then false when 'stopping' then false else m.earmarks > 0 end
  union all
  -- a node is kept for one gang at a time, and its claims look for what is reserved
  select 'gang_earmark', c.node_id, jsonb_build_object('gangs', jsonb_agg(distinct c.team_id),
         'has_reserved', bool_and(s.has_reserved))
  from hwqueue.claim c
  join hwqueue.node_state s on s.node_id = c.node_id
  where c.is_earmark
  group by c.node_id
  having count(distinct c.team_id) > 1 or not bool_and(s.has_reserved and c.is_reserved is true)
  union all
  -- a node has at most one open lease of an everywhere task: another one would be in no row
  select 'everywhere_lease', l.lease_id, jsonb_build_object('state', s.state)
  from hwqueue.lease l
  cross join lateral (select hwqueue.lease_state(l.lease_id) as state) s
  where hwqueue.is_everywhere(l.lease_id, l.team_id) and s.state in ('scheduled', 'pending', 'claimed')
    and not exists (select from hwqueue.everywhere_node r where r.lease_id = l.lease_id)
    and not exists (
      select from hwqueue.team_change c where c.team_id = l.lease_id)
  union all
  -- and runs there alone
  select 'everywhere_node', r.lease_id, jsonb_build_object('node_id', c.node_id, 'expected', r.node_id)
  from hwqueue.everywhere_node r
  join hwqueue.claim c on c.lease_id = r.lease_id
  where c.node_id <> r.node_id
  union all
  select 'reservation_expired', c.lease_id, jsonb_build_object('expires_at', c.expires_at,
         'reaped_at', m.reaped_at)
  from hwqueue.claim c
  cross join lateral (select k.reaped_at from hwqueue.reap_cursor k order by k.version desc limit 1) m
  where c.is_reserved  -- the sweep may have been before the clock was set back
    and c.expires_at + interval '1 minute' < least(m.reaped_at, hwqueue.clock())
  union all
  -- of a choice only what was taken has a claim
  select 'choice_taken', x.member_id, jsonb_build_object('one_of', x.choice_id, 'taken', h.taken)
  from (
    select l.lease_id as member_id, l.choice_id
    from hwqueue.claim c join hwqueue.lease l on l.lease_id = c.lease_id
    where l.choice_id is not null
    union all
    select g.gang_id, g.choice_id from hwqueue.gang g
    where g.choice_id is not null and g.state in ('reserved', 'running')) x
  left join hwqueue.choice h on h.choice_id = x.choice_id
  where h.taken is distinct from x.member_id
  union all
  -- claims look at the choice of a lease when its class says that it has one
  select 'choice_class', l.lease_id, jsonb_build_object('one_of', l.choice_id, 'class_id', l.class_id)
  from hwqueue.lease l join hwqueue.placement_class c on c.class_id = l.class_id
  left join hwqueue.choice h on h.choice_id = l.choice_id
  where l.team_id is null and (c.is_choice <> (l.choice_id is not null)
      or c.is_choice and (l.lease_id = any (h.members)) is not true)
  union all
  -- what a place holds back something will end
  select 'held_lease', s.lease_id, jsonb_build_object('queue_id', s.queue_id)
  from hwqueue.scheduled s
  where s.held_by = 'place' and not exists (
      select from hwqueue.replacement r where (r.lease_id = s.lease_id and r.state = 'waiting'
          or r.old_lease = s.lease_id and r.state = 'held'))
$$;
