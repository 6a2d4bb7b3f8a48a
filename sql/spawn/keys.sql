-- Keys of leases: who gets one that another lease has, or had.
--
-- Example: A has failed, and B was spawned with its key since. While B is open, A stays failed. Once B has
-- ended, A may be requeued, and has the key again: a spawn with the key finds A.
--
-- Invariant: of the leases whose key holds while they are open, one is open: who takes a key looks at the
-- state of the lease that has it while it holds the row of the key.

-- Returns the keys, of both kinds, that some leases were spawned with. turn: the order of p_leases.
create or replace function hwqueue.spawned_keys(p_leases uuid[])
returns table (lease_id uuid, turn bigint, tenant text, queue_id int, idempotency_key text)
language sql stable
as $$
  select l.lease_id, u.turn, c.tenant, l.queue_id, l.idempotency_key
  from unnest(p_leases) with ordinality u(lease_id, turn)
  cross join lateral (  -- fences (offset 0): by key, whatever the statistics say
    select * from hwqueue.lease x where x.lease_id = u.lease_id offset 0) l
  cross join lateral (
    select x.tenant from hwqueue.placement_class x
    where x.class_id = l.class_id offset 0) c
  where l.idempotency_key is not null
$$;

-- Whether the lease that has a key keeps it: a unique key is free when its lease has ended, or its time is
-- over; nobody frees it before somebody asks. An idempotency key is never free.
create or replace function hwqueue.holds_key(p_key hwqueue.idempotency, p_now timestamptz) returns boolean
language plpgsql stable
as $$ begin return
  (p_key.held_until <= p_now or p_key.held_until = 'infinity'
    and coalesce(hwqueue.lease_state(p_key.lease_id), 'gone') not in ('scheduled', 'pending', 'claimed')
  ) is not true;
end $$;

-- Takes a key for a lease, and returns the lease that has it from now on: that of p_key, if no other has it
-- or it was free, else the other one; null: another session holds its row, and not p_waits. A unique key is
-- free when its lease has ended, or its time is over; nobody frees it before somebody asks. p_open: leases
-- that count as open. An idempotency key is never free.
-- Locks: the row of the key; without p_waits skip locked.
create or replace function hwqueue.take_key(p_key hwqueue.idempotency, p_open uuid[], p_waits boolean,
  p_now timestamptz) returns uuid
language plpgsql volatile
as $$
declare
  v_found hwqueue.idempotency;
begin
  loop
    if p_waits then
      select i.* into v_found from hwqueue.idempotency i
      where i.tenant = p_key.tenant and i.queue_id = p_key.queue_id
        and i.idempotency_key = p_key.idempotency_key for update;
    else
      select i.* into v_found from hwqueue.idempotency i
      where i.tenant = p_key.tenant and i.queue_id = p_key.queue_id
        and i.idempotency_key = p_key.idempotency_key for update skip locked;
    end if;
    exit when found;
    if not p_waits and exists (
      select from hwqueue.idempotency i
      where i.tenant = p_key.tenant and i.queue_id = p_key.queue_id
        and i.idempotency_key = p_key.idempotency_key) then
      return null;
    end if;
    insert into hwqueue.idempotency select p_key.* on conflict do nothing;
    if found then
      return p_key.lease_id;
    end if;
  end loop;  -- written, or pruned, since
  -- a statement of its own: it sees what ended while this waited for the key
  if v_found.lease_id = p_key.lease_id or v_found.lease_id = any (p_open) or p_key.held_until is null
    or hwqueue.holds_key(v_found, p_now) then
    return v_found.lease_id;
  end if;
  update hwqueue.idempotency i set lease_id = p_key.lease_id, held_until = p_key.held_until
  where i.tenant = p_key.tenant and i.queue_id = p_key.queue_id
    and i.idempotency_key = p_key.idempotency_key;
  return p_key.lease_id;
end
$$;

-- Puts the unique keys of leases that are to be requeued back to them. Returns those that must stay as is,
-- because another lease has the key (holder), or without p_waits another session holds it (null). Of
-- leases with one key the one that has it keeps it; else one of them gets it. A key whose row is missing,
-- because the lease that had taken it over is deleted, is written again. An idempotency key was never lost.
-- Locks: missing keys in sorted order, then the others, as a spawn (reserve_keys): a new key may wait for a
-- spawn, which may wait for one that is there. The caller holds the outcomes of the leases.
create or replace function hwqueue.regain_keys(p_leases uuid[], p_waits boolean, p_now timestamptz)
returns table (lease_id uuid, holder uuid, key text)
language plpgsql volatile
as $$
declare
  v_key hwqueue.idempotency;
begin
  for v_key in
    select s.tenant, s.queue_id, s.idempotency_key, s.lease_id, ''::bytea, coalesce(k.held_until, 'infinity')
    from hwqueue.spawned_keys(p_leases) s
    left join lateral (
      select true as found, i.held_until from hwqueue.idempotency i
      where i.tenant = s.tenant and i.queue_id = s.queue_id
        and i.idempotency_key = s.idempotency_key offset 0) k on true
    order by k.found nulls first, s.tenant collate "C", s.queue_id, s.idempotency_key collate "C", s.turn
  loop
    holder := hwqueue.take_key(v_key, p_leases, p_waits, p_now);
    if holder is distinct from v_key.lease_id then
      lease_id := v_key.lease_id;
      key := v_key.idempotency_key;
      return next;
    end if;
  end loop;
end
$$;
