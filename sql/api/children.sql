-- Public: what the handler of a step adds to its step.
--
-- An example: "crawl" reads a site and adds an item for each page that it finds. What comes after crawl is
-- released when all these have ended. If the worker is killed the next attempt adds the same names again,
-- which changes nothing.
--
-- Invariant: what a claim adds is added while it holds the lease, and belongs to the step of that lease.
--
-- Read add_items. The work is done in workflows/added.

-- Adds items to the step whose lease the caller has claimed, and returns them with their numbers: the step
-- ends when its own lease and all its items have ended. p_items: [{"name", "task", "params"}], at most 10,000
-- a call. name: 1 to 200 characters, unique within the step; one that is there already is not added again.
-- task: that of the lease, unless it is given. They have the queue, placement and options of the step. A
-- step has 100,000 items at most. advance_workflows spawns them, within about a second.
-- In the caller's transaction it commits with what the caller has done there. It waits up to five seconds
-- (or lock_timeout) for another session that holds the claim, and for one that adds to the same step.
-- Locks: the claim; the step's row in map. Raises: QHL01, QHL02, QHL03, QHL04, QHL05, QHL08, QHL09, QHF06 for
-- a lease of no run, QHT01 for a name that has another content, QHF07, QHA01, QHA02. Idempotent.
create or replace function hwqueue.add_items(p_lease uuid, p_token bigint, p_items jsonb,
  p_shard int default 0)
returns table (name text, item int, created boolean, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_lease hwqueue.lease;
begin
  perform hwqueue.require_read_committed(), hwqueue.hold_claim(p_lease, p_token, true, p_shard);
  -- after the claim is held: another session may have added to its step
  v_lease := hwqueue.find_lease(p_lease, p_shard);
  if v_lease.run_id is null then
    perform hwqueue.refuse('QHF06', format('lease %s is no step of a run', p_lease),
      jsonb_build_object('lease_id', p_lease), 'spawn leases of their own with spawn_leases');
  end if;
  return query
    select a.name, a.item, a.created, p_shard from hwqueue.add_to_step(v_lease, p_items, p_shard) a;
end
$$;
