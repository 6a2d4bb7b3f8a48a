-- Results of steps, for those who may read them.
--
-- step_results and run_input call readable_run, step_results of a map item_results. Example: the handler of
-- "score" reads the result of "train".
-- Its worker names the lease that it runs, which shows that it works for that run.

-- Returns a run that the caller may read. A login that may call get_workflow_run reads any, also where there
-- are no roles; a worker reads the run of a lease that it has claimed.
-- Raises: QHF03; QHL01 without such a claim, QHN04 for a claim of another login.
create or replace function hwqueue.readable_run(p_run uuid, p_lease uuid, p_shard int) returns hwqueue.run
language plpgsql stable
as $$
declare
  v_claim hwqueue.claim;
begin
  if has_function_privilege(session_user, 'hwqueue.get_workflow_run(uuid, int)', 'execute') then
    return hwqueue.find_run(p_run, p_shard);
  end if;
  select c.* into v_claim
  from hwqueue.claim c
  join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = c.lease_id and l.run_id = p_run
  where c.shard_id = p_shard and c.lease_id = p_lease;
  if not found then
    perform hwqueue.refuse('QHL01', format('lease %s is no claimed step of run %s',
        coalesce(p_lease::text, 'null'), coalesce(p_run::text, 'null')),
      jsonb_build_object('lease_id', p_lease, 'run_id', p_run),
      'a worker reads the run of a lease that it has claimed: name it in p_lease');
  end if;
  perform hwqueue.check_login(v_claim.node_id, v_claim.login, p_shard);
  return hwqueue.find_run(p_run, p_shard);
end
$$;

-- The items of a step behind p_after, p_limit at most: those that are spawned, or the elements of the list
-- that an operator declared to be its result.
create or replace function hwqueue.item_results(p_run uuid, p_step int, p_after int, p_limit int,
  p_shard int)
returns table (item int, state text, result jsonb, error jsonb, name text)
language plpgsql stable
as $$
declare
  v_declared jsonb := (
    select s.result from hwqueue.step s
    where s.shard_id = p_shard and s.run_id = p_run and s.step_no = p_step and s.reason = 'operator');
begin
  if jsonb_typeof(v_declared) = 'array' then
    return query
      select e.ordinality::int - 1, 'completed', nullif(e.value, 'null'), null::jsonb, null
      from jsonb_array_elements(v_declared) with ordinality e
      where e.ordinality - 1 > p_after order by e.ordinality limit p_limit;
  else
    return query
      select l.item_no, coalesce(o.state, 'running'), o.result, o.error, a.name
      from hwqueue.map m
      join hwqueue.lease l on l.run_id = p_run and l.step_no = p_step and l.item_no < m.items
        and l.item_no > p_after and l.shard_id = p_shard
      left join lateral (  -- a fence (offset 0): by key, whatever the statistics say
        select x.state, x.result, x.error from hwqueue.outcome x
        where x.shard_id = p_shard and x.lease_id = l.lease_id offset 0) o on true
      left join hwqueue.added_item a on a.shard_id = p_shard and a.run_id = p_run and a.step_no = p_step
        and a.item_no = l.item_no
      where m.shard_id = p_shard and m.run_id = p_run and m.step_no = p_step
      order by l.item_no limit p_limit;
  end if;
end
$$;
