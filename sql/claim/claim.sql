-- The general claim: n leases, several queues, nodes with limits, classes that score differently.
--
-- claim_task and settle_and_claim (api/claims) call claim_general for what claim_at_head (claim/head) has not
-- granted. An example: cpu-1, a node without limits, asks for four leases of two
-- queues. The claim promotes what fell due, finds the best score group, locks its four oldest entries
-- and grants them in one statement (grant_entries). A node with limits is granted one lease after the other,
-- because each grant changes what fits next; one without devices, of the only class at its head, as many at
-- once as fit (fit_at_head).
--
-- sql/README.md says what the first words of names mean.
--
-- Invariant: an entry leaves `ready` before its claim is written, in the same transaction. A claim waits
-- for its own node's row only, never for an entry.

-- Grants as many leases as are asked for: in batches of one score, or one by one where the node has
-- limits. p_state: the node's row, locked by the caller. p_queue_head: the head of the only queue, if the
-- caller has read it. p_moves, p_drawn: whether this claim advances low-water marks, and the last
-- position drawn before this transaction had an id.
-- A node with reservations is granted these first, and alone (claim_reserved). An earmark waits for a place
-- of the worker as it waits for a device. A node that has just registered is granted nothing else before
-- everywhere tasks have booked their room (expands_until).
-- When nothing is found it promotes what fell due, unless this claim has done so, and tries again.
-- Locks and raises as claim_task. Not idempotent.
create or replace function hwqueue.claim_general(p_request hwqueue.claim_request,
  p_state hwqueue.node_state, p_queue_head hwqueue.queue_head, p_moves boolean, p_drawn bigint)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb)
language plpgsql volatile
as $$
declare
  v_generation bigint;
  v_queue_head hwqueue.queue_head := p_queue_head;  -- null: of several queues
  v_promoted int;  -- leases that fell due and were made ready; null: the session has looked just now
  v_is_open boolean := false;  -- beyond what claim_at_head has read
  v_node hwqueue.node;
  v_load hwqueue.node_load;
  v_room hwqueue.headroom;
  v_left int;
  v_tried record;
  v_picked hwqueue.picked_entries;
  v_count int;
  v_mover hwqueue.ready;  -- a random one of those granted, so each class has its turn
  v_class hwqueue.placement_class;
  v_taken record;
  v_assignment jsonb;
begin
  if (p_state.node_epoch = p_request.node_epoch and p_state.login = session_user) is not true then
    perform hwqueue.lock_node(p_request.node_id, coalesce(p_request.node_epoch, 0));  -- says why
  end if;
  if p_state.has_reserved then
    return query select r.* from hwqueue.claim_reserved(p_request, p_state) r;
    p_request.qty := case when not found and (p_state.expands_until > hwqueue.clock()) is not true then (
      select case when bool_or(c.is_earmark) then least(p_request.qty, min(n.concurrency) - count(*)::int)
        else p_request.qty end
      from hwqueue.claim c join hwqueue.node n using (node_id) where c.node_id = p_request.node_id) end;
    if (p_request.qty > 0) is not true then
      return;
    end if;
  end if;
  v_left := p_request.qty;
  v_generation := case
    when hwqueue.is_this_life(p_state.server_started_at, p_state.recovered_to, p_state.storage_path)
    then p_state.generation else hwqueue.current_generation(p_request.node_id) end;
  p_request.now := hwqueue.clock();
  if p_queue_head.is_tried and v_left > 1 and not p_state.has_limits then
    v_picked.ctids := hwqueue.lock_at_head(p_queue_head, v_left, p_request.now);
  elsif p_queue_head.is_tried and v_left > 1 and cardinality(p_queue_head.classes) = 1 then
    v_taken := hwqueue.fit_at_head(p_state.node_id, p_queue_head.classes[1], v_left);
    v_picked.ctids := hwqueue.lock_at_head(p_queue_head, coalesce(v_taken.fitting, 0), p_request.now);
    v_assignment := v_taken.assignment;
  end if;
  loop
    v_count := coalesce(cardinality(v_picked.ctids), 0);
    if v_count > 0 then
      if p_moves and random() * (v_count + p_request.qty - v_left) < v_count then
        select r.* into v_mover from hwqueue.ready r
        where r.ctid = (select v_picked.ctids[1 + floor(random() * v_count)::int]);
      end if;
      if v_is_open and p_state.has_limits then
        select c.* into v_class from hwqueue.placement_class c
        where c.class_id = (
          select r.class_id from hwqueue.ready r where r.ctid = v_picked.ctids[1]);
        v_taken := hwqueue.allocate_for_class(v_class, v_node, v_room, v_load);
        v_load := v_taken.p_load;
        v_assignment := v_taken.assignment;
      elsif v_assignment is not null then
        perform hwqueue.book_room(p_state.node_id, v_assignment, v_count);
      end if;
      return query
        select g.* from hwqueue.grant_entries(p_request, v_picked, p_state,
          case when v_is_open then v_queue_head else p_queue_head end, v_generation, v_assignment) g;
      v_left := v_left - v_count;
    elsif v_is_open then
      exit when v_promoted is not null;
      v_promoted := hwqueue.promote_due(p_request.queue_ids, v_left + 20, p_request.folds, p_request.now);
      exit when v_promoted = 0;
      v_picked.on_fast_path := v_queue_head.queue_id <> all (p_state.pinned_queues);
    end if;
    exit when v_left = 0;
    if not v_is_open then
      v_promoted := hwqueue.promote_last(p_state, p_queue_head, v_left + 20, p_request.now);
      exit when v_promoted = 0;
      v_is_open := true;
      p_state.awaits_terms := p_state.awaits_terms
        and hwqueue.take_publish_step(p_request.node_id, p_request.now);
      if cardinality(p_request.queues) > 1 or not p_state.on_fast_path then
        v_queue_head := null;
      elsif v_queue_head.first_is_best is null then  -- not read yet, or by read_past_blocked, in vain
        select q.* into v_queue_head
        from hwqueue.read_queue_head(p_request.queues[1], p_state.profile_id, p_state.classes_seen,
          p_state.classes_unseen, false) q;
      end if;
      p_request := hwqueue.open_queues(p_request, v_queue_head);
      v_promoted := coalesce(v_promoted, hwqueue.promote_if_due(p_request.queues, p_request.queue_ids,
        p_request.qty + 20, p_request.folds, p_request.now));
      v_picked.on_fast_path := v_queue_head.queue_id <> all (p_state.pinned_queues);
      if p_state.has_limits then
        v_node := hwqueue.read_node(p_state.node_id);
        v_load := hwqueue.read_load(p_state.node_id);
      end if;
    end if;
    v_room := case when p_state.has_limits then hwqueue.node_headroom(v_node, v_load) end;
    v_tried := hwqueue.choose_in_queue(p_request, p_state, v_queue_head, v_room, v_left, v_promoted,
      v_picked.on_fast_path);
    v_picked := v_tried.picked;
    if v_picked.ctids = '{}' then
      v_picked := hwqueue.choose_by_score(p_request, p_state, v_room,
        case when p_state.has_limits then 1 else v_left end, v_tried.blocked, v_tried.is_new);
    end if;
  end loop;
  if v_load.node_id is not null and v_left < p_request.qty then
    perform hwqueue.write_load(v_load);
  end if;
  -- marks move by what was granted, not by what was asked for
  p_moves := p_moves
    and hwqueue.should_advance_low_water(32 * (p_request.qty - v_left) / least(p_request.qty, 32));
  if v_left = p_request.qty or p_moves
     or p_request.now - p_state.seen_at > p_state.heartbeat_timeout / 8 then
    perform hwqueue.after_claim(p_state, coalesce(p_request.queue_ids, p_queue_head.queue_ids), v_mover,
      v_left < p_request.qty, p_moves, p_drawn, p_request.now);
  end if;
end
$$;

-- Grants what a node has reserved. Where there is none, leases that come before what is earmarked there by
-- tier and rank, one by one, as if those earmarks were not there. The load of the node counts both meanwhile.
-- Locks: the caller holds node_state; as fetch_reserved and choose_by_score; the earmarks that it passes,
-- skip locked. Raises: QHQ01, QHN01. Not idempotent.
create or replace function hwqueue.claim_reserved(p_request hwqueue.claim_request, p_state hwqueue.node_state)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb)
language plpgsql volatile
as $$
declare
  v_before hwqueue.later_class;
  v_node hwqueue.node;
  v_passed uuid[];
  v_kept jsonb[];
  v_load hwqueue.node_load;
  v_left int;
  v_room hwqueue.headroom;
  v_picked hwqueue.picked_entries;
  v_class hwqueue.placement_class;
  v_taken record;
  v_generation bigint;
begin
  return query select f.* from hwqueue.fetch_reserved(p_request) f;
  if found or p_state.expands_until > hwqueue.clock() then
    return;
  end if;
  for v_before in
    select distinct 0, o.tier, o.rank from hwqueue.claim c
    cross join lateral hwqueue.earmark_order(c.lease_id) o
    where c.node_id = p_state.node_id and c.is_earmark order by o.tier, o.rank
  loop
    v_node := hwqueue.read_node(p_state.node_id);
    v_passed := hwqueue.later_earmarks(p_state.node_id, v_before.tier, v_before.rank);
    v_kept := hwqueue.booked_on(p_state.node_id, v_passed);
    v_load := hwqueue.add_uses(hwqueue.read_load(p_state.node_id), v_node, v_kept, -1);
    p_request.now := hwqueue.clock();
    p_request := hwqueue.open_queues(p_request, null);
    v_left := least(p_request.qty, v_node.concurrency - (
      select count(*)::int from hwqueue.claim c
      where c.node_id = p_state.node_id and c.lease_id <> all (v_passed)));
    while v_left > 0 loop
      v_room := hwqueue.node_headroom(v_node, v_load);
      begin
        v_picked := hwqueue.choose_by_score(p_request, p_state, v_room, 1, '{}', false, v_before);
        if v_picked.ctids <> '{}' and cardinality(v_passed) > cardinality(array(
            select c.lease_id from hwqueue.claim c
            where c.lease_id = any (v_passed) and c.is_earmark for update skip locked)) then
          perform hwqueue.abort_subtransaction();
        end if;
      exception when sqlstate 'HWX01' then  -- upkeep backs one of them
        v_picked.ctids := '{}';
      end;
      exit when v_picked.ctids = '{}';
      select c.* into v_class from hwqueue.placement_class c
      where c.class_id = (
        select r.class_id from hwqueue.ready r where r.ctid = v_picked.ctids[1]);
      v_taken := hwqueue.allocate_for_class(v_class, v_node, v_room, v_load);
      v_left := v_left - 1;
      v_load := v_taken.p_load;
      v_generation := coalesce(v_generation, hwqueue.current_generation(p_state.node_id));
      return query
        select g.* from hwqueue.grant_entries(p_request, v_picked, p_state, null, v_generation,
          v_taken.assignment) g;
    end loop;
    if v_class.class_id is not null then
      perform hwqueue.write_load(hwqueue.add_uses(v_load, v_node, v_kept, 1));
      return;
    end if;
  end loop;
end
$$;

-- Locks the entries at the head of the only queue that the claim grants next: picked.ctids, best first, of
-- one score; {}: nothing could be had there, or it has no single queue. p_left: how many leases are not
-- granted yet. p_promoted: what fell due was made ready, so what was read of the queue is out of date.
-- p_on_fast_path: false once nothing could be had there, so that the claim does not try there again.
-- blocked, is_new: as choose_at_head says.
-- Locks as choose_at_head. Not idempotent.
create or replace function hwqueue.choose_in_queue(p_request hwqueue.claim_request,
  p_state hwqueue.node_state, p_queue_head hwqueue.queue_head, p_room hwqueue.headroom, p_left int,
  p_promoted int, p_on_fast_path boolean, out picked hwqueue.picked_entries, out blocked bigint[],
  out is_new boolean)
language plpgsql volatile
as $$
declare
  v_limit int := case when p_state.has_limits then 1 else p_left end;  -- each grant changes what fits
  v_queue_head hwqueue.queue_head := case
    when p_left = p_request.qty and coalesce(p_promoted, 0) = 0 then p_queue_head end;
  v_has_tried boolean := coalesce(v_queue_head.is_tried and not p_state.has_limits, false);
  v_eligible hwqueue.profile_queue;
  v_taken record;
begin
  picked := row('{}', 0, null, p_on_fast_path)::hwqueue.picked_entries;
  blocked := '{}';
  is_new := false;
  if v_has_tried and cardinality(p_queue_head.classes) <= 64 then
    -- as lock_in_window goes on when it finds nothing
    picked.ctids := hwqueue.lock_class_heads(p_queue_head.classes, p_queue_head.queue_id, 0::smallint,
      p_queue_head.rank, p_queue_head.position, v_limit, p_request.now);
    return;
  elsif p_on_fast_path is not true or p_queue_head.queue_id is null then
    return;
  elsif v_queue_head.first_is_best then  -- read with the head
    v_eligible.profile_id := p_state.profile_id;
    v_eligible.queue_id := p_queue_head.queue_id;
    v_eligible.classes := p_queue_head.classes;
    v_eligible.task_names := p_queue_head.task_names;
    v_eligible.most_cpu_milli := p_queue_head.most_cpu_milli;
    v_eligible.most_memory_mib := p_queue_head.most_memory_mib;
    v_eligible.scores_equal := true;
    v_eligible.checked := p_queue_head.checked;
  else
    select s.* into v_eligible from hwqueue.profile_queue s
    where s.profile_id = p_state.profile_id and s.queue_id = p_request.queue_ids[1];
  end if;
  if v_eligible.checked is not null then
    v_queue_head.is_tried := v_has_tried;
    v_taken := hwqueue.choose_at_head(p_request, v_eligible, p_state, v_queue_head, p_queue_head.window_size,
      p_room, v_limit);
    picked := row(v_taken.ctids, 0, v_taken.term_deltas, true)::hwqueue.picked_entries;
    blocked := v_taken.blocked;
    is_new := v_taken.is_new;
    if picked.ctids <> '{}' and (v_taken.meets or p_state.met_blocked and not v_taken.meets) then
      perform hwqueue.note_blocked(p_state, v_taken.meets, false);
    end if;
  end if;
end
$$;

-- Locks the best entries of all classes that the node may run, up to p_limit of one score. No ctids: there
-- are none.
-- p_without: classes that this claim has found blocked. p_is_new: one of them waits for the publication
-- of an affinity term. p_before: those before its tier and rank.
-- A new profile has not judged all classes yet: while nothing is found, up to eight batches are judged.
-- Locks: the profile row and the entries, skip locked; those of decide_class and publish_terms. Raises QHN01
-- for a deregistered node.
create or replace function hwqueue.choose_by_score(p_request hwqueue.claim_request,
  p_state hwqueue.node_state, p_room hwqueue.headroom, p_limit int, p_without bigint[], p_is_new boolean,
  p_before hwqueue.later_class default null)
returns hwqueue.picked_entries
language plpgsql volatile
as $$
declare
  v_now timestamptz := p_request.now;
  v_picked hwqueue.picked_entries;
  v_node hwqueue.node := hwqueue.claiming_node(p_state, v_now);
  v_room hwqueue.headroom := case when p_state.has_limits then p_room
    else hwqueue.node_headroom(v_node, null) end;
  v_without bigint[] := p_without;
  v_asks boolean := p_without <> '{}';
  v_judged record;
  v_open record;
  v_only bigint[];
  v_met boolean := false;
  v_fit hwqueue.scored_classes;
  v_window int;
  v_probe int;
  v_is_short boolean;  -- some class of a list that is truncated asks for more than the node has left
  v_taken record;
  v_is_new boolean := p_is_new;
  v_awaits boolean := false;
  v_step record;
  v_goes_on boolean;
begin
  v_picked.ctids := '{}';
  v_picked.on_fast_path := false;
  if v_node.cordoned_at is not null or p_request.queue_ids = '{}' then
    return v_picked;
  end if;
  select max((q.tuning).window_size), max((q.tuning).probe_size), coalesce(bool_or((
           select s.most_cpu_milli > v_room.cpu_milli or s.most_memory_mib > v_room.memory_mib
           from hwqueue.profile_queue s
           where s.profile_id = p_state.profile_id and s.queue_id = q.queue_id
             and p_state.on_fast_path and p_state.has_limits and cardinality(s.classes) > 200)), false)
  into v_window, v_probe, v_is_short
  from hwqueue.queue q where q.queue_id = any (p_request.queue_ids);
  for v_batch in 1 .. 8 loop
    v_judged := hwqueue.judge_classes(v_node, p_state);
    if p_state.met_blocked then  -- blocked classes need no score
      v_open := hwqueue.claim_candidates(p_state, p_request.queue_ids, v_room, v_now);
      v_only := v_open.classes;
      v_without := v_without || v_open.blocked;
      v_met := v_open.met is distinct from '{}';
    end if;
    v_fit := hwqueue.fitting_classes(p_request, v_node, v_room, v_only, v_judged.extra, v_without);
    if v_fit.checked = '{}' and v_fit.classes <> '{}' then
      v_taken := hwqueue.choose_from_groups(p_request, v_fit, v_node,
        hwqueue.queue_scan_starts(p_request.queue_ids, cardinality(v_fit.classes)), p_before,
        p_limit, v_window, v_probe);
      v_picked.ctids := v_taken.ctids;
      v_picked.score := v_taken.score;
    elsif v_fit.checked <> '{}' then
      v_taken := hwqueue.choose_checked(p_request, v_fit, v_node, v_asks, p_limit, v_window, v_probe,
        p_before);
      v_picked.ctids := v_taken.ctids;
      v_picked.score := v_taken.score;
      v_picked.term_deltas := v_taken.term_deltas;
      v_without := v_without || v_taken.blocked;
      v_asks := true;
      v_is_new := v_is_new or v_taken.is_new;
    end if;
    v_goes_on := v_judged.more;
    v_awaits := v_awaits or v_judged.awaits;
    v_is_new := v_is_new or v_awaits and not p_state.awaits_terms;
    if v_is_new then
      v_step := hwqueue.publish_while_holding(v_picked, v_now);
      v_picked := v_step.picked;
      v_goes_on := v_goes_on or v_step.published > 0 or v_step.some_moved;
      v_without := case when v_step.published > 0 then '{}' else v_without end;
      v_is_new := false;
    end if;
    exit when v_picked.ctids <> '{}' or not v_goes_on;
  end loop;
  perform hwqueue.note_blocked(p_state,
    v_met or v_without <> '{}' or v_is_short and not p_state.met_blocked, v_awaits);
  return v_picked;
end
$$;

-- Takes a step in the publication of affinity terms, while the claim holds what it has picked. The step
-- may move ready entries to other classes (assign_target_class). So a single entry is away meanwhile, and
-- of several those before the first moved one stay picked.
-- published: how many terms were published. some_moved: nothing is left of what was picked.
-- Locks as publish_terms.
create or replace function hwqueue.publish_while_holding(inout picked hwqueue.picked_entries,
  p_now timestamptz, out published int, out some_moved boolean)
language plpgsql volatile
as $$
declare
  v_first_moved bigint;
  v_entry hwqueue.ready;
begin
  some_moved := false;
  if cardinality(picked.ctids) = 1 then
    delete from hwqueue.ready r where r.ctid = picked.ctids[1] returning r.* into v_entry;
  end if;
  published := hwqueue.publish_terms(2, case when picked.ctids = '{}' then false end, p_now);
  if v_entry.lease_id is not null then
    insert into hwqueue.ready as r overriding system value select v_entry.*
    returning array[r.ctid] into picked.ctids;
  else
    select p.n into v_first_moved from unnest(picked.ctids) with ordinality p(row_ctid, n)
    where not exists (select from hwqueue.ready r where r.ctid = p.row_ctid) order by p.n limit 1;
    if found then
      picked.ctids := picked.ctids[1 : v_first_moved - 1];
      some_moved := picked.ctids = '{}';
    end if;
  end if;
end
$$;

-- Returns a request with the ids of its queues that are not paused, each once, and whether one has lanes: as
-- p_head says, if one was read.
-- Raises QHQ01 for a name that does not exist.
create or replace function hwqueue.open_queues(p_request hwqueue.claim_request, p_head hwqueue.queue_head)
returns hwqueue.claim_request
language plpgsql stable
as $$
begin
  p_request.queue_ids := p_head.queue_ids;
  p_request.folds := p_head.has_lanes;
  if p_request.queue_ids is not null then
    return p_request;
  end if;
  select coalesce(array_agg(q.queue_id), '{}'), bool_or(q.has_lanes)
  into p_request.queue_ids, p_request.folds
  from hwqueue.queue q
  where q.name = any (p_request.queues) and q.dropped_at is null
    and q.paused_at is null;
  if cardinality(p_request.queue_ids) < cardinality(p_request.queues) then
    perform hwqueue.find_queue(q) from unnest(p_request.queues) q;  -- paused, named twice, or unknown
  end if;
  return p_request;
end
$$;

-- Checks what a claim asks for. Returns true, so that it can be part of an expression.
-- Raises QHA01, and QHA02 outside of read committed.
create or replace function hwqueue.check_request(p_queues text[], p_qty int, p_claim_timeout interval)
returns boolean
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform hwqueue.require_read_committed();
  end if;
  if p_qty is null or p_qty not between 1 and 1000 then
    perform hwqueue.refuse('QHA01',
      format('p_qty must be from 1 to 1000, got %s', coalesce(p_qty::text, 'null')),
      jsonb_build_object('field', 'p_qty'), 'claim in batches of at most 1000');
  end if;
  if p_claim_timeout is not null then
    perform hwqueue.checked_extend(p_claim_timeout, 'p_claim_timeout');
  end if;
  return cardinality(p_queues) = 1 and p_queues[1] is not null and array_ndims(p_queues) = 1
    or hwqueue.check_queue_names(p_queues);
end
$$;

-- Checks that a claim is to last from one second to 30 days, and returns that in seconds. Raises QHA01.
create or replace function hwqueue.checked_extend(p_extend interval, p_field text default 'p_extend')
returns interval
language plpgsql immutable
as $$
begin
  if p_extend is null or p_extend < interval '1 second' or p_extend > interval '30 days'
    or not isfinite(p_extend) then
    perform hwqueue.refuse('QHA01', format('%s must be from one second to 30 days, got %s', p_field,
        coalesce(p_extend::text, 'null')), jsonb_build_object('field', p_field),
      'give a span such as interval ''5 minutes''; heartbeats extend the claim again');
  end if;
  return hwqueue.in_seconds(p_extend);
end
$$;
