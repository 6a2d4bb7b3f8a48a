-- Results of steps, for those who may read them.
--
-- step_results and run_input call readable_run. Example: the handler of "score" reads the result of "train".
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
