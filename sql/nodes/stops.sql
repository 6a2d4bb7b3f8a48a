-- Asking claims of a node to stop, and since when a running claim breaks a requirement during execution.
--
-- Drains, revoked attestations and gangs ask at once (ask_to_stop). A no_execute taint and a requirement that
-- must hold as long as its leases run give a time instead, which passes only if neither heals before
-- (set_stops). An example: a lease requires zone in a, during execution, with 30 seconds of grace. At noon
-- its node registers with zone b. register_node calls recheck_claims, which notes in placement_check that
-- the requirement is broken since noon, and set_stops asks the claim to stop at 12:00:30. At 12:00:20 the
-- node is in zone a again, and the claim is not asked any more.
--
-- Invariant: a claim has one time to stop, the earliest of what its node's taints and its broken
-- requirements ask. A claim that has been asked stays asked.

-- Asks claims of a node to stop at once (verdict preempted at the next heartbeat), except those that have
-- been asked. p_for: what the event says besides; its reason is that of the claims, too. Locks: the caller
-- holds node_state and the claims. Notifies: the node's worker.
create or replace function hwqueue.ask_to_stop(p_node uuid, p_leases uuid[], p_by timestamptz, p_detail text,
  p_now timestamptz, p_for jsonb default '{}') returns void
language plpgsql volatile
as $$
declare
  v_asked uuid[];
  v_login text;
begin
  with asked as (
    update hwqueue.claim c
    set stop_requested_at = p_now, stop_reason = coalesce(p_for ->> 'reason', 'preempted'),
      stop_by = least(c.stop_by, p_by), stop_detail = p_detail
    where c.stop_reason is distinct from 'cancelled'  -- it may be, since p_now
      and c.lease_id = any (p_leases)
      and (c.stop_requested_at is null or c.stop_requested_at > p_now)
    returning c.lease_id, c.login
  )
  select array_agg(a.lease_id), max(a.login) into v_asked, v_login from asked a;
  if v_asked is not null then
    perform hwqueue.note_leases('claim_stop_requested', v_asked, 'asked to stop: ' || p_detail,
      jsonb_build_object('reason', 'preempted', 'stop_by', p_by) || p_for, p_node);
    perform hwqueue.wake_node(p_node, v_login);
  end if;
end
$$;

-- Cancels those of these leases that wait, and returns them: what lease_ended is told of them.
-- Locks: the entries, skip locked; as lease_ended. Idempotent.
create or replace function hwqueue.cancel_waiting(p_leases uuid[], p_error jsonb, p_message text,
  p_detail jsonb default null, p_follows boolean default false) returns uuid[]
language plpgsql volatile
as $$
declare
  v_taken uuid[] := array(select e.lease_id from hwqueue.take_free_entries(p_leases) e);
begin
  if v_taken <> '{}' then
    perform hwqueue.lease_ended(v_taken, 'cancelled', p_error, p_message, p_detail, p_follows => p_follows);
  end if;
  return v_taken;
end
$$;

-- Asks claims that the caller holds to stop, because their leases are cancelled, and wakes their nodes.
-- p_why is kept with the claims; the others are what the event says. Not idempotent.
create or replace function hwqueue.cancel_claims(p_leases uuid[], p_why text, p_message text,
  p_detail jsonb default '{"reason": "cancelled"}', p_node uuid default null) returns void
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  update hwqueue.claim c
  set stop_requested_at = least(c.stop_requested_at, v_now), stop_reason = 'cancelled',
    stop_detail = p_why, expires_at = least(c.expires_at, v_now + c.claim_timeout),
    check_at = least(c.check_at, v_now + c.claim_timeout)
  where c.lease_id = any (p_leases);
  perform hwqueue.note_leases('claim_stop_requested', p_leases, 'asked to stop: ' || p_message, p_detail,
    p_node);
  perform hwqueue.wake_node(c.node_id, c.login) from hwqueue.claim c
  where c.lease_id = any (p_leases) group by c.node_id, c.login;
end
$$;

-- Locks the claims of a node, and returns their lease ids.
-- Locks: the caller holds node_state; the claims by lease_id.
create or replace function hwqueue.lock_claims(p_node uuid) returns uuid[]
language plpgsql volatile
as $$ begin return
  array(select c.lease_id from hwqueue.claim c where c.node_id = p_node order by c.lease_id for update);
end $$;

-- Sets when claims of a node have to stop, for its no_execute taints and for the requirements that are noted
-- as broken: at once, or when the seconds of a toleration or the grace of a requirement are over. Where a
-- stop is withdrawn before its time, the claim is not asked any more. Claims that have been asked, for
-- whatever reason, stay asked.
-- Locks: the caller holds node_state and the claims.
create or replace function hwqueue.set_stops(p_node hwqueue.node, p_leases uuid[], p_now timestamptz)
returns void
language sql volatile
as $$
  with asked as (
    update hwqueue.claim c
    set stop_requested_at = w.stop_at, stop_by = w.stop_at, stop_reason = w.reason, stop_detail = w.detail
    from (
      select r.lease_id, greatest(f.stop_at, case when f.stop_at is not null then p_now end) as stop_at,
             f.reason, f.detail
      from hwqueue.claim r
      join hwqueue.placement_class k on k.class_id = r.class_id
      left join hwqueue.placement_check x on x.lease_id = r.lease_id
        and x.claim_no = hwqueue.claim_no(r.claim_token)
      left join lateral (
        select t.stop_at, 'preempted' as reason, 'taint ' || hwqueue.taint_text(t.taint) as detail
        from hwqueue.first_stop_at(hwqueue.taints_for(p_node.taints || p_node.operator_taints, k.tenant),
          k.tolerate, r.claimed_at) t
        where t.stop_at is not null
        union all
        select b.stop_at, 'placement_broken', b.detail
        from (  -- the first of the requirements that are noted as broken
          select (o.value ->> 'since')::timestamptz
                   + make_interval(secs => coalesce((e.expr ->> 'grace')::double precision, 0)) as stop_at,
                 format('requirement "%s" does not hold any more (%s)',
                   hwqueue.requirement_text(e.expr), o.value ->> 'code') as detail
          from jsonb_array_elements(coalesce(x.broken, '[]')) o
          cross join lateral (select k.required -> (o.value ->> 'at')::int as expr) e
          order by 1, o.value -> 'at' limit 1) b
        where b.stop_at is not null
        order by stop_at, reason desc limit 1) f on true where r.lease_id = any (p_leases)
    ) w
    where c.lease_id = w.lease_id and (c.stop_requested_at is null or c.stop_requested_at > p_now)
      and c.stop_reason is distinct from 'cancelled'  -- as in ask_to_stop
      and (c.stop_requested_at is distinct from w.stop_at or c.stop_detail is distinct from w.detail)
    returning c.lease_id, c.stop_requested_at, c.stop_reason, c.stop_detail
  )
  select hwqueue.note_leases('claim_stop_requested', array_agg(a.lease_id),
         'asked to stop: ' || a.stop_detail,
    jsonb_build_object('reason', a.stop_reason, 'stop_by', a.stop_requested_at), p_node.node_id)
  from asked a where a.stop_requested_at is not null
  group by a.stop_requested_at, a.stop_reason, a.stop_detail
$$;

-- Judges claims of a node by their requirements during execution again: notes which are broken since when,
-- and sets when the claims have to stop. The youngest claims come first, and each is judged beside those that
-- have not been asked to stop before it: of two that must not be together, one may stay.
-- Locks: the caller holds node_state and the claims; placement_check. Notifies: the node's worker.
create or replace function hwqueue.recheck_claims(p_node uuid, p_leases uuid[], p_now timestamptz)
returns void
language plpgsql volatile
as $$
declare
  v_node hwqueue.node := hwqueue.read_node(p_node);
  v_claim hwqueue.claim;
  v_class hwqueue.placement_class;
  v_check hwqueue.placement_check;
  v_broken jsonb;
begin
  for v_claim in
    select c.* from hwqueue.claim c
    where c.lease_id = any (p_leases) and c.node_id = p_node
      and (c.stop_requested_at is null or c.stop_requested_at > p_now)
    order by c.claimed_at desc, c.lease_id desc
  loop
    select k.* into v_check from hwqueue.placement_check k
    where k.lease_id = v_claim.lease_id and k.claim_no = hwqueue.claim_no(v_claim.claim_token);
    continue when not found;
    select c.* into v_class from hwqueue.placement_class c where c.class_id = v_claim.class_id;
    v_broken := hwqueue.broken_requirements(v_class, v_claim, v_node, v_check.broken, p_now);
    if v_broken <> v_check.broken then
      update hwqueue.placement_check k set broken = v_broken
      where k.lease_id = v_check.lease_id and k.claim_no = v_check.claim_no;
      perform hwqueue.set_stops(v_node, array[v_claim.lease_id], p_now);
    end if;
  end loop;
  perform hwqueue.wake_node(p_node, max(c.login)) from hwqueue.claim c
  where c.lease_id = any (p_leases) and c.stop_requested_at = p_now;
end
$$;
