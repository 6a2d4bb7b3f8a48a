-- Removes finished leases whose queue keeps them no longer, classes that no lease refers to, nodes long deregistered, profiles
-- that no node has, what dropped queues left, minutes older than a day, what is remembered of the fleet for nobody, events of days that are over since as many days as set_event_retention said.
-- p_event_days has no effect: who may prune may not choose what is kept of what it did.
-- Bounded: about p_limit of each a call. Classes and profiles are looked at in turn, p_limit a call, so all of them have had their turn
-- after as many calls as that takes.
-- p_unless_within: do nothing if somebody pruned less than that ago, so that any number of workers can call it.
-- more: there may be more to remove now, call again.
-- Locks: its mark; lease, class, node, profile, queue and term rows, the shard's: all skip locked; at last, once a day, the oldest partition of
-- event, for which it waits a tenth of a second. Raises: QHA01, QHA02. Idempotent: yes.
-- Plans are made once, for any arguments, and by index: a table that is small now is large before the session ends.
create or replace function hwqueue.prune(p_limit int default 10000, p_unless_within interval default '0', p_event_days int default 14,
                                         p_shard int default 0)
returns table (leases int, classes int, nodes int, more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz;
  v_turn record;
  v_purged int;
  v_terms int;
begin
  perform hwqueue.require_read_committed();
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000000, 'call again for more');
  perform hwqueue.check_range(p_event_days, 'p_event_days', 1, 14,
    'leave it out: it has no effect, set_event_retention says how long events are kept');
  if p_unless_within is null or p_unless_within not between '0' and interval '1 day' then
    perform hwqueue.refuse('QHA01', format('p_unless_within must be from 0 to one day, got %s', coalesce(p_unless_within::text, 'null')),
      jsonb_build_object('field', 'p_unless_within'), 'give a span such as interval ''1 minute''');
  end if;
  leases := 0;
  classes := 0;
  nodes := 0;
  more := false;
  if not hwqueue.pruned_within(p_unless_within, hwqueue.clock(), p_shard) then
    perform hwqueue.stamp_retired(p_limit, p_shard);  -- before anything is locked or written
    v_now := hwqueue.clock();
    select t.* into v_turn from hwqueue.take_prune_turn(p_unless_within, v_now, p_shard) t;
    if v_turn.goes then
      leases := hwqueue.prune_leases(p_limit, v_now, p_shard);
      classes := hwqueue.prune_classes(p_limit, p_shard);
      nodes := hwqueue.prune_nodes(p_limit, v_now, p_shard);
      perform hwqueue.prune_unused(v_turn.mark, p_limit, v_now, p_shard);
      v_purged := hwqueue.purge_queues(p_limit, p_shard);
      v_terms := hwqueue.prune_terms(p_limit, p_shard);
      perform hwqueue.prune_fleets(p_limit, v_now, p_shard);
      perform hwqueue.prune_minutes(p_limit, v_now, p_shard), hwqueue.prune_events(v_now, p_shard);  -- last: readers wait for its lock
      more := p_limit in (leases, v_terms) or v_purged >= p_limit or classes > 0 or nodes > 0;
    end if;
  end if;
  return next;
end
$$;
