-- Which gangs a tick looks at, and in which order.
--
-- reap calls reap_gangs. Example: two tenants have 40 and 2 gangs that wait. A tick tries 20: the first gang
-- of each tenant, the second of each, then 16 more of the first one.
--
-- Invariant: what a tick does for a gang, and what follows in the run of the gang, is undone together when it
-- fails, and nothing else is.

-- Looks at up to p_limit gangs that have changed and at those that are earmarked, then tries to assemble up
-- to p_limit that wait, or that run and lack members. Each of the three stops after p_budget, but does one
-- first. Tenants take turns among the first 200 * p_limit changes and gangs: the first gang of each, then the
-- second of each, in order of rank and age. p_from: no change is older; p_due_from: no gang is due earlier.
-- One that is cut short by statement_timeout, or fails, is undone alone and postponed. Returns how many it
-- has looked at or tried.
-- One session does it at a time: the one that leads upkeep.
-- Locks: the gang, skip locked; as look_at_gang, look_at_earmark and assemble_gang.
create or replace function hwqueue.reap_gangs(p_limit int, p_budget interval, p_now timestamptz,
  p_from bigint default 0, p_due_from timestamptz default '-infinity') returns int
language plpgsql volatile
as $$
declare
  v_step text;
  -- no back-off is as long as three minutes: this one is of before the clock was set back
  v_late timestamptz := p_now + interval '3 minutes';
  v_due hwqueue.gang[];
  v_gang_id uuid;
  v_gang hwqueue.gang;
  v_next timestamptz;
  v_count int := 0;
  v_until timestamptz;
begin
  foreach v_step in array '{change,earmark,try}'::text[] loop
    v_until := clock_timestamp() + p_budget;
    v_due := case when v_step = 'try' then array(
      select g from hwqueue.gang g
      where (g.state = 'waiting' or g.state = 'running' and g.missing > 0) and g.next_try_at >= p_due_from
        and (g.next_try_at <= p_now
          or hwqueue.may_be_tried(g, p_now) and g.next_try_at > v_late and g.next_try_at < 'infinity')
      order by g.next_try_at limit 200 * p_limit + 1) end;
    for v_gang_id in
      select d.gang_id from (
        (select x.gang_id, g.tenant, 0 as rank, x.change_id as position
         from hwqueue.gang_change x
         cross join lateral (  -- without one it is of an everywhere task (reap_everywhere)
           select y.tenant from hwqueue.gang y where y.gang_id = x.gang_id offset 0) g
         where v_step = 'change' and x.change_id >= p_from order by x.change_id limit 200 * p_limit)
        union all
        (select g.gang_id, g.tenant, g.rank, g.position from hwqueue.gang g
         where v_step = 'earmark' and g.state = 'earmarked')
        union all
        (select g.gang_id, g.tenant, g.rank, g.position from unnest(v_due) g
         join hwqueue.queue q on q.queue_id = g.queue_id and q.paused_at is null and q.dropped_at is null
         where cardinality(v_due) <= 200 * p_limit)
        union all
        (select g.gang_id, g.tenant, g.rank, g.position from hwqueue.gang g  -- too many to read: in order
         join hwqueue.queue q on q.queue_id = g.queue_id and q.paused_at is null and q.dropped_at is null
         where cardinality(v_due) > 200 * p_limit and (g.state = 'waiting' or g.state = 'running'
             and g.missing > 0) and (g.next_try_at <= p_now or hwqueue.may_be_tried(g, p_now)
             and g.next_try_at > v_late and g.next_try_at < 'infinity')
         order by g.rank, g.position limit 200 * p_limit)) d
      group by d.gang_id, d.tenant
      order by row_number() over (partition by d.tenant order by min(d.rank), min(d.position)), min(d.rank),
        min(d.position) limit case when v_step <> 'earmark' then p_limit end
    loop
      exit when v_step <> 'change' and hwqueue.is_time_up();
      continue when hwqueue.is_put_off('gang', v_gang_id, p_now);
      begin
        select g.* into v_gang from hwqueue.gang g
        where g.gang_id = v_gang_id
          and case v_step when 'change' then true when 'earmark' then g.state = 'earmarked'
            else g.state = 'waiting' or g.state = 'running' and g.missing > 0 end
        for no key update skip locked;
        if found then
          v_count := v_count + 1;
          case v_step
          when 'change' then perform hwqueue.look_at_gang(v_gang, p_now);
          when 'earmark' then perform hwqueue.look_at_earmark(v_gang, p_now);
          else perform hwqueue.try_gang(v_gang, p_now);
          end case;
          perform hwqueue.follow_ended(true);  -- here, so that a run that cannot go on keeps its gang alone
          delete from hwqueue.postponed d where d.part = 'gang' and d.item = v_gang_id;
        end if;
      exception when query_canceled or others then
        v_next := hwqueue.postpone('gang', v_gang_id, sqlstate, sqlerrm, p_now);
        if v_step = 'try' then
          update hwqueue.gang g set reason = 'upkeep_postponed', tries = g.tries + 1, next_try_at = v_next
          where g.gang_id = v_gang_id;
        elsif v_step = 'change' then  -- one, behind those of other gangs
          delete from hwqueue.gang_change c where c.gang_id = v_gang_id;
          insert into hwqueue.gang_change (gang_id) values (v_gang_id);
        end if;
      end;
      exit when clock_timestamp() >= v_until;
    end loop;
  end loop;
  return v_count;
end
$$;
