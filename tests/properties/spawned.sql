-- What is written for each of these leases, without ids: they differ from one spawn to the next, and so do positions, of which
-- only the order counts. :leases is an array of ids.
select
  to_jsonb(l) - array['lease_id', 'class_id', 'position'] as lease,
  to_jsonb(r) - array['lease_id', 'class_id', 'position'] as ready,
  rank() over (order by r.position) as place,
  r.position is not distinct from nullif(l.position, 0) as same_position,
  to_jsonb(s) - array['lease_id', 'class_id'] as scheduled,
  to_jsonb(i) - 'lease_id' as idempotency,
  to_jsonb(c) - array['class_id', 'created_xid'] as placement_class,
  coalesce(r.class_id, s.class_id) = l.class_id as same_class
from unnest(%(leases)s::uuid[]) with ordinality as asked(lease_id, ordinal)
join hwqueue.lease l on l.lease_id = asked.lease_id
join hwqueue.placement_class c on c.class_id = l.class_id
left join hwqueue.ready r on r.lease_id = l.lease_id
left join hwqueue.scheduled s on s.lease_id = l.lease_id
left join hwqueue.idempotency i on i.lease_id = l.lease_id
order by asked.ordinal
