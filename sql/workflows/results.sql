-- Results of steps, for those who may read them. Example: the handler of "score" reads the result of "train".
-- Its worker names the lease that it runs, which shows that it works for that run. A page of the dashboard
-- asks for the failed ones of 100,000 items.

-- The record of a run. For a caller limited to other tenants it does not exist.
-- Raises: QHF03.
create or replace function hwqueue.find_run(p_run uuid) returns hwqueue.run
language plpgsql stable
as $$
declare
  v_run hwqueue.run;
begin
  select r.* into v_run from hwqueue.run r where r.run_id = p_run;
  if not found or v_run.tenant <> all (hwqueue.my_tenants()) then
    perform hwqueue.refuse('QHF03', format('run %s does not exist', coalesce(p_run::text, 'null')),
      jsonb_build_object('run_id', p_run),
      'check the id; runs that have ended go once their retention is over');
  end if;
  return v_run;
end
$$;

-- Returns a run that the caller may read. A login that may call get_workflow_run reads any, also where there
-- are no roles; a worker reads the run of a lease that it has claimed.
-- Raises: QHF03; QHL01 without such a claim, QHN04 for a claim of another login.
create or replace function hwqueue.readable_run(p_run uuid, p_lease uuid) returns hwqueue.run
language plpgsql stable
as $$
declare
  v_claim hwqueue.claim;
begin
  -- who names a lease reads as its worker: the HTTP server may read all runs, and its workers may not
  if p_lease is null
    and has_function_privilege(session_user, 'hwqueue.get_workflow_run(uuid)', 'execute') then
    return hwqueue.find_run(p_run);
  end if;
  select c.* into v_claim
  from hwqueue.claim c
  join hwqueue.lease l on l.lease_id = c.lease_id and l.run_id = p_run
  where c.lease_id = p_lease and c.node_id = coalesce(hwqueue.entered_node(), c.node_id);
  if not found then
    perform hwqueue.refuse('QHL01', format('lease %s is no claimed step of run %s',
        coalesce(p_lease::text, 'null'), coalesce(p_run::text, 'null')),
      jsonb_build_object('lease_id', p_lease, 'run_id', p_run),
      'a worker reads the run of a lease that it has claimed: name it in p_lease');
  end if;
  perform hwqueue.check_login(v_claim.node_id, v_claim.login);
  return hwqueue.find_run(p_run);
end
$$;

-- Where a lease is, or how it ended. lease_state: as in get_lease. node_id, attempt, claimed_at: of its last
-- claim.
create or replace function hwqueue.lease_place(p_lease uuid)
returns table (item_no int, lease_state text, result jsonb, error jsonb, node_id uuid, node_name text,
  attempt smallint, claimed_at timestamptz, finished_at timestamptz)
language sql stable
as $$
  select l.item_no, case when o.state is not null then o.state when k.node_id is not null then 'claimed'
      else hwqueue.lease_state(p_lease) end,
    o.result, o.error, f.node_id, n.name, coalesce(k.attempt, o.attempt, l.attempt_count), f.claimed_at,
    o.finished_at
  from hwqueue.lease l
  -- fences (offset 0): by key, whatever the statistics say
  left join lateral (
    select x.state, x.result, x.error, x.node_id, x.attempt, x.claimed_at, x.finished_at
    from hwqueue.outcome x where x.lease_id = p_lease offset 0) o on true
  left join lateral (
    select c.node_id, c.attempt, c.claimed_at from hwqueue.claim c
    where o.state is null and c.lease_id = p_lease offset 0) k on true
  cross join lateral (
    select coalesce(k.node_id, o.node_id, l.node_id) as node_id,
           coalesce(k.claimed_at, o.claimed_at, l.claimed_at) as claimed_at) f
  left join lateral (
    select x.name from hwqueue.node x where x.node_id = f.node_id offset 0) n on true
  where l.lease_id = p_lease
$$;

-- The items of a step behind p_after, p_limit at most, in the order of their numbers: those that are spawned,
-- or the elements of the list that an operator declared to be its result. p_state: only those in this state;
-- null: any. Where few leases have ended in it since the run was submitted, these are held against the step;
-- else its items are looked at one after the other.
create or replace function hwqueue.item_results(p_run hwqueue.run, p_step int, p_after int, p_limit int,
  p_state text)
returns table (item int, state text, result jsonb, error jsonb, name text, lease_id uuid, lease_state text,
  node_id uuid, node_name text, attempt smallint, claimed_at timestamptz, finished_at timestamptz)
language plpgsql stable
as $$
declare
  v_declared jsonb := (
    select s.result from hwqueue.step s
    where s.run_id = p_run.run_id and s.step_no = p_step and s.reason = 'operator');
  v_items int := hwqueue.items_begun(p_run.run_id, p_step);
  v_few uuid[];
  v_page uuid[];
begin
  if jsonb_typeof(v_declared) = 'array' then
    return query
      select e.ordinality::int - 1, 'completed', nullif(e.value, 'null'), null::jsonb, null, null::uuid, null,
        null::uuid, null, null::smallint, null::timestamptz, null::timestamptz
      from jsonb_array_elements(v_declared) with ordinality e
      where e.ordinality - 1 > p_after and coalesce(p_state, 'completed') = 'completed'
      order by e.ordinality limit p_limit;
    return;
  end if;
  if p_state in ('completed', 'failed', 'cancelled') then
    v_few := array(
      select o.lease_id
      from hwqueue.queue q
      cross join lateral (  -- a fence (offset 0): by outcome_finished
        select x.lease_id from hwqueue.outcome x
        where x.queue_id = q.queue_id and x.state = p_state
          and x.finished_at >= p_run.submitted_at offset 0) o
      limit 10001);
  end if;
  if cardinality(v_few) <= 10000 then
    v_page := array(
      select l.lease_id
      from unnest(v_few) u(lease_id)
      cross join lateral (  -- a fence (offset 0): by key, whatever the statistics say
        select x.lease_id, x.run_id, x.step_no, x.item_no from hwqueue.lease x
        where x.lease_id = u.lease_id offset 0) l
      where l.run_id = p_run.run_id and l.step_no = p_step and l.item_no > p_after and l.item_no < v_items
      order by l.item_no limit p_limit);
  else
    v_page := array(
      select l.lease_id from hwqueue.lease l
      where l.run_id = p_run.run_id and l.step_no = p_step and l.item_no > p_after and l.item_no < v_items
        and (p_state is null or p_state = coalesce((
          select x.state from hwqueue.outcome x where x.lease_id = l.lease_id), 'running'))
      order by l.item_no limit p_limit);
  end if;
  return query
    select f.item_no, case when f.finished_at is null then 'running' else f.lease_state end, f.result,
      f.error, a.name, u.lease_id, f.lease_state, f.node_id, f.node_name, f.attempt, f.claimed_at,
      f.finished_at
    from unnest(v_page) u(lease_id)
    cross join lateral hwqueue.lease_place(u.lease_id) f
    left join lateral (  -- a fence (offset 0): by key, whatever the statistics say
      select x.name from hwqueue.added x
      where x.run_id = p_run.run_id and x.step_no = p_step and x.item_no = f.item_no offset 0) a on true
    order by f.item_no;
end
$$;
