-- What becomes of the alternatives that were not taken, and of choices whose leases are gone.
--
-- Example: the claim of "16 V100" has taken a choice. The next reap cancels the lease that asked for 8 A100,
-- and the gang that asked for 32 T4 goes to cancelling, as cancel_gang would have it. An alternative that
-- another session holds is met by a later reap.
--
-- Invariant: a choice is settled when none of its alternatives is open but the one that was taken; one that
-- is added later makes it unsettled again (spawn/choice).

-- Cancels the leases and gangs that were not taken of up to p_limit choices, of the 50 * p_limit that were
-- taken first; tenants take turns. p_from: none was taken before.
-- Locks: the choices, entries and gangs, all skip locked.
create or replace function hwqueue.settle_choices(p_limit int, p_now timestamptz,
  p_from timestamptz default '-infinity') returns void
language plpgsql volatile
as $$
declare
  v_taken uuid[] := array(
    select w.choice_id
    from (select x.* from hwqueue.choice x
          where x.taken is not null and x.settled_at is null and x.taken_at >= p_from
            and not hwqueue.is_put_off('choice', x.choice_id, p_now)
          order by x.taken_at limit 50 * p_limit) w
    order by row_number() over (partition by w.tenant order by w.taken_at), w.taken_at);
  v_choice hwqueue.choice;
  v_leases uuid[];
  v_gangs uuid[];
  v_ended uuid[];
  v_why jsonb;
  v_gang hwqueue.gang;
  v_left int;
begin
  for v_choice in
    select h.* from hwqueue.choice h where h.choice_id = any (v_taken) and h.settled_at is null
    order by array_position(v_taken, h.choice_id) limit p_limit for no key update skip locked
  loop
    begin
      select coalesce(array_agg(m.member_id) filter (where not m.is_gang), '{}'),
             coalesce(array_agg(m.member_id) filter (where m.is_gang), '{}')
      into v_leases, v_gangs
      from hwqueue.choice_member m
      left join hwqueue.lease l on not m.is_gang and l.lease_id = m.member_id and l.choice_id = m.choice_id
      left join hwqueue.gang g on m.is_gang and g.gang_id = m.member_id
      where m.choice_id = v_choice.choice_id and m.member_id is distinct from v_choice.taken
        and case when m.is_gang then g.finished_at is null and g.state <> 'cancelling'
          else hwqueue.lease_state(l.lease_id) in ('scheduled', 'pending', 'claimed') end;
      v_ended := hwqueue.take_entries_of(v_leases);
      v_left := cardinality(v_leases) + cardinality(v_gangs) - cardinality(v_ended);
      if v_ended <> '{}' then
        v_why := jsonb_build_object('reason', 'choice_taken', 'one_of', v_choice.choice_id, 'taken',
          v_choice.taken, 'detail', format('of its alternatives %s was taken', v_choice.taken));
        perform hwqueue.lease_ended(v_ended, 'cancelled', v_why,
          format('cancelled: of its alternatives %s was taken', v_choice.taken), v_why - 'detail');
      end if;
      for v_gang in
        select g.* from hwqueue.gang g
        where g.gang_id = any (v_gangs) and g.finished_at is null and g.state <> 'cancelling'
        order by g.gang_id for no key update skip locked
      loop
        update hwqueue.gang g set state = 'cancelling', reason = 'choice_taken'
        where g.gang_id = v_gang.gang_id;
        insert into hwqueue.gang_change (gang_id) values (v_gang.gang_id);
        perform hwqueue.note_gang(v_gang, 'cancelling');
        v_left := v_left - 1;
      end loop;
      update hwqueue.choice h set settled_at = p_now where h.choice_id = v_choice.choice_id and v_left = 0;
    exception when query_canceled or others then  -- undone alone, and the others go on
      perform hwqueue.postpone('choice', v_choice.choice_id, sqlstate, sqlerrm, p_now);
    end;
    exit when hwqueue.is_time_up();
  end loop;
end
$$;

-- Deletes choices none of whose leases and gangs is left. It looks at up to p_limit of those that it has not
-- looked at for ten minutes.
-- Locks: the choices, skip locked.
create or replace function hwqueue.prune_choices(p_limit int, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_old uuid[] := array(
    select h.choice_id from hwqueue.choice h where h.checked_at <= p_now - interval '10 minutes'
    order by h.checked_at limit p_limit for update skip locked);
  v_gone uuid[] := array(
    select o.choice_id from unnest(v_old) o(choice_id) where not exists (
      select from hwqueue.choice_member m
      left join hwqueue.lease l on not m.is_gang and l.lease_id = m.member_id
      left join hwqueue.gang g on m.is_gang and g.gang_id = m.member_id
      where m.choice_id = o.choice_id and coalesce(l.lease_id, g.gang_id) is not null));
begin
  delete from hwqueue.choice_member m where m.choice_id = any (v_gone);
  delete from hwqueue.choice h where h.choice_id = any (v_gone);
  update hwqueue.choice h set checked_at = p_now where h.choice_id = any (v_old);
end
$$;

-- The headline and the code of a pending lease that is an alternative: that another one was taken, or how
-- many there are.
create or replace function hwqueue.choice_story(p_lease hwqueue.lease, p_headline text, p_code text,
  out headline text, out code text)
language plpgsql stable
as $$
declare
  v_taken uuid := hwqueue.taken_instead(p_lease);
begin
  if v_taken is not null then
    headline := format('of its alternatives %s was taken; upkeep cancels it within about a second', v_taken);
    code := 'choice_taken';
    return;
  end if;
  headline := p_headline || (
    select case when h.taken is not null then '; its choice has taken it'
      when h.alternatives = 1 then ''
      else format('; the first of %s alternatives runs', h.alternatives) end
    from hwqueue.choice h where h.choice_id = p_lease.choice_id);
  code := p_code;
end
$$;

-- Returns alternatives and choices that contradict each other, for verify_invariants.
create or replace function hwqueue.broken_choices() returns table (rule text, subject uuid, detail jsonb)
language sql stable
as $$
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
  left join hwqueue.choice_member m on m.choice_id = l.choice_id and m.member_id = l.lease_id
  where l.gang_id is null
    and (c.is_choice <> (l.choice_id is not null) or c.is_choice and m.member_id is null)
$$;
