-- Placement classes that have leases ready and that no live, uncordoned node could ever run, whatever else runs: something has to be changed.
create or replace view hwqueue.pending_no_match as
select r.* from hwqueue.shard s cross join lateral hwqueue.pending_reasons(p_kind => 'no_match', p_limit => null, p_shard => s.shard_id) r;
