-- A close look at the arguments of a heartbeat, for when something about them is unusual.
-- Locks: none. Raises: QHA01, naming the element. Idempotent: yes.
create or replace function hwqueue.check_heartbeat(p_claims jsonb, p_extend interval) returns void
language plpgsql immutable
as $$
declare
  v_item jsonb;
  v_field text;
begin
  if p_extend is not null then
    perform hwqueue.check_extend(p_extend);
  end if;
  if jsonb_typeof(coalesce(p_claims, '[]')) <> 'array' then
    perform hwqueue.refuse('QHA01', 'p_claims must be a JSON array', jsonb_build_object('field', 'p_claims'),
      'for example [{"lease_id": "...", "claim_token": 1}]');
  end if;
  for v_item, v_field in
    select e.value, format('p_claims[%s]', e.ordinality - 1) from jsonb_array_elements(coalesce(p_claims, '[]')) with ordinality e
  loop
    perform hwqueue.check_object(v_item, array['lease_id', 'claim_token'], v_field);
    if hwqueue.json_uuid(v_item -> 'lease_id', v_field || '.lease_id') is null
       or hwqueue.json_integer(v_item -> 'claim_token', v_field || '.claim_token', 0, 9223372036854775807) is null then
      perform hwqueue.refuse('QHA01', format('%s needs lease_id and claim_token', v_field), jsonb_build_object('field', v_field),
        'pass both as claim_task gave them');
    end if;
  end loop;
end
$$;
