-- Needs -D claim_token=0 -D lease_id=none: what the first call has to settle.
select lease_id, claim_token, params from hwqueue.settle_and_claim(
  p_node => lpad(:client_id::text, 32, '0')::uuid, p_epoch => 1, p_settle => '[]', p_queues => array['bench'], p_qty => 1,
  p_completed => array_remove(array[nullif(:lease_id::text, 'none')::uuid], null),
  p_completed_tokens => array_remove(array[nullif(:claim_token::bigint, 0)], null)) \gset
