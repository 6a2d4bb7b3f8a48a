-- Whether every lease can still end: all nodes come back and are open, they claim and complete whatever they get, and time
-- passes. Returns the leases that are open all the same; all of it is undone.
create schema walk;
create function walk.left_open(p_queue text, p_rounds int) returns table (lease_id uuid, state text) language plpgsql as $$
declare
  v_open text;
begin
  begin
    perform walk.run_dry(p_queue, p_rounds);
    v_open := (select coalesce(jsonb_agg(jsonb_build_object('lease_id', l.lease_id, 'state', hwqueue.lease_state(l.lease_id))), '[]')
               from hwqueue.lease l where not exists (select from hwqueue.outcome o where o.lease_id = l.lease_id));
    raise exception '%', v_open using errcode = 'WALK1';
  exception when sqlstate 'WALK1' then
    null;
  end;
  return query select o.lease_id, o.state from jsonb_to_recordset(v_open::jsonb) o(lease_id uuid, state text);
end
$$;

create function walk.run_dry(p_queue text, p_rounds int) returns void language plpgsql as $$
declare
  v_node record;
begin
  perform hwqueue.resume_queue(p_queue);
  -- what starts its leases again and again ends when it is stopped
  perform hwqueue.stop_everywhere(e.everywhere_id) from hwqueue.everywhere e where e.mode = 'always' and e.finished_at is null;
  for v_node in select n.node_id, n.operator_taints from hwqueue.node n where n.deregistered_at is null loop
    perform hwqueue.uncordon_node(v_node.node_id);
    perform hwqueue.untaint_node(v_node.node_id, t ->> 'key') from jsonb_array_elements(v_node.operator_taints) t;
  end loop;
  for v_round in 1..p_rounds loop
    for v_node in
      select s.node_id, s.node_epoch from hwqueue.node_state s join hwqueue.node n using (node_id)
      where n.deregistered_at is null
    loop
      perform hwqueue.heartbeat_node(v_node.node_id, v_node.node_epoch);
      perform hwqueue.claim_task(array[p_queue], v_node.node_id, v_node.node_epoch, 10);
    end loop;
    perform hwqueue.complete_lease(c.lease_id, c.claim_token) from hwqueue.claim c where c.is_reserved is not true;
    exit when not exists (select from hwqueue.lease l where not exists (select from hwqueue.outcome o where o.lease_id = l.lease_id));
    update hwqueue.test_clock set offset_by = offset_by + interval '20 s';
    perform hwqueue.reap();
    -- reap itself leaves these to a call whose transaction has no id yet
    perform hwqueue.reap_teams('{everywhere node,everywhere}', 100, '1 hour', m, hwqueue.clock()) from hwqueue.reap_cursor m;
    perform hwqueue.sweep_everywhere(now() + interval '1 hour', hwqueue.clock());
    perform hwqueue.reap_teams('{choice,gang change,gang earmark,gang,replacement}', 20, '1 hour', m, hwqueue.clock()) from hwqueue.reap_cursor m;
  end loop;
end
$$;
