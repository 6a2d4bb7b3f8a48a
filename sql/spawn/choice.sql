-- Spawning alternatives: the option one_of, and the choice that leases and gangs with the same one are of.
--
-- spawn/read reads the option, spawn/write and gangs/spawn call join_choice. Example: two spawns have the
-- option {"one_of": C}. The first writes the row of C, the second finds it and adds itself.
--
-- Invariant: an alternative is written in the transaction that adds it to the members of its choice, while it
-- holds that row. So upkeep, which holds the row, too, misses none when it cancels what was not taken.

-- Returns the choice that the option one_of names.
-- Raises: QHA01.
create or replace function hwqueue.choice_of(p_options jsonb) returns uuid
language plpgsql immutable
as $$
declare
  v_choice uuid := hwqueue.json_uuid(p_options -> 'one_of', 'options.one_of');
begin
  if v_choice is not null and coalesce(p_options -> 'unique', 'null') <> 'null' then
    perform hwqueue.refuse('QHA01', 'options has both one_of and unique',
      jsonb_build_object('field', 'options.one_of'),
      'another spawn could replace an alternative: give one_of with idempotency_key, or unique alone');
  end if;
  return v_choice;
end
$$;

-- Adds a lease or a gang to its choice, which it writes if it is the first. One that comes after another was
-- taken is cancelled by upkeep, as if it had come before.
-- Locks: the choice. Raises: QHA01 for a choice of another tenant, in the words for the 101st alternative.
create or replace function hwqueue.join_choice(p_choice uuid, p_tenant text, p_member uuid,
  p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_choice hwqueue.choice;
begin
  insert into hwqueue.choice as h (choice_id, tenant, members, checked_at)
  values (p_choice, p_tenant, array[p_member], p_now)
  on conflict (choice_id) do update
  set members = h.members || excluded.members,
      taken_at = case when h.taken is not null then hwqueue.clock() end  -- not below the mark of reap
  returning h.* into v_choice;
  if v_choice.tenant <> p_tenant or cardinality(v_choice.members) > 100 then
    perform hwqueue.refuse('QHA01', format('choice %s takes no more alternatives', p_choice),
      jsonb_build_object('field', 'options.one_of', 'one_of', p_choice, 'limit', 100),
      'a choice has 100 at most, all of one tenant: describe nodes that are alike by one placement, or use a'
      ' fresh id');
  end if;
end
$$;
