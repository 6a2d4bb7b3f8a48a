-- Needs -D claim_token=0 -D lease_id=none: what the first call has to settle.
select lease_id, claim_token, params from hwqueue.settle_and_claim(
  p_node => lpad(:client_id::text, 32, '0')::uuid, p_epoch => 1,
  p_settle => case when :claim_token::bigint = 0 then '[]'
                   else jsonb_build_array(jsonb_build_object(
                     'lease_id', :lease_id::text, 'claim_token', :claim_token::bigint, 'outcome', 'complete')) end,
  p_queues => array['bench'], p_qty => 1)
where kind = 'claimed' \gset
