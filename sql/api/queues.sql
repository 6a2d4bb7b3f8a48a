-- Public: queues, and the policies of queues and services.
--
-- Admins call these functions; workers call wake_payloads. A queue's row is the only switch: claims and
-- spawns read paused_at and dropped_at from it. A dropped queue keeps its row until prune has deleted
-- what it held, so a name that is used again gets another queue_id.

-- Creates a queue. Of one that exists, only the keys in p_policy are compared, and nothing is changed: so
-- deployments can call it every time, also after an operator has set other keys.
--
-- With retain_completed 0 a lease is deleted when it completes, with its result. A lease with an
-- idempotency key stays until prune deletes it.
-- Locks: the queue's unique name. Raises: QHA01, QHA03, QHM01, QHM03, QHQ02 if the queue exists and differs
-- in p_policy.
create or replace function hwqueue.create_queue(p_queue text, p_policy jsonb default '{}') returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.queue;
  v_existing hwqueue.queue;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_queue, 'queue');
  v_row := hwqueue.apply_policy(hwqueue.default_policy(), coalesce(p_policy, '{}'));
  v_row.queue_id := nextval('hwqueue.queue_queue_id_seq');
  v_row.name := p_queue;
  v_row.created_at := hwqueue.clock();
  perform l.lanes from hwqueue.read_limits(null, v_row.limits, '') l;  -- refuses what no lease could have
  insert into hwqueue.queue overriding system value select v_row.* on conflict do nothing;
  if found then
    insert into hwqueue.queue_signal (queue_id) values (v_row.queue_id);
    perform hwqueue.write_first_low_water(v_row.queue_id, 0, 0);
    perform hwqueue.note_event('queue_created', format('queue %s is created', p_queue),
        nullif(p_policy, '{}'), p_queue => p_queue);
    return;
  end if;
  v_existing := hwqueue.find_queue(p_queue);
  v_row := hwqueue.apply_policy(v_existing, coalesce(p_policy, '{}'));
  if exists (select 1 from jsonb_object_keys(p_policy) k (key)
             where hwqueue.queue_policy(v_row) -> k.key <> hwqueue.queue_policy(v_existing) -> k.key) then
    perform hwqueue.refuse('QHQ02', format('queue %s exists with another policy', p_queue),
      jsonb_build_object('queue', p_queue, 'policy', hwqueue.queue_policy(v_existing)),
      'change it with set_queue_policy, or create it without a policy');
  end if;
end
$$;

-- Changes the policy keys in p_policy, keeps the others, and returns the whole policy. Leases already
-- spawned keep their rank and their limits. A running lease stays or is deleted at completion as
-- retain_completed said when it was claimed.
-- Locks: the queue's row; when the failure domain changes, the installation's row. Raises: QHQ01, QHA01,
-- QHA03, QHM01, QHM03.
create or replace function hwqueue.set_queue_policy(p_queue text, p_policy jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.queue;
  v_before jsonb;
begin
  perform hwqueue.require_all_tenants();
  perform 1 from hwqueue.queue q where q.name = p_queue and q.dropped_at is null for update;
  v_row := hwqueue.find_queue(p_queue);
  v_before := hwqueue.queue_policy(v_row);
  v_row := hwqueue.apply_policy(v_row, coalesce(p_policy, '{}'));
  perform l.lanes from hwqueue.read_limits(null, v_row.limits, '') l;
  update hwqueue.queue q
  set claim_timeout = v_row.claim_timeout, poll_interval = v_row.poll_interval,
      patience = v_row.patience, max_attempts = v_row.max_attempts, retry = v_row.retry,
      ageing_step = v_row.ageing_step, failure_domain = v_row.failure_domain, earmarks = v_row.earmarks,
      everywhere_tenants = v_row.everywhere_tenants, everywhere_limit = v_row.everywhere_limit,
      limits = v_row.limits,
      max_params_bytes = v_row.max_params_bytes, max_result_bytes = v_row.max_result_bytes,
      retain_completed = v_row.retain_completed, retain_failed = v_row.retain_failed, tuning = v_row.tuning,
      preempt = v_row.preempt, preemptible = v_row.preemptible
  where q.queue_id = v_row.queue_id;
  perform hwqueue.move_terms();
  perform hwqueue.note_policy('queue_policy_set', format('queue %s', p_queue), v_before,
      hwqueue.queue_policy(v_row), p_queue);
  return hwqueue.queue_policy(v_row);
end
$$;

-- Stops claims from a queue. Spawns and running leases continue. resume_queue undoes it.
-- Locks: the queue's row. Raises: QHQ01, QHA03.
create or replace function hwqueue.pause_queue(p_queue text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants(), hwqueue.find_queue(p_queue);
  update hwqueue.queue q set paused_at = hwqueue.clock()
  where q.name = p_queue and q.dropped_at is null and q.paused_at is null;
  perform hwqueue.note_event('queue_paused', format('queue %s is paused', p_queue), p_queue => p_queue)
  where found;
end
$$;

-- Allows claims from a paused queue again.
-- Locks: the queue's row; queue_signal, skip locked. Raises: QHQ01, QHA03.
-- Wakes: waiting workers.
create or replace function hwqueue.resume_queue(p_queue text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants(), hwqueue.find_queue(p_queue);
  update hwqueue.queue q set paused_at = null
  where q.name = p_queue and q.dropped_at is null and q.paused_at is not null;
  perform hwqueue.note_event('queue_resumed', format('queue %s goes on', p_queue), p_queue => p_queue)
  where found;
  perform hwqueue.wake_workers(hwqueue.find_queue(p_queue));
end
$$;

-- Drops a queue. Its name is free at once, and nothing is spawned into it or claimed from it any more.
-- prune deletes what it held.
--
-- Refused while a lease waits or runs in the queue, unless p_force is true. Then the next reap asks the
-- running leases to stop, and the waiting ones are lost. A spawn that is not committed yet is lost with
-- the queue, so stop its producers first. Not idempotent: a second call finds no queue.
-- Locks: the queue's row. Raises: QHQ01, QHQ03 if it is not empty, QHA02, QHA03.
create or replace function hwqueue.drop_queue(p_queue text, p_force boolean default false) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue;
begin
  perform hwqueue.require_all_tenants(), hwqueue.require_read_committed();
  perform 1 from hwqueue.queue q where q.name = p_queue and q.dropped_at is null for no key update;
  v_queue := hwqueue.find_queue(p_queue);
  if not coalesce(p_force, false) and (
       exists (select 1 from hwqueue.ready r where r.queue_id = v_queue.queue_id)
    or exists (select 1 from hwqueue.scheduled s where s.queue_id = v_queue.queue_id)
    or exists (select 1 from hwqueue.claim c where c.queue_id = v_queue.queue_id)) then
    perform hwqueue.refuse('QHQ03', format('queue %s is not empty', p_queue),
        jsonb_build_object('queue', p_queue),
      'wait until it is, or drop it with p_force => true, which loses the leases');
  end if;
  update hwqueue.queue q set dropped_at = hwqueue.clock() where q.queue_id = v_queue.queue_id;
  perform hwqueue.note_event('queue_dropped', format('queue %s is dropped', p_queue),
    jsonb_build_object('claims', (select count(*) from hwqueue.claim c where c.queue_id = v_queue.queue_id)),
    p_queue => p_queue);
end
$$;

-- Returns every queue with its policy and what waits and runs in it.
-- Raises: QHA03.
create or replace function hwqueue.list_queues()
returns table (queue text, paused boolean, pending bigint, scheduled bigint, claimed bigint, policy jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select q.name, q.paused_at is not null,
         (select count(*) from hwqueue.ready r where r.queue_id = q.queue_id),
         (select count(*) from hwqueue.scheduled s where s.queue_id = q.queue_id),
         (select count(*) from hwqueue.claim c where c.queue_id = q.queue_id), hwqueue.queue_policy(q)
  from hwqueue.queue q
  where q.dropped_at is null
  order by q.name
$$;

-- Returns the payload by which notifications on channel hwqueue name each of these queues, each queue
-- once. A queue need not exist yet. A listener compares what it receives with them.
-- Raises: QHA01.
create or replace function hwqueue.wake_payloads(p_queues text[]) returns table (queue text, payload text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.check_queue_names(p_queues);
  select distinct q.name, hwqueue.wake_payload(s.wake_key, q.name) from unnest(p_queues) q(name)
  cross join hwqueue.installation s
$$;

-- Returns the policy of a service: {"failure_domain", "anti_affinity_services"}; null and [] where none
-- is set.
-- Raises: QHA01, QHA03.
create or replace function hwqueue.service_policy(p_service uuid) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_service hwqueue.service;
begin
  if p_service is null then
    perform hwqueue.refuse_field('QHA01', 'p_service', 'must not be null',
      'give the id that leases have as service_id');
  end if;
  if not hwqueue.is_own_service(p_service) then
    perform hwqueue.refuse_foreign(format('service %s is not its', p_service), 'p_service',
        'name services that leases of the tenant have');
  end if;
  select s.* into v_service from hwqueue.service s where s.service_id = p_service;
  return jsonb_build_object('failure_domain', v_service.failure_domain,
    'anti_affinity_services', to_jsonb(coalesce(v_service.away_from, '{}')));
end
$$;

-- Changes the policy keys in p_policy, keeps the others, and returns the whole policy. A null value
-- resets a key. A service need not have leases yet.
--
-- failure_domain: what "the same place" means to leases that require or avoid the service: node, rack or
-- label:KEY; without it, the queue's. anti_affinity_services: services that its leases keep away from;
-- include its own id to keep its leases away from each other.
--
-- Running leases stay where they are. After the commit, the leases that the change concerns are not
-- claimed until running leases have been counted for it.
-- Locks: the service's row; its classes; profile rows; the installation's row. Raises: QHA01, QHA02, QHA03.
create or replace function hwqueue.set_service_policy(p_service uuid, p_policy jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_policy jsonb;
  v_before jsonb;
  v_domain text;
  v_away_from uuid[];
begin
  perform hwqueue.require_read_committed(), hwqueue.require_right('operate');
  v_before := hwqueue.service_policy(p_service);
  v_policy := hwqueue.check_object(p_policy, array['failure_domain', 'anti_affinity_services'], 'policy');
  v_domain := hwqueue.json_domain(v_policy -> 'failure_domain', 'policy.failure_domain');
  v_away_from := hwqueue.json_uuids(v_policy -> 'anti_affinity_services', 'policy.anti_affinity_services');
  if not coalesce((select bool_and(hwqueue.is_own_service(a)) from unnest(v_away_from) a), true) then
    perform hwqueue.refuse_foreign('policy.anti_affinity_services names services that are not its',
        'policy.anti_affinity_services',
      'name services that leases of the tenant have');
  end if;
  insert into hwqueue.service as s (service_id, failure_domain, away_from)
  values (p_service, v_domain, v_away_from)
  on conflict (service_id) do update
  set failure_domain = case when v_policy ? 'failure_domain'
        then excluded.failure_domain else s.failure_domain end,
      away_from = case when v_policy ? 'anti_affinity_services' then excluded.away_from else s.away_from end;
  perform hwqueue.rebind_classes(array(
    select c.class_id from hwqueue.placement_class c where c.service_id = p_service), true);
  perform hwqueue.move_terms();
  v_policy := hwqueue.service_policy(p_service);
  perform hwqueue.note_policy('service_policy_set', format('service %s', p_service), v_before, v_policy,
      null);
  return v_policy;
end
$$;
