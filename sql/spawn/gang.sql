-- The rows of gangs: what a gang asks beside its members, and how it is written.
--
-- Invariant: a gang and all its members are written in one transaction. No lock is taken that a claim or
-- another spawn waits for.

-- Returns what a gang asks for: min_size, together, same, on_lost and hold. The rest of the row is the
-- caller's. together: one domain, or a list of levels, the last of which may be the whole fleet: where no
-- place of those before it has room, members may be anywhere.
-- Raises: QHA01, naming the field.
create or replace function hwqueue.gang_asked(p_options jsonb, p_field text) returns hwqueue.gang
language plpgsql stable
as $$ begin return
  jsonb_populate_record(null::hwqueue.gang, '{"state": "waiting"}' || hwqueue.default_values('gang')
    || hwqueue.read_keys(p_options, 'gang', p_field) || jsonb_build_object('together', array(
    select case
      when d.value is distinct from '"fleet"' then coalesce(hwqueue.json_domain(d.value, l.field),
        hwqueue.refuse_value(d.value, l.field, '"node", "rack" or "label:KEY"',
          'name a domain, or leave together out', 'QHA01'))
      when d.ordinality = 1 or d.ordinality < jsonb_array_length(l.levels)
        then hwqueue.refuse_value(d.value, l.field, '"node", "rack" or "label:KEY", with "fleet" only as the '
          'last of several', 'for example ["rack", "fleet"]; for members that may be anywhere leave it out',
          'QHA01')
      else 'fleet' end
    from (
      select o.field, case when jsonb_typeof(o.given) = 'string' then jsonb_build_array(o.given)
        else hwqueue.json_list(nullif(o.given, 'null'), o.field, 5, 'a domain, or a list of at most 5',
          'for example ["rack", "label:zone"]') end as levels
      from (select p_options -> 'together' as given, p_field || '.together' as field) o) l
    cross join lateral jsonb_array_elements(l.levels) with ordinality d
    order by d.ordinality)));
end $$;

-- Writes a gang that waits, with its members: leases by their ranks. Returns the gang. p_tier, p_priority:
-- those of its first member. A min_size of all is none.
-- Locks: new rows. Raises: 23505 for the id of a gang that is there. Not idempotent.
create or replace function hwqueue.insert_gang(p_gang hwqueue.gang, p_leases uuid[], p_queue hwqueue.queue,
  p_tier smallint, p_priority int, p_now timestamptz) returns hwqueue.gang
language plpgsql volatile
as $$
declare
  v_gang hwqueue.gang;
begin
  insert into hwqueue.gang (gang_id, queue_id, tenant, tier, rank, size, together, same, on_lost,
    hold, state, next_try_at, created_at, choice_id, min_size, run_id, step_no, members)
  values (p_gang.gang_id, p_queue.queue_id, p_gang.tenant, p_tier,
    hwqueue.lease_rank(p_queue.ageing_step, p_now, p_priority), p_gang.size, p_gang.together, p_gang.same,
    p_gang.on_lost, p_gang.hold, 'waiting', p_gang.next_try_at, p_now, p_gang.choice_id,
    nullif(p_gang.min_size, p_gang.size), p_gang.run_id, p_gang.step_no, p_leases)
  returning * into v_gang;
  return v_gang;
end
$$;

-- Whether a lease is of an everywhere task: a gang of one, which has the id of the lease.
create or replace function hwqueue.is_everywhere(p_lease uuid, p_team uuid) returns boolean
language sql immutable parallel safe
as $$ select p_team = p_lease $$;
