-- Placement classes that have leases ready and that some node matches, but none could take now: they wait for others to end.
create or replace view hwqueue.pending_contended as
select r.* from hwqueue.shard s cross join lateral hwqueue.pending_reasons(p_kind => 'contended', p_limit => null, p_shard => s.shard_id) r;
