-- A traced step names the spans of its parents when it is released (traced_parents).
create index workflow_edge_to on hwqueue.workflow_edge (shard_id, workflow_id, to_no);
