-- Public: what the handler of a step adds to its step.
--
-- An example: "crawl" reads a site and adds an item for each page that it finds. What comes after crawl is
-- released when all these have ended. If the worker is killed the next attempt adds the same names again,
-- which changes nothing.
--
-- Invariant: what a claim adds is added while it holds the lease, and belongs to the step of that lease.
--
-- Read add_items and add_steps. The work is done in workflows/added and workflows/nested.

-- Adds items to the step whose lease the caller has claimed, and returns them with their numbers: the step
-- ends when its own lease and all its items have ended. p_items: [{"name", "task", "params"}], at most 10,000
-- a call. name: 1 to 200 characters, unique within the step; one that is there already is not added again.
-- task: that of the lease, unless it is given. They have the queue, placement and options of the step. A
-- step has 100,000 items at most. advance_workflows spawns them, within about a second.
-- In the caller's transaction it commits with what the caller has done there. It waits up to five seconds
-- (or lock_timeout) for another session that holds the claim, and for one that adds to the same step.
-- Locks: the claim; the step's row in map. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09, QHF06 for
-- a lease of no run, QHF02 for a member of a gang, QHT01 for a name that has another content, QHF07, QHA01,
-- QHA02. Idempotent.
create or replace function hwqueue.add_items(p_lease uuid, p_token bigint, p_items jsonb)
returns table (name text, item int, created boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_lease hwqueue.lease := hwqueue.hold_step(p_lease, p_token);
begin
  return query select a.name, a.item, a.created from hwqueue.add_to_step(v_lease, p_items) a;
end
$$;

-- Adds steps to the step whose lease the caller has claimed, and returns the run that they are: the step ends
-- when its own lease and all that was added to it have ended. p_spec: a specification, as for submit_spec.
-- Its name is unique within the step; one that is there already is not added again. The run is nested in that
-- of the lease: it has its input, tenant, headers, priority and deadline, and its steps must meet its
-- placement, too. queue: that of the lease, unless it is given. A step has 1,000 such runs at most.
-- In the caller's transaction it commits with what the caller has done there. It waits as add_items does.
-- Locks: as add_items; new rows. Raises: as add_items and submit_spec; QHF04 when the run of the lease stops.
-- Idempotent. Wakes: waiting workers.
create or replace function hwqueue.add_steps(p_lease uuid, p_token bigint, p_spec jsonb)
returns table (run_id uuid, created boolean, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_added record;
begin
  v_added := hwqueue.add_run(hwqueue.hold_step(p_lease, p_token), p_spec);
  return query
    select r.run_id, v_added.created, r.state from hwqueue.run r where r.run_id = v_added.run_id;
end
$$;
