-- Choices: of alternatives the first that is claimed or reserved runs, and no other after it.
--
-- Example: a job asks for 8 A100 or for 16 V100, by two spawns with the option {"one_of": C}:
-- the first writes the row of C, the second adds itself. Two nodes claim one of them each at the same
-- moment. One locks the row and writes which was taken; the other finds it locked and leaves its
-- alternative alone. Later claims read what was taken, until upkeep cancels what is left (gangs/choices).
--
-- Invariant: who adds, claims or reserves an alternative has locked its choice, and writes in the same
-- transaction that it was added or, if no other was, taken. So upkeep, which holds the row, too, misses none
-- when it cancels what was not taken: a row of team_change says that there may be some. All but spawns take
-- it with skip locked, so no claim waits. An alternative that waits again, for a retry say, stays the one
-- that was taken.

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
  on conflict (choice_id) do update set members = h.members || excluded.members
  returning h.* into v_choice;
  insert into hwqueue.team_change (team_id, kind) select p_choice, 'choice' where v_choice.taken is not null;
  if v_choice.tenant <> p_tenant or cardinality(v_choice.members) > 100 then
    perform hwqueue.refuse('QHA01', format('choice %s takes no more alternatives', p_choice),
      jsonb_build_object('field', 'options.one_of', 'one_of', p_choice, 'limit', 100),
      'a choice has 100 at most, all of one tenant: describe nodes that are alike by one placement, or use a'
      ' fresh id');
  end if;
end
$$;

-- Locks the oldest entry of a class of alternatives that may be claimed: between two positions of a tier and
-- rank, as choose_seen has it, and of a choice of which no other lease was taken. It writes that this one
-- is. Returns the entry; null: there is none, or other sessions hold it or its choice.
-- Locks: the entry and its choice, skip locked. Not idempotent.
create or replace function hwqueue.lock_alternative(p_request hwqueue.claim_request, p_class_id bigint,
  p_seen hwqueue.seen_entries, p_from bigint, p_to bigint, p_since timestamptz, p_lease uuid,
  out row_ctid tid, out lease_id uuid, out claim_count int)
language plpgsql volatile
as $$
declare
  v_choice uuid;
begin
  select x.ctid, x.lease_id, x.claim_count, h.choice_id into row_ctid, lease_id, claim_count, v_choice
  from hwqueue.ready x
  join hwqueue.lease l on l.lease_id = x.lease_id
  join hwqueue.choice h on h.choice_id = l.choice_id
  where x.class_id = p_class_id and x.tier = p_seen.tier
    and x.rank = p_seen.rank and x.position between p_from and p_to
    and (x.deadline is null or x.deadline > p_request.now)
    and (p_since is null or x.eligible_at <= p_since) and (p_lease is null or x.lease_id = p_lease)
    and (h.taken is null or h.taken = x.lease_id)  -- read again once the row is locked
  order by x.position limit 1
  for update of x skip locked for no key update of h skip locked;
  perform hwqueue.take_choice(v_choice, lease_id);
end
$$;

-- Locks a choice for a lease or a gang, and with p_takes takes it. False: another was taken, or another
-- session holds the choice. True for one that has taken it already, and without a choice.
-- Locks: the choice, skip locked. Idempotent.
create or replace function hwqueue.take_choice(p_choice uuid, p_taker uuid, p_takes boolean default true)
returns boolean
language plpgsql volatile
as $$
begin
  if p_choice is null then
    return true;
  end if;
  perform 1 from hwqueue.choice h where h.choice_id = p_choice and (h.taken is null or h.taken = p_taker)
  for no key update skip locked;
  if not found then
    return false;
  end if;
  with took as (
    update hwqueue.choice h set taken = p_taker
    where p_takes and h.choice_id = p_choice and h.taken is null returning h.choice_id
  )
  insert into hwqueue.team_change (team_id, kind) select t.choice_id, 'choice' from took t;
  return true;
end
$$;

-- Which other alternative was taken of the choice of a lease; null: none, or it is of no choice.
create or replace function hwqueue.taken_instead(p_lease hwqueue.lease) returns uuid
language plpgsql stable
as $$ begin
  return case when p_lease.choice_id is not null then (
    select nullif(h.taken, p_lease.lease_id) from hwqueue.choice h where h.choice_id = p_lease.choice_id) end;
end $$;
