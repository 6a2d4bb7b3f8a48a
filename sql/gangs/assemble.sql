-- Assembling gangs: reserving room for the members that wait, on several nodes, in one transaction.
--
-- Example: a gang of four needs a GPU for each member. assemble_gang locks the four nodes, books a GPU on
-- each, and writes four claims that are reserved. The nodes fetch them with their next claims
-- (claim/reserved). If one node turns out to be too full, nothing is kept: the subtransaction is aborted, and
-- its locks go with it.
--
-- Invariant: at each commit a gang has room for as many members as it needs or for none. So two gangs never
-- hold a part each. All locks are taken with skip locked, so assembling waits for nobody.
--
-- Read assemble_gang, then reserve_members.

-- Reserves room for the members of a gang that wait: for all of them, else, by their ordinals, for as many as
-- it needs. Where it needs one it has started: then for half of them, and so on down to one. With
-- p_is_earmark for as many as it needs, in room that may still be in use; only without takes it its choice.
-- p_without: with p_is_earmark, only these claims are taken for room that is in use, and nodes that would
-- have room without them are tried first.
-- p_first: the place to try first, of those of its level; null: the tightest. Returns null when it has, else:
-- gang_incomplete: another session holds an entry of a member, or one that ran was just lost.
-- insufficient_capacity: no place has room for them.
-- busy: others hold nodes, lock stripes or the choice that it needs.
-- Locks: the caller holds the gang; entries, its choice, node_state, lock stripes and counters, all skip
-- locked. Wakes: waiting workers. Not idempotent.
create or replace function hwqueue.assemble_gang(p_gang hwqueue.gang, p_first text, p_is_earmark boolean,
  p_now timestamptz, p_without uuid[] default null) returns text
language plpgsql volatile
as $$
declare
  v_entries hwqueue.scheduled[] := array(
    select s from unnest(p_gang.members) with ordinality m(lease_id, ordinality)
    join hwqueue.scheduled s
      on (s.queue_id, s.available_at, s.lease_id) = (p_gang.queue_id, 'infinity', m.lease_id)
    order by m.ordinality for update of s skip locked);
  v_waiting int := cardinality(v_entries);
  v_needed int := hwqueue.members_needed(p_gang, v_waiting);
  v_count int := case when p_is_earmark then v_needed else v_waiting end;
  v_state text := case when p_is_earmark then 'earmarked' when p_gang.state = 'running' then 'running'
    else 'reserved' end;
  v_place record;
  v_reason text;
begin
  if v_waiting = 0 or v_waiting < (
      select count(*) from unnest(p_gang.members) m where hwqueue.lease_state(m) = 'scheduled')
    or p_gang.state = 'running' and exists (  -- look_at_gang goes first
      select from hwqueue.team_change c where c.team_id = p_gang.gang_id) then
    return 'gang_incomplete';
  end if;
  loop
    v_reason := 'insufficient_capacity';
    for v_place in
      -- on as many nodes as should do, then, if one is held by others or fuller than it seemed, on all
      select g.place, g.class_ids, case when i.is_all then g.node_ids else g.node_ids[: v_count] end as nodes
      from hwqueue.gang_places(array(select e.class_id from unnest(v_entries[: v_count]) e), p_gang.together,
        p_gang.same, p_gang.place, p_first, p_is_earmark, p_now, p_without) with ordinality g
      cross join (values (false), (true)) i(is_all)
      where not i.is_all or cardinality(g.node_ids) > v_count order by g.ordinality, i.is_all
    loop
      begin
        v_reason := case when not p_is_earmark
            and not hwqueue.take_choice(p_gang.choice_id, p_gang.gang_id) then 'busy'
          else hwqueue.reserve_members(p_gang, array(
              select v_entries[i] from generate_series(1, v_count) i
              order by array_position(v_place.class_ids, (v_entries[i]).class_id), i),
            v_place.nodes, p_is_earmark, p_now, p_without) end;
        exit when v_reason is null;
        perform hwqueue.abort_subtransaction();
      exception when sqlstate 'HWX01' then  -- what it has booked is undone, and its locks are released
      end;
    end loop;
    exit when v_reason is null or v_count = v_needed;
    v_count := case when v_needed > 1 then v_needed else v_count / 2 end;
  end loop;
  if v_reason is null then
    update hwqueue.gang g
    set state = v_state, reason = null, tries = 0, place = nullif(v_place.place, ''),
        missing = v_waiting - v_count
    where g.gang_id = p_gang.gang_id;
    if v_state <> p_gang.state then
      perform hwqueue.note_gang(p_gang, v_state);
    end if;
    perform hwqueue.wake_workers(q) from hwqueue.queue q
    where q.queue_id = p_gang.queue_id and not p_is_earmark;
  end if;
  return v_reason;
end
$$;

-- Locks nodes and reserves entries on them, one class after the other: each node takes as many as fit. With
-- p_is_earmark each node takes as many as fit now, then each those that would fit if nothing ran there, or
-- without p_without, if it is not null.
-- Returns null when all have room, else why not. What it has written until then is for the caller to undo.
-- Raises: 57014 when its time is up, before statement_timeout does.
-- Locks: node_state by node_id, claims of p_without, skip locked; as reserve.
create or replace function hwqueue.reserve_members(p_gang hwqueue.gang, p_entries hwqueue.scheduled[],
  p_node_ids uuid[], p_is_earmark boolean, p_now timestamptz, p_without uuid[]) returns text
language plpgsql volatile
as $$
declare
  v_locked uuid[] := array(
    select s.node_id from hwqueue.node_state s
    where s.node_id = any (p_node_ids) order by s.node_id for no key update skip locked);
  v_nodes uuid[] := array(
    select i.node_id from unnest(p_node_ids) with ordinality i(node_id, turn)
    where i.node_id = any (v_locked) order by i.turn);
  v_node uuid;
  v_entry hwqueue.scheduled;
  v_class_id bigint := 0;
  v_turns int := cardinality(v_nodes) * case when p_is_earmark then 2 else 1 end;
  v_turn int;  -- the node that the next member of the class is tried on; in the second round it may wait
  v_verdict text;
  v_reason text := case when cardinality(v_locked) < cardinality(p_node_ids) then 'busy'
    else 'insufficient_capacity' end;
begin
  foreach v_entry in array p_entries loop
    if hwqueue.is_time_up() then
      perform hwqueue.refuse('57014', format('it takes longer than a statement_timeout of %s leaves',
        current_setting('statement_timeout')), null, 'give the login that reaps a longer one');
    end if;
    if v_entry.class_id <> v_class_id then
      v_class_id := v_entry.class_id;
      v_turn := 1;
    end if;
    loop
      if v_turn > v_turns then
        return v_reason;
      end if;
      v_node := v_nodes[1 + (v_turn - 1) % cardinality(v_nodes)];
      v_verdict := hwqueue.reserve(v_entry, v_node, case when not p_is_earmark then p_gang.hold end,
        v_turn > cardinality(v_nodes),
        case when v_turn > cardinality(v_nodes) and p_without is not null then array(
            select c.lease_id from hwqueue.claim c
            where c.node_id = v_node and c.lease_id = any (p_without)
            order by c.lease_id for update skip locked) end, p_now);
      exit when v_verdict is null;
      v_turn := v_turn + 1;
      v_reason := case when v_verdict in ('insufficient_capacity', 'does_not_suit') then v_reason
        else v_verdict end;
    end loop;
  end loop;
  return null;
end
$$;

-- Stops the members of a gang that have claims: reservations end at once, workers of running ones are told
-- (verdict preempted), which uses up no attempt. What others hold, or is not reached in time, is left to a
-- later tick.
-- Locks: the caller holds the gang; node_state and claims, skip locked; as end_claim.
create or replace function hwqueue.stop_members(p_gang hwqueue.gang, p_now timestamptz) returns void
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_node_id uuid;
  v_leases uuid[];
begin
  for v_node_id in
    select distinct c.node_id from hwqueue.claim c
    where c.lease_id = any (p_gang.members) order by c.node_id
  loop
    if not hwqueue.lock_free_node(v_node_id) or hwqueue.is_time_up() then
      insert into hwqueue.team_change (team_id) values (p_gang.gang_id);
      exit when hwqueue.is_time_up();
      continue;
    end if;
    v_leases := '{}';
    for v_claim in
      select c.* from hwqueue.claim c
      where c.lease_id = any (p_gang.members) and c.node_id = v_node_id
      order by c.lease_id for update of c skip locked
    loop
      if v_claim.is_reserved then
        perform hwqueue.end_claim(v_claim, 'released', null, p_now, hwqueue.clock());
      else
        v_leases := v_leases || v_claim.lease_id;
      end if;
    end loop;
    perform hwqueue.ask_to_stop(v_node_id, v_leases, null, 'its gang does not run as a whole', p_now);
  end loop;
end
$$;
