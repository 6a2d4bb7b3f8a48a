-- How much work each tenant has open, and how much it may have.
--
-- reap calls count_tenant_work about every ten seconds, begin_run calls check_tenant_work. Example: a tenant
-- submits runs of 5,000 steps each. Once it has 200,000 open steps, its next submission is refused.
--
-- Invariant: nobody waits for a count. So it is off by what was submitted since the last count, and by what
-- sessions submit at the same time.
--
-- Read check_tenant_work.

-- Refuses steps, or a nested run, of a tenant that has too many open: 200,000 steps and 20,000 nested runs;
-- runs without a tenant ten times as many. Adds what is admitted to the tenant's row, if it has one.
-- Locks: the row, skip locked. Raises: QHT03.
create or replace function hwqueue.check_tenant_work(p_run hwqueue.run, p_steps int, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_work hwqueue.tenant_work;
  v_times int := case when p_run.tenant = '' then 10 else 1 end;
  v_nested int := (p_run.parent_run_id is not null)::int;
begin
  select w.* into v_work from hwqueue.tenant_work w where w.shard_id = p_shard and w.tenant = p_run.tenant;
  if not found then
    return;
  elsif v_work.steps + p_steps > 200000 * v_times then
    perform hwqueue.refuse_more('open steps', v_work.steps, 200000 * v_times, p_run.tenant,
      'submit more when some have ended, or cancel runs: hwqueue run cancel');
  elsif v_nested * v_work.nested >= 20000 * v_times then
    perform hwqueue.refuse_more('open nested runs', v_work.nested, 20000 * v_times, p_run.tenant,
      'start more when some have ended, or put their steps into one workflow');
  end if;
  update hwqueue.tenant_work w set steps = w.steps + p_steps, nested = w.nested + v_nested
  where w.shard_id = p_shard and w.tenant = (
    select x.tenant from hwqueue.tenant_work x
    where x.shard_id = p_shard and x.tenant = p_run.tenant for no key update skip locked);
end
$$;

-- Counts open steps and nested runs of each tenant again. Those with less than a thousand have no row.
-- Locks: rows of tenant_work, skip locked.
create or replace function hwqueue.count_tenant_work(p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_free text[] := array(
    select w.tenant from hwqueue.tenant_work w where w.shard_id = p_shard for update skip locked);
begin
  with open as materialized (
    select r.tenant, sum(t.need - t.arrived) as steps, count(r.parent_run_id) as nested
    from hwqueue.run r
    join hwqueue.tally t on t.shard_id = p_shard and t.run_id = r.run_id and t.step_no = 0 and t.part = 0
    where r.shard_id = p_shard and r.finished_at is null
    group by r.tenant having greatest(sum(t.need - t.arrived), count(r.parent_run_id)) >= 1000
  ), gone as (
    delete from hwqueue.tenant_work w
    where w.shard_id = p_shard and w.tenant = any (v_free) and w.tenant not in (select o.tenant from open o)
  )
  insert into hwqueue.tenant_work as w (shard_id, tenant, steps, nested, counted_at)
  select p_shard, o.tenant, o.steps, o.nested, p_now from open o
  where o.tenant = any (v_free) or o.tenant not in (
    select x.tenant from hwqueue.tenant_work x where x.shard_id = p_shard)
  on conflict (shard_id, tenant) do update
  set steps = excluded.steps, nested = excluded.nested, counted_at = excluded.counted_at;
end
$$;
