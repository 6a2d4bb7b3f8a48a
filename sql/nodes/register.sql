-- Registering a node: reading its specification, and replacing what was there.
--
-- register_node (api/nodes) calls this module; nodes/operate and deregister_node share parts. An
-- example: gpu-1 restarts with a third GPU. parse_node_spec reads the new row, which is written
-- with what operators set before. end_older_claims ends the claims of the old process: each uses up an
-- attempt (outcome superseded), and its lease goes back to `ready` or fails. recount_node sums up what is in
-- use. refresh_node_state (capacity/node_state) then says whether the node has limits.
--
-- Invariant: no session waits for a profile while it holds a node, and an epoch never falls.

-- Whether a node has a row of node_state: it is registered, or was not long ago (prune_nodes). Writes the
-- row if it is missing, and keeps prune from deleting it meanwhile.
-- Locks: node_state, for key share, which claims do not wait for.
create or replace function hwqueue.is_known_node(p_node uuid) returns boolean
language plpgsql volatile
as $$
begin
  loop
    insert into hwqueue.node_state (node_id, node_epoch, seen_at, login)
      values (p_node, 1, hwqueue.clock(), session_user)
    on conflict do nothing;
    if found then
      return false;
    end if;
    perform 1 from hwqueue.node_state s where s.node_id = p_node for key share;
    if found then
      return true;
    end if;
  end loop;  -- pruned between the two statements
end
$$;

-- Reads and checks a node's specification. Returns the row that it asks for, without profile and times.
-- Raises QHA01.
create or replace function hwqueue.parse_node_spec(p_node uuid, p_spec jsonb) returns hwqueue.node
language plpgsql immutable
as $$
declare
  v_node hwqueue.node;
  v_capacity jsonb := coalesce(nullif(p_spec -> 'capacity', 'null'), '{}');
  v_key text;
begin
  perform hwqueue.check_object(p_spec, array['name', 'instance_id', 'heartbeat_timeout', 'labels', 'rack',
    'capacity', 'cores', 'gpus', 'resources', 'cpu_isolation', 'gpu_exclusivity', 'default_cpu_isolation',
    'gpu_share_mode', 'taints', 'slots', 'queues', 'tasks', 'concurrency', 'hears_deaths', 'declared',
    'keep_claims'], 'spec');
  v_node.node_id := p_node;
  v_node.name := hwqueue.json_text(p_spec -> 'name', 'spec.name', 253);
  perform hwqueue.check_name(v_node.name, 'spec.name', 253);
  v_node.instance_id := hwqueue.json_text(p_spec -> 'instance_id', 'spec.instance_id', 128);
  if v_node.instance_id is null then
    perform hwqueue.refuse_field('QHA01', 'spec.instance_id', 'is missing',
      'give a fresh id for every start of the worker process: it fences the one before');
  end if;
  v_node.labels := '{}';  -- any JSON object; order operators and anchors read its top level only
  if p_spec -> 'labels' <> 'null' then
    v_node.labels := hwqueue.check_depth(
      hwqueue.check_numbers(p_spec -> 'labels', 'spec.labels'), 'spec.labels');
    if jsonb_typeof(v_node.labels) <> 'object' or length(v_node.labels::text) > 65536 or exists (
        select from jsonb_object_keys(v_node.labels) k
        having count(*) > 256 or max(length(k)) > 253 or min(length(k)) < 1) then
      perform hwqueue.refuse_field('QHA01', 'spec.labels', 'must be an object of at most 256 labels and 65536'
        ' characters, with keys of 1 to 253 characters', 'for example {"region": "us-east", "gpu": true}');
    end if;
    v_node.labels := hwqueue.normal_value(v_node.labels);
  end if;
  v_node.rack := hwqueue.json_integer(p_spec -> 'rack', 'spec.rack', 0, 4294967295);
  v_node.heartbeat_timeout := coalesce(hwqueue.json_interval(p_spec -> 'heartbeat_timeout',
      'spec.heartbeat_timeout', '1 second', '1 day'), '45 seconds');
  v_node.slots := hwqueue.json_integer(p_spec -> 'slots', 'spec.slots', 0, 1000000);
  v_node.queues := hwqueue.json_names(p_spec -> 'queues', 'spec.queues', 100);
  v_node.tasks := hwqueue.json_names(p_spec -> 'tasks', 'spec.tasks', 200);
  v_node.concurrency := hwqueue.json_integer(p_spec -> 'concurrency', 'spec.concurrency', 1, 1000000);
  v_node.hears_deaths := coalesce(
    hwqueue.json_boolean(p_spec -> 'hears_deaths', 'spec.hears_deaths'), false);
  v_node.declared := hwqueue.json_names(p_spec -> 'declared', 'spec.declared', 200);
  v_node.taints := hwqueue.normal_set((
    select coalesce(
      jsonb_agg(hwqueue.parse_taint(e.value, format('spec.taints[%s]', e.ordinality - 1))), '[]')
    from jsonb_array_elements(hwqueue.json_list(p_spec -> 'taints', 'spec.taints', 100,
      'a list of at most 100 taints',
      'for example [{"key": "dedicated", "value": "film", "effect": "no_schedule"}]')) with ordinality e));
  if (select count(distinct t - 'value') from jsonb_array_elements(v_node.taints) t)
    < jsonb_array_length(v_node.taints) then
    perform hwqueue.refuse_field('QHA01', 'spec.taints', 'has two taints of the same key and effect',
      'keep one of them, or name them differently');
  end if;
  v_node.resources := hwqueue.json_uuids(p_spec -> 'resources', 'spec.resources');
  if jsonb_typeof(v_capacity) <> 'object' or (select count(*) from jsonb_object_keys(v_capacity)) > 64 then
    perform hwqueue.refuse_field('QHA01', 'spec.capacity', 'must be an object of at most 64 amounts',
      'for example {"cpu_milli": 64000, "memory_mib": 262144}');
  end if;
  select min(c.key) filter (where c.key !~ '^[a-z][a-z0-9_./-]{0,62}$' or c.key in ('gpu', 'gpu_milli')),
         jsonb_strip_nulls(coalesce(jsonb_object_agg(c.key, hwqueue.json_integer(c.value,
           'spec.capacity.' || left(c.key, 63), 0, 1000000000000)), '{}'))
  into v_key, v_capacity from jsonb_each(v_capacity) c;
  if v_key is not null then
    perform hwqueue.refuse('QHA01', format('spec.capacity has an amount named %s', to_json(left(v_key, 60))),
      jsonb_build_object('field', 'spec.capacity.' || left(v_key, 60)),
      'names are 1 to 63 characters of a-z, 0-9, _ . / -; GPUs are declared one by one in spec.gpus');
  end if;
  v_node.cpu_milli := (v_capacity ->> 'cpu_milli')::bigint;
  v_node.memory_mib := (v_capacity ->> 'memory_mib')::bigint;
  v_node.custom := v_capacity - array['cpu_milli', 'memory_mib'];
  v_node := hwqueue.parse_cores(hwqueue.parse_gpus(v_node, p_spec -> 'gpus'), p_spec -> 'cores');
  v_node.cpu_isolation := hwqueue.parse_classes(p_spec -> 'cpu_isolation', 'spec.cpu_isolation',
    array['best_effort', 'whole_core', 'strict_isolated']);
  v_node.gpu_exclusivity := hwqueue.parse_classes(p_spec -> 'gpu_exclusivity', 'spec.gpu_exclusivity',
    array['shared', 'session_exclusive', 'device_exclusive', 'partition_exclusive']);
  v_node.default_cpu_isolation := coalesce(hwqueue.json_text(p_spec -> 'default_cpu_isolation',
      'spec.default_cpu_isolation', 100), 'best_effort');
  v_node.gpu_share_mode := coalesce(hwqueue.json_choice(p_spec -> 'gpu_share_mode', 'spec.gpu_share_mode',
    array['exclusive', 'fractional'],
    p_hint => 'exclusive: every GPU has one lease at a time; fractional: leases may share one'),
    'fractional');
  if v_node.default_cpu_isolation <> all (v_node.cpu_isolation) then
    perform hwqueue.refuse_field('QHA01', 'spec.default_cpu_isolation',
      format('is %s, which the node does not honour', to_json(v_node.default_cpu_isolation)),
      'list it in spec.cpu_isolation, too');
  end if;
  v_node.core_ids := '{}';  -- counted one by one only if leases may ask for whole ones
  v_node.core_numa := '{}';
  if v_node.cpu_isolation <> '{best_effort}' then
    select coalesce(array_agg((c.value ->> 'core')::int order by c.ordinality), '{}'),
           coalesce(array_agg((c.value ->> 'numa')::int order by c.ordinality), '{}')
    into v_node.core_ids, v_node.core_numa from jsonb_array_elements(v_node.cores) with ordinality c;
    if v_node.core_ids = '{}' then
      perform hwqueue.refuse_field('QHA01', 'spec.cores',
        'is missing: the node honours classes that take whole cores',
        'declare the cores: [{"core": 0, "numa": 0, "threads": [0, 64]}]');
    end if;
  end if;
  return v_node;
end
$$;

-- The node with its devices: [{"resource_id", "model", "memory_mib", "parent_resource_id",
-- "partitionable"}]. A device's index is its ordinal in the list, from 0.
-- A part of a device names it as its parent. A parent that is listed is partitionable and may be
-- allocated whole. One that is not listed is never allocated whole, such as a GPU in MIG mode.
create or replace function hwqueue.parse_gpus(p_node hwqueue.node, p_gpus jsonb) returns hwqueue.node
language plpgsql immutable
as $$
declare
  v_node hwqueue.node := p_node;
  v_whole uuid[];  -- devices that may be split
  v_wrong record;
begin
  select coalesce(array_agg(r.id order by r.nth), '{}'), coalesce(array_agg(r.model order by r.nth), '{}'),
         coalesce(array_agg(r.memory order by r.nth), '{}'),
         coalesce(array_agg(r.parent order by r.nth), '{}'),
         coalesce(array_agg(r.id) filter (where r.is_whole), '{}')
  into v_node.gpu_ids, v_node.gpu_models, v_node.gpu_memory_mib, v_node.gpu_parents, v_whole
  from (
    select e.ordinality as nth, hwqueue.json_uuid(g.gpu -> 'resource_id', f.field || '.resource_id') as id,
           coalesce(hwqueue.json_text(g.gpu -> 'model', f.field || '.model', 200), '') as model,
           coalesce(hwqueue.json_integer(g.gpu -> 'memory_mib', f.field || '.memory_mib', 0, 1000000000), 0)
             as memory,
           hwqueue.json_uuid(g.gpu -> 'parent_resource_id', f.field || '.parent_resource_id') as parent,
           hwqueue.json_boolean(g.gpu -> 'partitionable', f.field || '.partitionable') as is_whole
    from jsonb_array_elements(hwqueue.json_list(p_gpus, 'spec.gpus', 1024, 'an array of at most 1024 devices',
      'for example [{"resource_id": "<uuid>", "model": "A100", "memory_mib": 81920}]')) with ordinality e
    cross join lateral (select format('spec.gpus[%s]', e.ordinality - 1) as field) f
    cross join lateral (
      select hwqueue.check_object(e.value, array['resource_id', 'model', 'memory_mib', 'parent_resource_id',
               'partitionable'], f.field) as gpu offset 0) g) r;
  select format('spec.gpus[%s].%s', d.nth - 1, w.key) as field, w.problem, w.hint into v_wrong
  from unnest(v_node.gpu_ids, v_node.gpu_parents) with ordinality d(id, parent, nth)
  cross join lateral (values
    ('resource_id', d.id is null or d.id = any (v_node.gpu_ids[: d.nth - 1]), 'is missing or used twice',
      'every device has a uuid of its own, the same at every registration'),
    ('partitionable', d.parent is not null and d.id = any (v_whole), 'is true of a part of a device',
      'only whole devices are split'),
    ('parent_resource_id', d.parent = any (v_node.gpu_ids) and d.parent <> all (v_whole),
      format('is %s, which is not partitionable', d.parent),
      'declare the device with "partitionable": true, or leave it out if nobody may have it whole')
  ) w(key, is_wrong, problem, hint)
  where w.is_wrong order by d.nth limit 1;
  if found then
    perform hwqueue.refuse_field('QHA01', v_wrong.field, v_wrong.problem, v_wrong.hint);
  end if;
  if array_remove(v_node.gpu_parents, null) = '{}' then
    v_node.gpu_parents := '{}';
  end if;
  return v_node;
end
$$;

-- The node with its cores: [{"core", "numa", "threads"}], written in full. By default numa is 0 and
-- threads is the core's own id.
create or replace function hwqueue.parse_cores(p_node hwqueue.node, p_cores jsonb) returns hwqueue.node
language plpgsql immutable
as $$
declare
  v_node hwqueue.node := p_node;
  v_cores jsonb := hwqueue.json_list(p_cores, 'spec.cores', 4096,
      'an array of at most 4096 {"core", "numa", "threads"}',
    'for example [{"core": 0, "numa": 0, "threads": [0, 64]}]');
  v_core jsonb;
  v_field text;
  v_threads jsonb;
begin
  for v_core, v_field in
    select e.value, format('spec.cores[%s]', e.ordinality - 1)
    from jsonb_array_elements(v_cores) with ordinality e
  loop
    perform hwqueue.check_object(v_core, array['core', 'numa', 'threads'], v_field);
    if hwqueue.json_integer(v_core -> 'core', v_field || '.core', 0, 2147483647) is null then
      perform hwqueue.refuse_field('QHA01', v_field || '.core', 'is missing',
        'number the cores: every one has an id of its own');
    end if;
    perform hwqueue.json_integer(v_core -> 'numa', v_field || '.numa', 0, 2147483647);
    v_threads := coalesce(nullif(v_core -> 'threads', 'null'), jsonb_build_array(v_core -> 'core'));
    if jsonb_typeof(v_threads) <> 'array' or jsonb_array_length(v_threads) not between 1 and 64
      or v_threads @> '[null]' then
      perform hwqueue.refuse_field('QHA01', v_field || '.threads', 'must be an array of 1 to 64 CPU ids',
        'give the ids of the logical CPUs that the core has, such as [0, 64]');
    end if;
    perform hwqueue.json_integer(t.value, format('%s.threads[%s]', v_field, t.ordinality - 1), 0, 2147483647)
    from jsonb_array_elements(v_threads) with ordinality t;
  end loop;
  v_node.cores := hwqueue.normal_value((
    select coalesce(jsonb_agg(jsonb_build_object('numa', 0, 'threads', jsonb_build_array(e.value -> 'core'))
      || jsonb_strip_nulls(e.value) order by e.ordinality), '[]')
    from jsonb_array_elements(v_cores) with ordinality e));
  select format('%s %s', d.what, d.id) into v_field
  from (select 'core' as what, (c ->> 'core')::int as id from jsonb_array_elements(v_node.cores) c
        union all
        select 'thread', t::int from jsonb_array_elements(v_node.cores) c
        cross join lateral jsonb_array_elements_text(c -> 'threads') t) d
  group by d.what, d.id having count(*) > 1 order by d.what, d.id limit 1;
  if found then
    perform hwqueue.refuse_field('QHA01', 'spec.cores', format('has %s twice', v_field),
      'every core and every thread is declared once');
  end if;
  return v_node;
end
$$;

-- Ends the claims of a node's older epochs (null: all), because the process that ran them is gone. Returns
-- their number.
-- Locks: the claims by lease_id; the lease rows. Notifies: the node's worker.
create or replace function hwqueue.end_older_claims(p_node uuid, p_epoch bigint, p_now timestamptz)
returns int
language plpgsql volatile
as $$
declare
  v_claim hwqueue.claim;
  v_login text;
  v_count int := 0;
begin
  for v_claim in
    select c.* from hwqueue.claim c
    where c.node_id = p_node and (c.node_epoch < p_epoch) is not false
    order by c.lease_id for update
  loop
    -- the clock again, now that claims are locked (oldest_open_settlement)
    perform hwqueue.end_claim(v_claim, 'superseded', jsonb_build_object('reason', 'node_superseded'),
      case when hwqueue.next_attempt_at(v_claim.lease_id, v_claim.attempt, p_now) is not null
        then p_now end, hwqueue.clock());
    v_login := v_claim.login;
    v_count := v_count + 1;
  end loop;
  if v_count > 0 then  -- a process that still runs their handlers is to stop them
    perform hwqueue.wake_node(p_node, v_login);
  end if;
  return v_count;
end
$$;

-- Drops what is cached as judged for the node itself, so that its next claim judges again.
-- Locks: the caller holds node_state.
create or replace function hwqueue.forget_node(p_node uuid) returns void
language plpgsql volatile
as $$
begin
  delete from hwqueue.eligibility e where e.node_id = p_node;
  update hwqueue.node_state s
  set classes_seen = '0', classes_unseen = '{}', judged_xid = null, judged_class = null,
    pinned_queues = '{}', moved_xid = pg_current_xact_id()
  where s.node_id = p_node;
end
$$;

-- Computes again what the node's claims have allocated, as it may have other resources now, and its
-- usage. Devices and cores that are gone do not count. Claims of older epochs that were kept get the new
-- epoch. With p_forget it also drops what was judged for the node itself. Returns the leases that have
-- requirements during execution.
-- Locks: the caller holds node_state; the claims.
create or replace function hwqueue.recount_node(p_node hwqueue.node, p_epoch bigint, p_now timestamptz,
  p_forget boolean) returns uuid[]
language plpgsql volatile
as $$
declare
  v_load hwqueue.node_load;
  v_bound uuid[];
begin
  if p_forget then
    perform hwqueue.forget_node(p_node.node_id);
  end if;
  with counted as (
    update hwqueue.claim c
    set node_epoch = p_epoch, assignment = hwqueue.claim_assignment(k, p_node, c.assignment -> 'gpus',
        coalesce(c.assignment, '{}') - array['cpu_milli', 'memory_mib', 'custom', 'gpu_milli', 'gpus']
        -- one granted before the node declared cores is pinned to none and may run on any: it takes a
        -- thousandth of each core, so that no core is allocated whole
        || case when p_node.core_ids <> '{}' and (c.assignment ? 'cores') is distinct from true
          then '{"unpinned": true}'::jsonb else '{}' end)
    from hwqueue.placement_class k
    where c.node_id = p_node.node_id and k.class_id = c.class_id
    returning c.lease_id, hwqueue.binds_during_execution(k) as is_bound
  )
  select array_agg(u.lease_id) filter (where u.is_bound) into v_bound from counted u;
  perform hwqueue.recount_claims(p_node.node_id, null);
  update hwqueue.node_state s
  set node_epoch = p_epoch, seen_at = p_now
  where s.node_id = p_node.node_id;
  v_load := hwqueue.node_usage_of_claims(p_node);
  select u.version, u.updates into v_load.version, v_load.updates from hwqueue.read_load(p_node.node_id) u;
  perform hwqueue.write_load(v_load);
  return v_bound;
end
$$;
