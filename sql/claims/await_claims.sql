-- Claims that other sessions hold. Any login that may cancel can hold one for as long as its transaction
-- stays open, so a settlement waits for a bounded time only. The claim is busy after that, and is settled
-- later.

-- Whether nobody holds a row any more whose system column xmax this is: whoever locked it last has ended. A heartbeat that has committed leaves its
-- id there. The status, since a snapshot names no subtransactions, and a savepoint may hold the row. False, too, for what may be a multixact: it stands
-- for others; and for a row that this transaction has locked itself.
create or replace function hwqueue.is_let_go(p_xmax xid) returns boolean
language plpgsql volatile
as $$
declare
  v_now bigint := pg_current_xact_id()::text::bigint;
  -- how far back it is, below 0: given out later; not by age(), which counts from where this transaction asked first
  v_back bigint := ((v_now - p_xmax::text::bigint + 2147483648) & 4294967295) - 2147483648;
begin
  return case when mxid_age(p_xmax) > 0 then false
    else pg_xact_status(greatest(3, v_now - v_back)::text::xid8) is distinct from 'in progress' end;
end
$$;

-- Waits until nobody else holds these claims: for each at most p_wait, or lock_timeout where the session has
-- set one. Holds none of them afterwards: the caller tries again. False: another session still holds one.
-- Locks: the claims by lease_id, released before it returns.
create or replace function hwqueue.await_claims(p_leases uuid[], p_wait text, p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  if current_setting('lock_timeout') = '0' then
    perform set_config('lock_timeout', p_wait, true);  -- undone below, like the locks
  end if;
  perform 1 from hwqueue.claim c
  where c.shard_id = p_shard and c.lease_id = any (p_leases) order by c.lease_id for update;
  perform hwqueue.give_up();
exception
  when sqlstate 'HWX01' then
    return true;
  when lock_not_available or deadlock_detected then
    return false;
end
$$;

-- Those of these claims that others hold at the moment.
create or replace function hwqueue.held_claims(p_leases uuid[], p_shard int) returns uuid[]
language plpgsql volatile
as $$
begin
  return array(
    select c.lease_id from hwqueue.claim c
    where c.shard_id = p_shard and c.lease_id = any (p_leases)
      and c.xmax <> '0' and not hwqueue.is_let_go(c.xmax));
end
$$;

-- The sessions that hold these claims, as far as Postgres tells: by process id.
create or replace function hwqueue.claim_holders(p_leases uuid[], p_shard int) returns jsonb
language plpgsql volatile
as $$
begin
  return (
    select coalesce(jsonb_agg(distinct l.pid), '[]')
    from hwqueue.claim c join pg_locks l on l.locktype = 'transactionid' and l.transactionid = c.xmax and l.granted
    where c.shard_id = p_shard and c.lease_id = any (p_leases));
end
$$;

-- Waits for the claims of a node, and for the node itself, before it is registered or an
-- operator's command changes its claims, up to five seconds (or lock_timeout) each.
-- Locks: node_state, then its claims by lease_id, released before it returns. Raises: QHN06 when another
-- session still holds one.
create or replace function hwqueue.await_node(p_node uuid, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_leases uuid[];
begin
  begin
    if current_setting('lock_timeout') = '0' then
      perform set_config('lock_timeout', '5s', true);
    end if;
    perform 1 from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node for no key update;
    v_leases := array(select c.lease_id from hwqueue.claim c where c.shard_id = p_shard and c.node_id = p_node);
    perform 1 from hwqueue.claim c
    where c.shard_id = p_shard and c.lease_id = any (v_leases) order by c.lease_id for update;
    perform hwqueue.give_up();
  exception
    when sqlstate 'HWX01' then
      return;
    when lock_not_available or deadlock_detected then
      perform hwqueue.refuse('QHN06', format('node %s is busy: another session holds %s', p_node,
          case when v_leases is null then 'it' else 'one of its claims' end),
        jsonb_build_object('node_id', p_node, 'sessions', hwqueue.claim_holders(v_leases, p_shard)),
        'a transaction that was left open holds it, an unfinished cancel_lease, say: pg_stat_activity tells whose; '
        || 'then call again');
  end;
end
$$;
