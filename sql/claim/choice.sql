-- Choices: of alternatives the first that is claimed or reserved runs, and no other after it.
--
-- claim/entries calls lock_alternative for classes with is_choice, gangs/assemble and adopt_lease call
-- take_choice. Example: a job asks for 8 A100 or for 16 V100. Two nodes claim one alternative each at the
-- same moment. One locks the row of the choice and writes which it has taken; the other finds the row locked
-- and leaves its alternative alone. Later claims read what was taken, until upkeep cancels what is left
-- (gangs/choices).
--
-- Invariant: who claims or reserves an alternative has locked its choice, has seen that no other was taken,
-- and writes that this one is, in the same transaction. All is done with skip locked, so no claim waits. An
-- alternative that waits again, for a retry say, stays the one that was taken.
--
-- taken_at is read under the lock, so none comes below the mark of reap.

-- Locks the oldest entry of a class of alternatives that may be claimed: between two positions of a tier and
-- rank, as choose_seen has it, and of a choice of which no other lease was taken. It writes that this one
-- is. Returns the entry; null: there is none, or other sessions hold it or its choice.
-- Locks: the entry and its choice, skip locked. Not idempotent.
create or replace function hwqueue.lock_alternative(p_request hwqueue.claim_request, p_class_id bigint,
  p_seen hwqueue.seen_entries, p_from bigint, p_to bigint, p_since timestamptz, p_lease uuid,
  out place tid, out lease_id uuid, out claim_count int)
language plpgsql volatile
as $$
declare
  v_choice uuid;
begin
  select x.ctid, x.lease_id, x.claim_count, h.choice_id into place, lease_id, claim_count, v_choice
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
  if found then
    update hwqueue.choice h set taken = lock_alternative.lease_id, taken_at = hwqueue.clock()
    where h.choice_id = v_choice and h.taken is null;
  end if;
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
  update hwqueue.choice h set taken = p_taker, taken_at = hwqueue.clock()
  where p_takes and h.choice_id = p_choice and h.taken is null;
  return true;
end
$$;

-- Which other alternative was taken of the choice of a lease; null: none, or it is of no choice.
create or replace function hwqueue.taken_instead(p_lease hwqueue.lease) returns uuid
language plpgsql stable
as $$
begin
  return case when p_lease.choice_id is not null then (
    select nullif(h.taken, p_lease.lease_id) from hwqueue.choice h where h.choice_id = p_lease.choice_id) end;
end
$$;

-- Refuses to run a lease when another alternative of its choice was taken.
-- Raises: QHL03.
create or replace function hwqueue.refuse_taken(p_lease hwqueue.lease) returns void
language plpgsql stable
as $$
declare
  v_taken uuid := hwqueue.taken_instead(p_lease);
begin
  if v_taken is not null then
    perform hwqueue.refuse('QHL03', format('of choice %s, which lease %s is of, %s was taken',
        p_lease.choice_id, p_lease.lease_id, v_taken),
      jsonb_build_object('lease_id', p_lease.lease_id, 'one_of', p_lease.choice_id, 'taken', v_taken),
      'of alternatives one runs: requeue that one, or spawn this one again in another choice');
  end if;
end
$$;
