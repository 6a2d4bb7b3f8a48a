-- Changes the policy keys of a service that are given and keeps the rest; null takes one back. failure_domain: what "the same place" means
-- to leases that require or avoid the service, node, rack or label:KEY; else the queue's. anti_affinity_services: services that its
-- leases keep away from, its own id included if they are to keep away from each other. A service need not have leases yet.
-- What runs already stays; from the commit on, leases that the change concerns wait until what runs has been counted.
-- Locks: the service's row; its classes; profile rows; the shard's row. Raises: QHA01, QHA02, QHA03. Idempotent: yes. Gives the whole policy.
create or replace function hwqueue.set_service_policy(p_service uuid, p_policy jsonb, p_shard int default 0) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_policy jsonb;
  v_before jsonb;
  v_domain text;
  v_away_from uuid[];
begin
  perform hwqueue.require_read_committed();
  v_before := hwqueue.service_policy(p_service, p_shard);
  perform hwqueue.check_shard(p_shard);
  v_policy := hwqueue.check_object(p_policy, array['failure_domain', 'anti_affinity_services'], 'policy');
  v_domain := hwqueue.json_domain(v_policy -> 'failure_domain', 'policy.failure_domain');
  v_away_from := hwqueue.json_uuids(v_policy -> 'anti_affinity_services', 'policy.anti_affinity_services');
  if not coalesce((select bool_and(hwqueue.is_own_service(a, p_shard)) from unnest(v_away_from) a), true) then
    perform hwqueue.refuse_foreign('policy.anti_affinity_services names services that are not its', 'policy.anti_affinity_services',
      'name services that leases of the tenant have');
  end if;
  insert into hwqueue.service as s (shard_id, service_id, failure_domain, away_from)
  values (p_shard, p_service, v_domain, v_away_from)
  on conflict (shard_id, service_id) do update
  set failure_domain = case when v_policy ? 'failure_domain' then excluded.failure_domain else s.failure_domain end,
      away_from = case when v_policy ? 'anti_affinity_services' then excluded.away_from else s.away_from end;
  perform hwqueue.rebind_classes(array(
    select c.class_id from hwqueue.placement_class c where c.shard_id = p_shard and c.service_id = p_service), true, p_shard);
  perform hwqueue.move_terms(p_shard);
  v_policy := hwqueue.service_policy(p_service, p_shard);
  perform hwqueue.note_policy('service_policy_set', format('service %s', p_service), v_before, v_policy, null, p_shard);
  return v_policy;
end
$$;
