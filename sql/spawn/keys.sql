-- The unique keys of leases that are requeued.
--
-- requeue_lease, requeue_failed and requeue_leases (api) call regain_keys. An example: A has failed, and B
-- was spawned with its key since. While B is open, A stays failed. Once B has ended, A may be requeued, and
-- has the key again: a spawn with the key finds A.
--
-- Invariant: of the leases whose key holds while they are open, one is open. A spawn (take_unique_key) and
-- a requeue both look at the state of the lease that has the key while they hold the row of the key.
--
-- Read regain_keys first: it calls lock_keys, which asks spawned_keys.

-- Returns the keys, of both kinds, that some leases were spawned with. turn: the order of p_leases.
create or replace function hwqueue.spawned_keys(p_leases uuid[], p_shard int)
returns table (lease_id uuid, turn bigint, tenant text, queue_id int, idempotency_key text)
language sql stable
as $$
  select l.lease_id, u.turn, c.tenant, l.queue_id, l.idempotency_key
  from unnest(p_leases) with ordinality u(lease_id, turn)
  cross join lateral (  -- fences (offset 0): by key, whatever the statistics say
    select * from hwqueue.lease x where x.shard_id = p_shard and x.lease_id = u.lease_id offset 0) l
  cross join lateral (
    select x.tenant from hwqueue.placement_class x
    where x.shard_id = p_shard and x.class_id = l.class_id offset 0) c
  where l.idempotency_key is not null
$$;

-- Locks the rows of the keys that some leases were spawned with, those that another session holds only
-- with p_waits, and returns them. It first writes those that are missing, because the lease that had taken
-- the key over is deleted.
-- Locks: new keys in sorted order, then the others in sorted order, as a spawn (reserve_keys).
create or replace function hwqueue.lock_keys(p_leases uuid[], p_waits boolean, p_shard int)
returns hwqueue.idempotency[]
language plpgsql volatile
as $$
begin
  insert into hwqueue.idempotency (shard_id, tenant, queue_id, idempotency_key, lease_id, content, held_until)
  select p_shard, s.tenant, s.queue_id, s.idempotency_key, s.lease_id, '', 'infinity'
  from hwqueue.spawned_keys(p_leases, p_shard) s
  where not exists (
    select 1 from hwqueue.idempotency i where i.shard_id = p_shard and i.tenant = s.tenant
      and i.queue_id = s.queue_id and i.idempotency_key = s.idempotency_key)
  order by s.tenant collate "C", s.queue_id, s.idempotency_key collate "C", s.turn
  on conflict do nothing;
  if p_waits then
    return array(
      select k.held
      from (select distinct s.tenant collate "C", s.queue_id, s.idempotency_key collate "C"
            from hwqueue.spawned_keys(p_leases, p_shard) s order by 1, 2, 3) s
      cross join lateral (
        select i as held from hwqueue.idempotency i where i.shard_id = p_shard and i.tenant = s.tenant
          and i.queue_id = s.queue_id and i.idempotency_key = s.idempotency_key for update) k);
  end if;
  return array(
    select k.held
    from (select distinct s.tenant collate "C", s.queue_id, s.idempotency_key collate "C"
          from hwqueue.spawned_keys(p_leases, p_shard) s order by 1, 2, 3) s
    cross join lateral (
      select i as held from hwqueue.idempotency i where i.shard_id = p_shard and i.tenant = s.tenant
        and i.queue_id = s.queue_id and i.idempotency_key = s.idempotency_key for update skip locked) k);
end
$$;

-- Puts the unique keys of leases that are to be requeued back to them. Returns those that must stay as is,
-- because another lease has the key (holder), or without p_waits another session holds it (null). Of
-- leases with one key the one that has it keeps it; else one of them gets it. An idempotency key was never
-- lost.
-- Locks: as lock_keys. The caller holds the outcomes of the leases.
create or replace function hwqueue.regain_keys(p_leases uuid[], p_waits boolean, p_now timestamptz,
  p_shard int)
returns table (lease_id uuid, holder uuid, key text)
language plpgsql volatile
as $$
declare
  v_held hwqueue.idempotency[];
begin
  if not exists (select 1 from hwqueue.spawned_keys(p_leases, p_shard)) then
    return;  -- most leases
  end if;
  loop
    v_held := hwqueue.lock_keys(p_leases, p_waits, p_shard);
    exit when not p_waits or v_held <> '{}';  -- else pruned while this waited
  end loop;
  -- a statement of its own: it sees what ended while this waited for the keys
  update hwqueue.idempotency i set lease_id = f.lease_id
  from (
    select distinct on (s.tenant, s.queue_id, s.idempotency_key) s.*
    from unnest(v_held) h
    join hwqueue.spawned_keys(p_leases, p_shard) s on s.tenant = h.tenant and s.queue_id = h.queue_id
      and s.idempotency_key = h.idempotency_key
    where h.lease_id <> all (p_leases) and (h.held_until <= p_now or h.held_until = 'infinity'
      and coalesce(hwqueue.lease_state(h.lease_id, p_shard), 'gone')
        not in ('scheduled', 'pending', 'claimed'))
    order by s.tenant, s.queue_id, s.idempotency_key, s.turn) f
  where i.shard_id = p_shard and i.tenant = f.tenant and i.queue_id = f.queue_id
    and i.idempotency_key = f.idempotency_key;
  return query
    select s.lease_id, i.lease_id, s.idempotency_key
    from hwqueue.spawned_keys(p_leases, p_shard) s
    left join unnest(v_held) h on h.tenant = s.tenant and h.queue_id = s.queue_id
      and h.idempotency_key = s.idempotency_key
    left join hwqueue.idempotency i on i.shard_id = p_shard and i.tenant = h.tenant
      and i.queue_id = h.queue_id and i.idempotency_key = h.idempotency_key
    where i.lease_id is distinct from s.lease_id;
end
$$;
