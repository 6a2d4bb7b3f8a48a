-- Public: spawning, changing, cancelling and reading leases.
--
-- Producers spawn and update, operators requeue and adopt, tools read. An example: a web application
-- spawns 2,000 frames with spawn_leases in the transaction that saves the film, cancels one with
-- cancel_lease, and lists what failed with list_leases.
--
-- Invariant: a lease has at any time exactly one entry, claim or outcome. Every change of one moves the
-- row under its lock.

-- Spawns one lease, normally inside the caller's own transaction. An option that is not given is the
-- default of the task, if it has one (set_task). It waits only for another spawn with the same
-- idempotency key, and with one_of for who takes or adds another alternative at the moment. created is
-- false if that key had a lease already, whose id and state are returned. With replaces it is scheduled
-- until upkeep has booked the place of the other lease, which QHL04 says does not exist. warnings: why no
-- live node could run such leases when upkeep last looked; null: it has not looked yet, see spawn_warnings.
-- Locks: its idempotency key; its choice. Raises: QHQ01, QHA01, QHC03, QHC04, QHW01, QHT01, QHL04, QHL06,
-- QHA03. Idempotent: with an idempotency_key. Wakes: waiting workers.
create or replace function hwqueue.spawn_lease(p_queue text, p_task text, p_params jsonb default '{}',
  p_options jsonb default '{}') returns table (lease_id uuid, created boolean, state text, warnings text[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  -- also assigns the transaction its id, before a class is read and a position drawn: pruning of classes
  -- and the position horizon wait for all transactions up to some id
  v_target hwqueue.spawn_target := hwqueue.find_spawn_queue(p_queue, p_task);
  v_queue hwqueue.queue := v_target.queue;
  v_is_limited boolean := hwqueue.my_tenants() is not null;
  v_defaults jsonb := case when v_is_limited then hwqueue.with_tenant(v_target.defaults)
      else v_target.defaults end;
  v_now timestamptz := hwqueue.clock();
  v_spawn hwqueue.spawn_request := hwqueue.read_single_spawn(v_queue, p_task, p_params,
      hwqueue.with_defaults(p_options, v_defaults), v_now);
begin
  v_spawn := (hwqueue.write_spawns(array[v_spawn], v_queue, v_now))[1];
  if v_is_limited then
    perform hwqueue.check_own_spawns(array[v_spawn], false);
  end if;
  lease_id := coalesce(v_spawn.stands_for, v_spawn.lease_id);
  created := v_spawn.stands_for is null;
  state := case when not created then hwqueue.lease_state(lease_id)
    when v_spawn.available_at > v_now or v_spawn.lanes is not null then 'scheduled'
      else 'pending' end;
  select case when f.unmatched then hwqueue.known_lacks(f.class_id) else '{}' end into warnings
  from hwqueue.class_fleet f where f.class_id = v_spawn.class_id;
  return next;
end
$$;

-- Spawns a batch [{"task", "params", "options"}], all or nothing, each with the defaults of its task. Many
-- leases of few kinds are faster as {"kinds": [{"task", "options"}], "each": [params], "of": [kind of each]}:
-- of counts from 0, and one kind needs none. Elements with equal idempotency keys are one lease. ordinal is
-- the element's place in the batch, from 1.
-- Locks: its idempotency keys, then its choices, both sorted. Raises: as spawn_lease, with the element's
-- index (from 0) in the detail. Idempotent: per idempotency key. Wakes: waiting workers, once.
create or replace function hwqueue.spawn_leases(p_queue text, p_leases jsonb)
returns table (ordinal int, lease_id uuid, created boolean, state text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  -- also assigns the transaction its id, as in spawn_lease
  v_queue hwqueue.queue := (hwqueue.find_spawn_queue(p_queue, null)).queue;
  v_now timestamptz := hwqueue.clock();
  v_spawns hwqueue.spawn_request[];
begin
  if jsonb_typeof(p_leases) is distinct from 'array' and (jsonb_path_exists(p_leases,
      '$ ? (@.each.type() == "array" && @.kinds.type() == "array" && !exists(@.kinds[*].params)
        && (@.kinds.size() == 1 && !exists(@.of) || @.of.type() == "array" && @.of.size() == @.each.size()
        && !exists(@.of[*].type() ? (@ != "number"))
        && !exists(@.of[*] ? (!(@ >= 0 && @ < $.kinds.size() && @ == @.floor())))))')
      and p_leases - array['kinds', 'each', 'of'] = '{}') is not true then
    perform hwqueue.refuse_field('QHA01', 'leases',
      format('must be a JSON array, or few kinds, got %s', coalesce(jsonb_typeof(p_leases), 'null')),
      'pass [{"task": "...", "params": {}, "options": {}}, ...]');
  end if;
  v_spawns := hwqueue.read_spawns(v_queue, p_leases, v_now);
  v_spawns := hwqueue.write_spawns(v_spawns, v_queue, v_now);
  if hwqueue.my_tenants() is not null then
    perform hwqueue.check_own_spawns(v_spawns, true);
  end if;
  return query
    select s.ordinal, coalesce(s.stands_for, s.lease_id), s.stands_for is null,
           case when s.stands_for is not null then hwqueue.lease_state(s.stands_for)
             when s.available_at > v_now or s.lanes is not null then 'scheduled'
             else 'pending' end
    from unnest(v_spawns) s order by s.ordinal;
end
$$;

-- Changes a lease that is not claimed, and returns its state: {"placement", "wire", "labels",
-- "priority", "available_at", "deadline", "queue"}. It keeps its attempts and gets a new position in line.
-- placement and wire together replace what it asked, whichever of them is given. queue: it moves there,
-- with its idempotency key; what it does not say itself is then that queue's policy, and a spawn into
-- that queue would have to be possible. Of a step of a run only priority, available_at and deadline can
-- be changed.
-- Locks: the entry; its keys, if it moves; the lease row; as put_back. Raises: QHL03 finished, QHL04,
-- QHL07 claimed, QHF05 a step of a run, QHQ01, QHT02 when its key is taken there, QHT03 of new classes,
-- QHA01, QHC03, QHC04, QHW01, QHA02, QHA03.
-- Idempotent: but for the position. Wakes: waiting workers, when it is claimable at once.
create or replace function hwqueue.update_lease(p_lease uuid, p_changes jsonb) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_entry hwqueue.scheduled;
  v_lease hwqueue.lease;
  v_queue hwqueue.queue;
  v_ended text;
  v_class hwqueue.placement_class;
  v_priority smallint;
  v_deadline timestamptz;
  v_lanes hwqueue.lane_ref[];
  v_asks boolean := p_changes ?| array['placement', 'wire'];
  v_fields text[] := hwqueue.class_changes(p_changes);
  v_class_id bigint;
  v_labels jsonb;
  v_at timestamptz;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate');
  perform hwqueue.check_changes(p_changes);
  if p_changes ->> 'queue' is not null then  -- takes a transaction id: the queue is not deleted meanwhile
    v_queue := (hwqueue.find_spawn_queue(hwqueue.json_text(p_changes -> 'queue', 'changes.queue', 100),
      null)).queue;
  end if;
  v_entry := hwqueue.take_entry(p_lease);
  v_lease := hwqueue.find_lease(p_lease);
  if v_lease.run_id is not null and v_fields <> '{}' then
    -- its run shows what it asked, and releases steps near it and retries by that
    perform hwqueue.refuse('QHF05', format('lease %s is step %s of run %s, which decides about its %s',
        p_lease, v_lease.headers -> 'step', v_lease.run_id, array_to_string(v_fields, ', ')),
      jsonb_build_object('field', 'changes.' || v_fields[1], 'lease_id', p_lease,
        'run_id', v_lease.run_id, 'step', v_lease.headers -> 'step'),
      format('cancel the run (select hwqueue.cancel_workflow_run(p_run => ''%s'')) and submit another one, '
        'with %s; priority, available_at and deadline may be changed here',
        coalesce(v_lease.headers ->> 'root_run_id', v_lease.run_id::text),
        case when 'queue' = any (v_fields) then 'a definition that names the other queue'
          when 'labels' = any (v_fields) then 'options.steps.NAME.options.labels'
          else 'options.steps.NAME.placement' end));
  end if;
  if v_entry.lease_id is null then
    v_ended := (hwqueue.lease_end(p_lease)).state;
    perform hwqueue.refuse(case when v_ended is null then 'QHL07' else 'QHL03' end,
      format('lease %s is %s', p_lease, coalesce(v_ended, 'claimed')),
      jsonb_build_object('lease_id', p_lease, 'state', hwqueue.lease_state(p_lease)),
      'only a lease that waits can be changed; cancel it and spawn another');
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.class_id = v_lease.class_id;
  v_lanes := v_lease.lanes;
  if v_queue.queue_id is not null then
    perform hwqueue.check_move(v_lease, v_queue);
    select l.lanes into v_lanes
    from (select jsonb_object_agg(r.name, case when r.spec ->> 'by' = 'key' then a.key end) as limits
          from unnest(v_lanes) a
          join hwqueue.limit_rule r on r.limit_id = a.limit_id and r.dropped_at is null
          where not a.of_queue) o  -- those that it was spawned with, and that queue's
    cross join lateral hwqueue.read_limits(o.limits, hwqueue.limits_of(v_queue.limits,
      (hwqueue.find_tenant(v_class.tenant)).spec ? 'slots'), v_class.tenant) l;
    if v_lanes is distinct from v_lease.lanes then
      perform hwqueue.leave_lanes(array[p_lease]);
      update hwqueue.lease l set lanes_passed = null where l.lease_id = p_lease;
    end if;
  end if;
  v_now := hwqueue.clock();
  v_at := coalesce(hwqueue.json_time(p_changes -> 'available_at', 'changes.available_at'),
      case when v_entry.held_by = 'limit' then v_now else v_lease.available_at end);
  v_priority := coalesce(hwqueue.json_integer(p_changes -> 'priority', 'changes.priority', -32768, 32767),
      v_lease.priority);
  v_deadline := case when p_changes ? 'deadline' then hwqueue.json_time(p_changes -> 'deadline',
      'changes.deadline') else v_lease.deadline end;
  v_labels := case when p_changes ? 'labels'
    then hwqueue.check_labels(p_changes -> 'labels', 'changes.labels')
    else coalesce(v_lease.labels, v_class.labels) end;
  v_class.placement := case when v_asks then hwqueue.spawn_placement(p_changes, 'changes')
    else v_class.placement end;
  v_class_id := hwqueue.target_class(hwqueue.find_class(
    row(coalesce(v_queue.queue_id, v_lease.queue_id), v_lease.task_name, v_class.tenant, v_class.service_id,
      case when v_asks or p_changes ? 'labels'
        then hwqueue.class_labels(v_labels, array[v_class.tenant], v_class.placement)
        else v_class.labels end, v_class.placement,
      v_class.patience, null, v_class.max_run, v_class.is_choice)), p_lease);
  perform hwqueue.admit_tenant(v_class.tenant, v_class_id, v_now, '{classes}')
  where v_class_id <> v_lease.class_id and v_class.tenant <> '';
  perform hwqueue.check_own_class(c, 'changes', null)
  from hwqueue.placement_class c where c.class_id = v_class_id and hwqueue.my_tenants() is not null;
  update hwqueue.lease l
  set priority = v_priority, deadline = v_deadline, class_id = v_class_id, labels = nullif(v_labels, '{}'),
      near_node = case when not v_asks then l.near_node end,
      rank = case when v_queue.queue_id <> l.queue_id
        then hwqueue.lease_rank(v_queue.ageing_step, greatest(nullif(l.available_at, 'infinity'),
          l.created_at), v_priority)
        else l.rank + l.priority - v_priority end,
      queue_id = coalesce(v_queue.queue_id, l.queue_id), lanes = v_lanes,
      wire = case when v_asks then hwqueue.wire_blob(p_changes -> 'wire', 'changes.wire') else l.wire end
  where l.lease_id = p_lease returning l.rank into v_entry.rank;
  perform hwqueue.note_leases('lease_updated', array[p_lease],
    'changed: ' || coalesce((select string_agg(k, ', ' order by k) from jsonb_object_keys(p_changes) k),
      'its place in line'),
    jsonb_build_object('class_id', v_class_id) || case when v_queue.queue_id <> v_lease.queue_id
      then jsonb_build_object('from_queue', hwqueue.queue_name(v_lease.queue_id)) else '{}' end);
  if v_entry.turn is not null and coalesce(v_queue.queue_id = v_lease.queue_id, true)
    and v_at = (case v_entry.held_by when 'limit' then v_now else v_entry.available_at end)
    and v_lanes is not distinct from v_lease.lanes then
    -- it keeps its turn
    v_entry.class_id := v_class_id;
    v_entry.deadline := v_deadline;
    insert into hwqueue.scheduled select v_entry.*;
    perform hwqueue.note_arrivals(array[v_class_id], array[v_lanes[coalesce(v_lease.lanes_passed, 0) + 1]],
      array[row(v_entry.tier, v_entry.rank, v_entry.turn)::hwqueue.lane_place], null)
    where v_entry.lane_id & 3 < 3;
    return 'scheduled';
  end if;
  return hwqueue.put_back(p_lease, v_entry.attempt_count, v_entry.claim_count, v_at, v_now,
    -- its patience goes on; with a deadline, reap finds it by the time of this call
    case when not p_changes ? 'available_at' and v_deadline is null and v_entry.available_at <= v_now
      then v_entry.available_at end, case when v_at = v_entry.available_at then v_entry.held_by end);
end
$$;

-- Cancels a lease, and returns its state. One that waits is cancelled at once. A running one is asked to
-- stop: its worker is notified, and told at its next heartbeat. It stays claimed until it settles or
-- expires: one claim timeout from now at the latest, unless it heartbeats. p_reason is kept, up to 1,024
-- characters. Cancelling a cancelled lease changes nothing.
-- Locks: the entry or the claim. Raises: QHL03 finished, QHL04, QHA01, QHA02. Idempotent.
create or replace function hwqueue.cancel_lease(p_lease uuid, p_reason text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_claim hwqueue.claim;
  v_state text;
begin
  perform set_config('hwqueue.ended', '', true);  -- note_ended fills the list
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate');
  perform hwqueue.check_payload(to_jsonb(p_reason), 'p_reason', 1024);
  if (hwqueue.take_entry(p_lease)).lease_id is not null then
    perform hwqueue.lease_ended(array[p_lease], 'cancelled', jsonb_build_object('reason', 'cancelled',
      'detail', p_reason), concat_ws(': ', 'cancelled while it waited', p_reason));
    perform hwqueue.follow_ended(false);
    return 'cancelled';
  end if;
  select c.* into v_claim from hwqueue.claim c where c.lease_id = p_lease for no key update;
  if found then
    if v_claim.stop_reason is distinct from 'cancelled' then
      perform hwqueue.cancel_claims(array[p_lease], p_reason, concat_ws(': ', 'cancelled', p_reason),
        p_node => v_claim.node_id);
    end if;
    return 'claimed';
  end if;
  v_state := (hwqueue.lease_end(p_lease)).state;
  if v_state is null then  -- it has just been requeued, or pruned
    return hwqueue.cancel_lease(p_lease, p_reason);
  elsif v_state <> 'cancelled' then
    perform hwqueue.refuse('QHL03', format('lease %s is %s already', p_lease, v_state),
      jsonb_build_object('lease_id', p_lease, 'state', v_state), 'a finished lease cannot be cancelled');
  end if;
  return v_state;
end
$$;

-- Makes a failed or cancelled lease claimable again at once, with attempts counted from 0, and returns
-- its state. Its past attempts stay on record, and its tokens go on rising. It gets the key of its option
-- unique back, unless another lease has that key now, which QHT02 names.
-- Locks: its outcome, which it deletes; its key; the lease row. Raises: QHL03 completed, or another
-- alternative of its choice was taken, QHL04, QHL07 still waiting or running, QHT02, QHF05 a step of a run,
-- QHA02. Not idempotent.
-- Wakes: waiting workers.
create or replace function hwqueue.requeue_lease(p_lease uuid) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_end record;
  v_lease hwqueue.lease;
  v_state text;
  v_class hwqueue.placement_class;
  v_class_id bigint;
  v_taken record;
  v_now timestamptz;
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate');
  if hwqueue.my_tenants() is not null then
    perform hwqueue.find_lease(p_lease);  -- no wait for another tenant's
  end if;
  loop
    delete from hwqueue.outcome o where o.lease_id = p_lease and (o.state in ('failed', 'cancelled')) is true
    returning o.*, o.xmin as xid into v_end;
    exit when found;
    perform hwqueue.find_lease(p_lease);
    v_state := hwqueue.lease_state(p_lease);
    continue when v_state in ('failed', 'cancelled');  -- a concurrent call requeued it
    perform hwqueue.refuse(case when v_state = 'completed' then 'QHL03' else 'QHL07' end,
        format('lease %s is %s', p_lease, v_state),
      jsonb_build_object('lease_id', p_lease, 'state', v_state),
        'only failed and cancelled leases can be requeued');
  end loop;
  select k.* into v_taken from hwqueue.regain_keys(array[p_lease], true, hwqueue.clock()) k;
  if found then
    perform hwqueue.refuse('QHT02',
      format('lease %s holds the unique key %s of lease %s', v_taken.holder, to_json(v_taken.key), p_lease),
      jsonb_build_object('key', v_taken.key, 'lease_id', v_taken.holder, 'requeued', p_lease),
      'requeue it when that lease has ended, or cancel that one first');
  end if;
  v_now := hwqueue.clock();
  -- roll_up may not have counted its outcome yet
  insert into hwqueue.undone_end (queue_id, state, finished_at, lease_id, xid)
  values (v_end.queue_id, v_end.state, v_end.finished_at, p_lease, v_end.xid);
  -- a deadline that has passed would fail it again before anyone could claim it
  update hwqueue.lease l
  set claim_token = v_end.claim_token, node_id = v_end.node_id, claimed_at = v_end.claimed_at,
      deadline = case when l.deadline > v_now then l.deadline end, lanes_passed = null
  where l.lease_id = p_lease
  returning l.* into v_lease;
  if v_lease.run_id is not null then
    perform hwqueue.refuse('QHF05', format('lease %s is a step of run %s: it cannot be requeued by itself',
        p_lease, v_lease.run_id), jsonb_build_object('lease_id', p_lease, 'run_id', v_lease.run_id),
      format('retry what failed: select hwqueue.retry_workflow_run(p_run => ''%s'')', v_lease.run_id));
  end if;
  perform hwqueue.refuse('QHL03', format('of choice %s, which lease %s is of, %s was taken',
      v_lease.choice_id, p_lease, t.taken),
    jsonb_build_object('lease_id', p_lease, 'one_of', v_lease.choice_id, 'taken', t.taken),
    'of alternatives one runs: requeue that one, or spawn this one again in another choice')
  from hwqueue.taken_instead(v_lease) t(taken) where t.taken is not null;
  if v_lease.near_node is not null then
    perform hwqueue.prefer_own_node(p_lease, null);
  end if;
  select c.* into v_class from hwqueue.placement_class c
  where v_lease.labels is not null
    and c.class_id = (select l.class_id from hwqueue.lease l where l.lease_id = p_lease);
  if v_class.labels <> jsonb_strip_nulls(v_class.labels) then
    -- a term may name by now what it hides: what has ended was not moved (show_labels)
    v_class_id := hwqueue.find_class(row(v_class.queue_id, v_class.task_name, v_class.tenant,
      v_class.service_id,
      hwqueue.class_labels(v_lease.labels, array[v_class.tenant], v_class.placement),
      v_class.placement, v_class.patience, v_class.target, v_class.max_run, v_class.is_choice));
    update hwqueue.lease l set class_id = v_class_id where l.lease_id = p_lease;
  end if;
  perform hwqueue.note_leases('lease_requeued', array[p_lease], format('requeued, it was %s', v_end.state),
    jsonb_build_object('from', v_end.state));
  return hwqueue.put_back(p_lease, 0, hwqueue.claims_until(v_end.claim_token), v_now, v_now);
end
$$;

-- Records work that runs on a node already, as a claimed lease, for moving in from another system. It
-- checks neither requirements nor room; from then on the lease counts like any claim. Devices: {"gpus":
-- [resource ids]} in the options, else those with most left. It adopts nothing onto cores or devices
-- that other leases have exclusively, and nothing exclusively where other leases run.
-- Locks: its idempotency key; its choice; node_state; the entry. Raises: QHQ01, QHN01, QHA01, QHC03, QHC04,
-- QHW01, QHT01, QHL03 when another alternative was taken, QHL06, QHL07, QHA02, QHA03.
-- Not idempotent.
create or replace function hwqueue.adopt_lease(p_queue text, p_node uuid, p_task text,
  p_params jsonb default '{}', p_options jsonb default '{}') returns table (lease_id uuid, claim_token bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_target hwqueue.spawn_target;
  v_queue hwqueue.queue;
  v_options jsonb := case when jsonb_typeof(p_options) = 'object' then p_options - 'gpus' else p_options end;
  v_spawn hwqueue.spawn_request;
  v_state hwqueue.node_state;
  v_load hwqueue.node_load;
  v_node hwqueue.node;
  v_lease hwqueue.lease;
  v_class hwqueue.placement_class;
  v_entry hwqueue.scheduled;
  v_now timestamptz;
  v_taken record;
  v_timeout interval;
  v_token bigint;
  v_deltas jsonb;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  v_target := hwqueue.find_spawn_queue(p_queue, p_task);
  v_queue := v_target.queue;
  -- spawned before the node is locked, because its key may have to wait for a producer. No claim sees it
  -- before this transaction commits
  v_now := hwqueue.clock();
  v_spawn := (hwqueue.write_spawns(
    array[hwqueue.read_single_spawn(v_queue, p_task, p_params,
      hwqueue.with_defaults(v_options, v_target.defaults), v_now)], v_queue, v_now))[1];
  v_lease.lease_id := coalesce(v_spawn.stands_for, v_spawn.lease_id);
  v_state := hwqueue.lock_node(p_node, null);
  if v_state.token_name is not null then
    perform hwqueue.refuse_field('QHA01', 'p_node', 'has a worker over HTTP, which would hand it back',
      'adopt it onto a node of a login');
  end if;
  v_entry := hwqueue.take_entry(v_lease.lease_id);
  if v_entry.lease_id is null then
    perform hwqueue.refuse('QHL07', format('lease %s is claimed or finished already', v_lease.lease_id),
      jsonb_build_object('lease_id', v_lease.lease_id),
        'its idempotency key stands for work that is recorded already');
  end if;
  v_node := hwqueue.read_node(p_node);
  v_now := hwqueue.clock();
  v_lease := hwqueue.find_lease(v_lease.lease_id);
  if not hwqueue.take_choice(v_lease.choice_id, v_lease.lease_id) then
    perform hwqueue.refuse('QHL03', format('another alternative of choice %s was taken', v_lease.choice_id),
      jsonb_build_object('lease_id', v_lease.lease_id, 'one_of', v_lease.choice_id),
      'of alternatives one runs: adopt the work as a lease without one_of');
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.class_id = v_lease.class_id;
  v_load := hwqueue.read_load(p_node);
  -- cores are chosen as for a claim: the operator has to pin the work to them
  if v_node.core_ids <> '{}' and hwqueue.choose_cores(v_node, v_load.core_used, v_class.cpu_milli,
      hwqueue.cpu_isolation_on(v_class.cpu_isolation, v_node.default_cpu_isolation)) is null then
    perform hwqueue.refuse('QHA01', format('node %s has not enough cores left for this work', p_node),
      jsonb_build_object('field', 'p_node', 'node_id', p_node),
      'wait until running leases have ended, or adopt it elsewhere');
  end if;
  v_taken := hwqueue.allocate_for_class(v_class, v_node, null, v_load, p_devices =>
    hwqueue.adopted_devices(v_class, v_node, v_load, p_options -> 'gpus'));
  perform hwqueue.write_load(v_taken.p_load);
  perform hwqueue.note_selected(array[v_class.class_id]);
  v_deltas := hwqueue.counted_terms((hwqueue.touched_terms(v_class, v_lease.lease_id, v_node)).touched);
  v_timeout := coalesce(v_lease.claim_timeout, v_queue.claim_timeout);
  v_token := hwqueue.next_token(hwqueue.current_generation(), v_entry.claim_count);
  insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token, attempt,
    claim_timeout, claimed_at, expires_at, check_at, assignment, term_deltas, login, eligible_at, lanes)
  values (v_lease.lease_id, v_queue.queue_id, v_lease.class_id, p_node, v_state.node_epoch, v_token,
    v_entry.attempt_count + 1, v_timeout, v_now, v_now + v_timeout, v_now + v_timeout, v_taken.assignment,
    v_deltas, v_state.login, case when v_queue.retain_completed = '0' and v_lease.idempotency_key is null
      then greatest(nullif(v_lease.available_at, 'infinity'), v_lease.created_at) end,
    hwqueue.slot_lanes(v_lease.lanes));
  if v_lease.lanes is not null then  -- it counts, and may be one more than its limits allow
    perform hwqueue.leave_lanes(array[v_lease.lease_id]);
    insert into hwqueue.lane_change (tenant, lane_id, delta, limit_id, key)
    select case when r.key <> '' then v_class.tenant else '' end, r.lane_id, 1, r.limit_id, r.key
    from unnest(v_lease.lanes) r where r.lane_id & 3 = 0;
  end if;
  perform hwqueue.add_counts(v_deltas, 1), hwqueue.wake_classes_of_lease(v_lease.lease_id),
    hwqueue.refresh_node_state(p_node);
  if hwqueue.binds_during_execution(v_class) then
    perform hwqueue.note_placement_check(v_lease.lease_id, v_entry.claim_count);
  end if;
  perform hwqueue.note_leases('lease_adopted', array[v_lease.lease_id],
      format('adopted on node %s', v_node.name), jsonb_build_object('claim_token', v_token::text), p_node);
  return query select v_lease.lease_id, v_token;
end
$$;

-- Everything about one lease. Times are null while they do not apply. wire is the params blob as it was
-- sent. assignment: of the running claim, or the one that ended it. attempts: those that have ended without
-- completing, or that a retry of their run has run again, oldest first.
-- Raises: QHL04.
create or replace function hwqueue.get_lease(p_lease uuid)
returns table (lease_id uuid, queue text, task_name text, state text, priority smallint,
  tenant text, service_id uuid, labels jsonb, placement jsonb, params jsonb, headers jsonb,
  attempt smallint, max_attempts smallint, available_at timestamptz, deadline timestamptz,
  created_at timestamptz, claimed_at timestamptz, finished_at timestamptz, expires_at timestamptz,
  node_id uuid, claim_token bigint, assignment jsonb, result jsonb, error jsonb, attempts jsonb,
  idempotency_key text, stop_reason text, wire bytea, progress jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.find_lease(p_lease);
  return query select d.* from hwqueue.lease_details(array[p_lease]) d;
  if not found then  -- pruned since
    perform hwqueue.find_lease(p_lease);
  end if;
end
$$;

-- Returns the log lines of a lease, oldest attempt first, p_limit of them (1 to 1000): those after the
-- cursor p_after, or with p_last the last of these. p_attempt: of this attempt alone. To follow, pass the
-- cursor of the last line seen. dropped: how many lines of the claim were logged before this one and
-- after the one before, and are not kept. logged_at is by the clock of the node.
-- Raises: QHL04, QHA01.
create or replace function hwqueue.lease_logs(p_lease uuid, p_after text default null,
  p_limit int default 1000, p_attempt int default null, p_last boolean default false)
returns table (lease_id uuid, attempt smallint, claim_token bigint, line int, dropped int,
  logged_at timestamptz, level text, message text, fields jsonb, cursor text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_custom_plan set jit = off
as $$
declare
  v_after record := hwqueue.read_log_place(p_after);
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 1000, 'page with p_after'), hwqueue.find_lease(p_lease);
  return query
    with page as (
      select a.* from hwqueue.attempt_log a
      where a.lease_id = p_lease and (a.claim_token, a.line) > (v_after.claim_token, v_after.line)
        and (p_attempt is null or a.attempt = p_attempt)
      order by case when p_last then -a.claim_token else a.claim_token end,
               case when p_last then -a.line else a.line end
      limit p_limit
    )
    select a.lease_id, a.attempt, a.claim_token, a.line,
           a.line - 1 - greatest(
             case when a.claim_token = v_after.claim_token then v_after.line else 0 end,
             coalesce(lag(a.line) over (partition by a.claim_token order by a.line), (
               select b.line from hwqueue.attempt_log b
               where b.lease_id = p_lease and b.claim_token = a.claim_token
                 and b.line < a.line order by b.line desc limit 1), 0)),
           a.logged_at, a.level, a.message, a.fields, a.claim_token || '.' || a.line
    from page a order by a.claim_token, a.line;
end
$$;

-- Returns the state of each lease, for those who wait until leases end. A lease that does not exist, or
-- is another tenant's, has the state null. With p_notify the end of each that is claimed is notified on
-- channel hwqueue_ended, where its payload names it. A notification may be lost and there is none for a
-- lease that ends unclaimed, so ask again now and then.
-- Locks: the claims, skip locked, with p_notify.
-- Raises: QHA01.
create or replace function hwqueue.await_leases(p_lease_ids uuid[], p_notify boolean default false)
returns table (lease_id uuid, state text, payload text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_tenants text[] := hwqueue.my_tenants();
  v_own uuid[];
begin
  if array_ndims(p_lease_ids) is distinct from 1 or cardinality(p_lease_ids) > 1000
    or array_position(p_lease_ids, null) is not null then
    perform hwqueue.refuse_field('QHA01', 'p_lease_ids', 'must be a list of 1 to 1000 ids',
      'ask for more in several calls');
  end if;
  v_own := array(
    select distinct i.lease_id from unnest(p_lease_ids) i(lease_id)
    where v_tenants is null or hwqueue.is_own_lease(i.lease_id, v_tenants));
  if p_notify then  -- one that another session holds is flagged when the caller asks again
    update hwqueue.claim c set is_awaited = true where c.lease_id = any (array(
      select x.lease_id from hwqueue.claim x
      where x.lease_id = any (v_own) and not x.is_awaited for update skip locked));
  end if;
  -- read after the flags are set: a claim that has ended by then is seen to have ended
  return query
    select i.lease_id, case when i.lease_id = any (v_own) then hwqueue.lease_state(i.lease_id) end,
           case when p_notify and i.lease_id = any (v_own)
             then hwqueue.wake_payload(s.wake_key, i.lease_id::text) end
    from (select distinct u.lease_id from unnest(p_lease_ids) u(lease_id)) i
    cross join hwqueue.installation s;
end
$$;

-- Lists leases, newest first by id, a page at a time: pass the last lease_id of a page as p_before of
-- the next.
-- p_filter: {"queue", "state", "task", "tenant", "service", "node", "labels", "idempotency_key",
-- "created_from", "created_before", "finished_from", "finished_before", "error_type"}, all of them
-- optional. "node": only those that run there now. "tenant": "" means those without one. "labels": those
-- that have all of these. "idempotency_key" needs "queue". "error_type": the "type" of the error that
-- they ended with, as workers report it. p_limit: from 1 to 10,000.
-- Ids that this server makes carry their time (version 7). Ids of a producer's own that lie above those
-- of tomorrow, as most random ones do, come after all others.
-- A filter that few of many leases meet reads the many: bound it by a statement timeout.
-- Raises: QHQ01, QHA01, QHA03.
create or replace function hwqueue.list_leases(p_filter jsonb default '{}', p_limit int default 50,
  p_before uuid default null)
returns table (lease_id uuid, queue text, task_name text, state text, priority smallint,
  tenant text, service_id uuid, labels jsonb, placement jsonb, headers jsonb, attempt smallint,
  max_attempts smallint, available_at timestamptz, deadline timestamptz, created_at timestamptz,
  claimed_at timestamptz, finished_at timestamptz, expires_at timestamptz, node_id uuid,
  claim_token bigint, error jsonb, idempotency_key text, stop_reason text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_filter hwqueue.lease_filter := hwqueue.read_lease_filter(p_filter);
  -- the lowest id that new_id could return a day from now
  v_newest uuid := overlay('00000000-0000-7000-8000-000000000000' placing overlay(lpad(to_hex(floor(
    extract(epoch from hwqueue.clock() + interval '1 day') * 1000)::bigint), 12, '0')
      placing '-' from 9 for 0) from 1 for 13);
  v_ids uuid[] := '{}';
begin
  perform hwqueue.check_range(p_limit, 'p_limit', 1, 10000, 'page with p_before');
  if p_before is null or p_before <= v_newest then
    v_ids := hwqueue.list_lease_ids(v_filter, p_limit, null, least(p_before, v_newest));
  end if;
  if cardinality(v_ids) < p_limit then
    v_ids := v_ids || hwqueue.list_lease_ids(v_filter, p_limit - cardinality(v_ids), v_newest,
      case when p_before > v_newest then p_before end);
  end if;
  return query
    select d.lease_id, d.queue, d.task_name, d.state, d.priority, d.tenant, d.service_id, d.labels,
           d.placement, d.headers, d.attempt, d.max_attempts, d.available_at, d.deadline, d.created_at,
           d.claimed_at, d.finished_at, d.expires_at, d.node_id, d.claim_token, d.error, d.idempotency_key,
           d.stop_reason
    from hwqueue.lease_details(v_ids) d order by d.lease_id >= v_newest, d.lease_id desc;
end
$$;
