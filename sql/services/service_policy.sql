-- What operators said of a service: {"failure_domain", "anti_affinity_services"}; null and [] where they said nothing.
-- Locks: none. Raises: QHA01, QHA03. Idempotent: yes.
create or replace function hwqueue.service_policy(p_service uuid, p_shard int default 0) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_service hwqueue.service;
begin
  if p_service is null then
    perform hwqueue.refuse('QHA01', 'p_service must not be null', jsonb_build_object('field', 'p_service'),
      'give the id that leases have as service_id');
  end if;
  if not hwqueue.is_own_service(p_service, p_shard) then
    perform hwqueue.refuse_foreign(format('service %s is not its', p_service), 'p_service', 'name services that leases of the tenant have');
  end if;
  select s.* into v_service from hwqueue.service s where s.shard_id = p_shard and s.service_id = p_service;
  return jsonb_build_object('failure_domain', v_service.failure_domain,
    'anti_affinity_services', to_jsonb(coalesce(v_service.away_from, '{}')));
end
$$;
