-- What becomes of the alternatives that were not taken.
--
-- Example: the claim of "16 V100" has taken a choice. The next reap cancels the lease that asked for 8 A100,
-- and the gang that asked for 32 T4 goes to cancelling, as cancel_gang would have it. An alternative that
-- another session holds is met by a later reap.
--
-- Invariant: a choice has a row in team_change as long as one of its alternatives may be open that was not
-- taken; one that is added later writes another (spawn/choice).

-- Cancels the leases and gangs of a choice that were not taken, and works off its changes. False: another
-- session holds it or one of them, so a later tick looks again.
-- Locks: the choice, entries and gangs, all skip locked.
create or replace function hwqueue.look_at_choice(p_choice uuid) returns boolean
language plpgsql volatile
as $$
declare
  v_choice hwqueue.choice;
  v_open uuid[];
  v_ended uuid[];
  v_why jsonb;
  v_gang hwqueue.gang;
begin
  select h.* into v_choice from hwqueue.choice h
  where h.choice_id = p_choice for no key update skip locked;
  if not found then
    return false;
  end if;
  delete from hwqueue.team_change c where c.team_id = p_choice;
  v_open := array(
    select l.lease_id from hwqueue.lease l
    where l.lease_id = any (v_choice.members) and l.choice_id = p_choice and l.lease_id <> v_choice.taken
      and hwqueue.lease_state(l.lease_id) in ('scheduled', 'pending', 'claimed'));
  v_why := jsonb_build_object('reason', 'choice_taken', 'one_of', p_choice, 'taken', v_choice.taken,
    'detail', format('of its alternatives %s was taken', v_choice.taken));
  v_ended := hwqueue.cancel_waiting(v_open, v_why, 'cancelled: ' || (v_why ->> 'detail'), v_why - 'detail');
  for v_gang in
    select g.* from hwqueue.gang g
    where g.gang_id = any (v_choice.members) and g.choice_id = p_choice and g.gang_id <> v_choice.taken
      and g.finished_at is null and g.state <> 'cancelling'
    order by g.gang_id for no key update skip locked
  loop
    update hwqueue.gang g set state = 'cancelling', reason = 'choice_taken' where g.gang_id = v_gang.gang_id;
    insert into hwqueue.team_change (team_id) values (v_gang.gang_id);
    perform hwqueue.note_gang(v_gang, 'cancelling');
  end loop;
  insert into hwqueue.team_change (team_id, kind)
  select p_choice, 'choice' where cardinality(v_ended) < cardinality(v_open) or exists (
    select from hwqueue.gang g
    where g.gang_id = any (v_choice.members) and g.choice_id = p_choice and g.gang_id <> v_choice.taken
      and g.finished_at is null and g.state <> 'cancelling');
  return not found;
end
$$;
