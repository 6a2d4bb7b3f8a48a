-- The state of a lease: the table that holds its row says which it is.
--
-- Example: lease L waits in ready (pending). A claim deletes that entry and writes a row in claim
-- (claimed). Completion replaces the claim by a row in outcome (completed). At each moment exactly one
-- of ready, scheduled, claim and outcome has a row of the lease.
--
-- The API reads a lease with find_lease and lease_state and takes a waiting one out of line with
-- take_entry. The invariant: a session that deletes a lease's row from one of these tables inserts one
-- into another, in the same transaction. Only prune deletes outcomes for good.
--
-- An entry of ready is looked for by a range of positions and an order, which only its primary key has:
-- when ready was empty at the last analyze, the planner holds the index by class to be as good.

-- Reads the filter of a list of leases. tenants: at most those of the caller; null: all.
-- Raises: QHA01, QHA03, QHQ01.
create or replace function hwqueue.read_lease_filter(p_filter jsonb)
returns hwqueue.lease_filter
language plpgsql stable
as $$
declare
  v_read jsonb := hwqueue.read_object(p_filter, 'leases', 'filter', p_now => hwqueue.clock());
  v_filter hwqueue.lease_filter := jsonb_populate_record(null::hwqueue.lease_filter, v_read);
begin
  if v_read ? 'queue' then
    v_filter.queue_id := (hwqueue.find_queue(v_read ->> 'queue')).queue_id;
  end if;
  v_filter.task_name := v_read ->> 'task';
  v_filter.service_id := (v_read ->> 'service')::uuid;
  v_filter.node_id := (v_read ->> 'node')::uuid;
  v_filter.tenants := hwqueue.my_tenants();
  if v_read ? 'tenant' then
    if v_read ->> 'tenant' <> all (v_filter.tenants) then
      perform hwqueue.refuse_foreign(format('filter.tenant is %s', v_read -> 'tenant'), 'filter.tenant',
        'leave out filter.tenant');
    end if;
    v_filter.tenants := array[v_read ->> 'tenant'];
  end if;
  v_filter.labels := nullif(v_filter.labels, '{}');
  if v_read ? 'idempotency_key' then
    if v_filter.queue_id is null then
      perform hwqueue.refuse('QHA01', 'filter.idempotency_key needs filter.queue',
        jsonb_build_object('field', 'filter.queue'), 'name the queue: each queue has keys of its own');
    end if;
    v_filter.lease_ids := array(  -- one for each tenant
      select i.lease_id
      from (select distinct c.tenant from hwqueue.placement_class c
            where c.queue_id = v_filter.queue_id) t
      join hwqueue.idempotency i on i.tenant = t.tenant
        and i.queue_id = v_filter.queue_id and i.idempotency_key = v_read ->> 'idempotency_key'
      where v_filter.tenants is null or t.tenant = any (v_filter.tenants));
  end if;
  return v_filter;
end
$$;

-- Ids of leases that meet a filter, from p_from on and below p_before (null: no bound), the highest
-- first.
create or replace function hwqueue.list_lease_ids(p_filter hwqueue.lease_filter, p_limit int, p_from uuid,
  p_before uuid) returns uuid[]
language plpgsql volatile
  -- planned each time: a filter that is not given must not be in the plan. Each row by its key, and no
  -- table as a whole
  set plan_cache_mode = force_custom_plan set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_key text := (select min(k) from jsonb_object_keys(p_filter.labels) k);
  v_classes jsonb[] := case when v_key is not null then array[  -- what their classes have, shown or hidden
    jsonb_build_object(v_key, p_filter.labels -> v_key), jsonb_build_object(v_key, null)] end;
begin
  return array(
    select l.lease_id
    from hwqueue.lease l
    -- lease_state as joins: the planner drops those that the filter does not need, and may start with the
    -- one that it needs
    left join hwqueue.outcome o on o.lease_id = l.lease_id
    left join hwqueue.claim r on r.lease_id = l.lease_id
    left join hwqueue.scheduled s on s.queue_id = l.queue_id
      and s.available_at = l.available_at and s.lease_id = l.lease_id
    where (p_before is null or l.lease_id < p_before) and (p_from is null or l.lease_id >= p_from)
      and (p_filter.queue_id is null or l.queue_id = p_filter.queue_id)
      and (p_filter.task_name is null or l.task_name = p_filter.task_name)
      and (p_filter.lease_ids is null or l.lease_id = any (p_filter.lease_ids))
      and (p_filter.created_from is null or l.created_at >= p_filter.created_from)
      and (p_filter.created_before is null or l.created_at < p_filter.created_before)
      and (p_filter.finished_from is null or o.finished_at >= p_filter.finished_from)
      and (p_filter.finished_before is null or o.finished_at < p_filter.finished_before)
      and (p_filter.error_type is null or o.error ->> 'type' = p_filter.error_type)
      and case when p_filter.state is null then true
               when p_filter.state in ('completed', 'failed', 'cancelled') then o.state = p_filter.state
               when p_filter.state = 'claimed' then r.lease_id is not null
               when p_filter.state = 'scheduled' then s.lease_id is not null
               else o.lease_id is null and r.lease_id is null and s.lease_id is null end
      and (p_filter.tenants is null and p_filter.service_id is null and p_filter.labels is null
           or exists (select 1 from hwqueue.placement_class c
                      where c.class_id = l.class_id
                        and (p_filter.tenants is null or c.tenant = any (p_filter.tenants))
                        and (p_filter.labels is null or c.labels @> any (v_classes)
                          and coalesce(l.labels, c.labels) @> p_filter.labels)
                        and (p_filter.service_id is null or c.service_id = p_filter.service_id)))
      and (p_filter.node_id is null
           or l.lease_id in (
             select c.lease_id from hwqueue.claim c where c.node_id = p_filter.node_id))
    order by l.lease_id desc limit p_limit);
end
$$;

-- Deletes the waiting entry of an open lease from ready or scheduled and returns it, which keeps other
-- sessions off the lease until the caller commits. Null when the lease is finished or claimed, which is held.
-- Locks: the entry or the claim. Not idempotent. Raises: QHL04.
create or replace function hwqueue.take_entry(p_lease uuid) returns hwqueue.scheduled
language plpgsql volatile
as $$
declare
  v_entry hwqueue.scheduled;
begin
  if hwqueue.my_tenants() is not null then
    perform hwqueue.find_lease(p_lease);  -- that of another tenant does not exist
  end if;
  loop
    select e.* into v_entry from hwqueue.take_free_entries(array[p_lease]) e;
    exit when v_entry.lease_id is not null or hwqueue.hold_state(p_lease) not in ('pending', 'scheduled');
  end loop;
  return v_entry;
end
$$;

-- Takes those of these leases out of line that wait and whose entries no other session holds. Of one that was
-- pending available_at says since when.
-- Locks: the entries, skip locked. Not idempotent.
create or replace function hwqueue.take_free_entries(p_leases uuid[]) returns setof hwqueue.scheduled
language plpgsql volatile
as $$ begin
  return query
    with asked as materialized (
      select l.queue_id, l.tier, l.rank, l.position, l.available_at, l.lease_id
      from unnest(p_leases) i(lease_id)
      cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
        select * from hwqueue.lease x where x.lease_id = i.lease_id offset 0) l
    ), was_ready as (
      delete from hwqueue.ready r where r.ctid = any (array(
        select x.row_ctid from asked l
        cross join lateral (
          select y.ctid as row_ctid from hwqueue.ready y
          where y.queue_id = l.queue_id and y.tier = l.tier and y.rank = l.rank
            and y.position between l.position and l.position and y.lease_id = l.lease_id
          order by y.position limit 1 for update skip locked) x))
      returning r.queue_id, r.tier, r.attempt_count, r.claim_count, 'time'::hwqueue.held_by, r.rank,
        r.class_id, r.lease_id, r.eligible_at, r.deadline
    ), was_scheduled as (
      delete from hwqueue.scheduled s where s.ctid = any (array(
        select x.row_ctid from asked l
        cross join lateral (
          select y.ctid as row_ctid from hwqueue.scheduled y
          where y.queue_id = l.queue_id and y.available_at = l.available_at and y.lease_id = l.lease_id
          for update skip locked) x))
      returning s.*
    )
    select r.*, null::bigint, null::bigint from was_ready r
    union all
    select s.* from was_scheduled s;
end $$;

-- Holds the row that says where a lease is until the caller commits: nobody can claim it, settle it or make
-- it due meanwhile. Returns its state. Entries move between the tables while this reads them, so it reads
-- again until it has one; the session that moved it has committed by then. An outcome is not held.
-- Locks: the entry or the claim. Raises: QHL04.
create or replace function hwqueue.hold_state(p_lease uuid) returns text
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_end text;
begin
  for v_try in 1 .. 100 loop
    v_lease := hwqueue.find_lease(p_lease);
    v_end := (hwqueue.lease_end(p_lease)).state;
    if v_end is not null then
      return v_end;
    end if;
    perform 1 from hwqueue.claim c where c.lease_id = p_lease for no key update;
    if found then
      return 'claimed';
    end if;
    perform 1 from hwqueue.ready r
    where r.queue_id = v_lease.queue_id and r.tier = v_lease.tier
      and r.rank = v_lease.rank and r.position between v_lease.position and v_lease.position
      and r.lease_id = p_lease
    order by r.position limit 1 for no key update;
    if found then
      return 'pending';
    end if;
    -- for update: the caller may go on to delete it, and two such callers must not share it
    perform 1 from hwqueue.scheduled s
    where s.queue_id = v_lease.queue_id and s.available_at = v_lease.available_at and s.lease_id = p_lease
    for update;
    if found then
      return 'scheduled';
    end if;
  end loop;
  perform hwqueue.refuse('XX000', format('lease %s is open but waits and runs nowhere', p_lease),
    jsonb_build_object('lease_id', p_lease), 'the tables contradict each other: please report this');
  return null;
end
$$;

-- The record of a lease. For a caller limited to other tenants it does not exist, with the same error
-- text. Raises: QHL04.
create or replace function hwqueue.find_lease(p_lease uuid) returns hwqueue.lease
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
begin
  select l.* into v_lease from hwqueue.lease l where l.lease_id = p_lease;
  if not found or hwqueue.my_tenants() is not null and not exists (
    select from hwqueue.placement_class c
    where c.class_id = v_lease.class_id and c.tenant = any (hwqueue.my_tenants())) then
    perform hwqueue.refuse('QHL04', format('lease %s does not exist', coalesce(p_lease::text, 'null')),
      jsonb_build_object('lease_id', p_lease),
      'check the id; finished leases go once their queue''s retention is over');
  end if;
  return v_lease;
end
$$;

-- How a lease ended; null when it is open or does not exist. The row in outcome is what ends a lease.
-- The session that has deleted the lease's entry inserts it, and a session that deletes it
-- (requeue_lease, prune) holds the lease.
create or replace function hwqueue.lease_end(p_lease uuid) returns hwqueue.outcome
language plpgsql stable
as $$ begin return (select o from hwqueue.outcome o where o.lease_id = p_lease); end $$;

-- The public state of a lease: how it ended, else where its entry is. Null: no such lease.
create or replace function hwqueue.lease_state(p_lease uuid) returns text
language plpgsql stable
as $$ begin return (
  select case
    when o.lease_id is not null then o.state
    when exists (select 1 from hwqueue.claim c where c.lease_id = l.lease_id) then 'claimed'
    when exists (select 1 from hwqueue.scheduled s where s.queue_id = l.queue_id
                 and s.available_at = l.available_at and s.lease_id = l.lease_id) then 'scheduled'
    else 'pending' end
  from hwqueue.lease l
  left join hwqueue.outcome o on o.lease_id = p_lease
  where l.lease_id = p_lease
); end $$;
