-- == What calls about runs read ==

-- The parents of a step.
create index workflow_edge_to on hwqueue.workflow_edge (shard_id, workflow_id, to_no, from_no);

drop function if exists hwqueue.bind_item(jsonb, jsonb, int);  -- it has another argument
drop function if exists hwqueue.leave_releases(uuid, int[], int[], timestamptz, int);
