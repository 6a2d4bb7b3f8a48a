-- The unique keys of leases that are requeued.
--
-- requeue_lease and requeue_leases (api) call regain_keys. An example: A has failed, and B was spawned with
-- its key since. While B is open, A stays failed. Once B has ended, A may be requeued, and has the key again:
-- a spawn with the key finds A.
--
-- Invariant: of the leases whose key holds while they are open, one is open. A spawn (take_unique_key) and
-- a requeue both look at the state of the lease that has the key while they hold the row of the key.

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

-- Locks the rows of the keys that some leases were spawned with, and returns them, once for each lease, in
-- the order of the keys, then of p_leases. held is null for those that another session holds; with p_waits,
-- which is for one lease, this waits for it. It first writes rows that are missing, because the lease that
-- had taken the key over is deleted.
-- Locks: new keys in sorted order, then the others in sorted order, as a spawn (reserve_keys).
create or replace function hwqueue.held_keys(p_leases uuid[], p_waits boolean)
returns table (lease_id uuid, key text, held hwqueue.idempotency)
language plpgsql volatile
as $$
begin
  loop
    insert into hwqueue.idempotency (tenant, queue_id, idempotency_key, lease_id, content, held_until)
    select s.tenant, s.queue_id, s.idempotency_key, s.lease_id, '', 'infinity'
    from hwqueue.spawned_keys(p_leases) s
    left join lateral (
      select true as found from hwqueue.idempotency i where i.tenant = s.tenant
        and i.queue_id = s.queue_id and i.idempotency_key = s.idempotency_key offset 0) k on true
    where k.found is null
    order by s.tenant collate "C", s.queue_id, s.idempotency_key collate "C", s.turn
    on conflict do nothing;
    if p_waits then
      return query
        select s.lease_id, s.idempotency_key, k.held
        from hwqueue.spawned_keys(p_leases) s
        cross join lateral (
          select i as held from hwqueue.idempotency i where i.tenant = s.tenant
            and i.queue_id = s.queue_id and i.idempotency_key = s.idempotency_key for update) k;
    else
      return query
        select s.lease_id, s.idempotency_key, k.held
        from (select * from hwqueue.spawned_keys(p_leases) s
              order by s.tenant collate "C", s.queue_id, s.idempotency_key collate "C", s.turn) s
        left join lateral (
          select i as held from hwqueue.idempotency i where i.tenant = s.tenant
            and i.queue_id = s.queue_id and i.idempotency_key = s.idempotency_key
          for update skip locked) k on true;
    end if;
    exit when found or not p_waits;  -- else pruned while this waited
  end loop;
end
$$;

-- Puts the unique keys of leases that are to be requeued back to them. Returns those that must stay as is,
-- because another lease has the key (holder), or without p_waits another session holds it (null). Of
-- leases with one key the one that has it keeps it; else one of them gets it. An idempotency key was never
-- lost.
-- Locks: as held_keys. The caller holds the outcomes of the leases.
create or replace function hwqueue.regain_keys(p_leases uuid[], p_waits boolean, p_now timestamptz)
returns table (lease_id uuid, holder uuid, key text)
language plpgsql volatile
as $$
declare
  v_key record;
  v_last hwqueue.idempotency;
begin
  if not exists (select 1 from hwqueue.spawned_keys(p_leases)) then
    return;  -- most leases
  end if;
  for v_key in select k.* from hwqueue.held_keys(p_leases, p_waits) k loop
    if v_key.held is distinct from v_last then
      v_last := v_key.held;
      holder := v_last.lease_id;
    end if;
    continue when holder = v_key.lease_id;
    -- statements of their own: they see what ended while this waited for the keys
    if holder <> all (p_leases) and (v_last.held_until <= p_now or v_last.held_until = 'infinity'
      and coalesce(hwqueue.lease_state(holder), 'gone') not in ('scheduled', 'pending', 'claimed')) then
      update hwqueue.idempotency i set lease_id = v_key.lease_id
      where i.tenant = v_last.tenant and i.queue_id = v_last.queue_id
        and i.idempotency_key = v_last.idempotency_key;
      holder := v_key.lease_id;
    else
      lease_id := v_key.lease_id;
      key := v_key.key;
      return next;
    end if;
  end loop;
end
$$;
