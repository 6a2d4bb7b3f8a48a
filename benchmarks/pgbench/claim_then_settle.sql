select lease_id, claim_token, params from hwqueue.claim_task(
  p_queues => array['bench'], p_node => lpad(:client_id::text, 32, '0')::uuid, p_epoch => 1, p_qty => 1) \gset
select hwqueue.complete_lease(p_lease => :lease_id, p_token => :claim_token);
