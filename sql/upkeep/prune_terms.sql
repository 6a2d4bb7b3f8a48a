-- Pruning affinity terms, their counters, and what is cached of the fleet for them.
--
-- upkeep/parts.prune_part calls prune_terms. A counter that is zero may not always be deleted.
-- A max_skew counter records when it was last lowered (dropped_xid), and a session with a floor cached
-- before that must find it there (cached_skew_reason). So a zero counter is deleted only when every
-- cached floor of its term was built later than that, and no open transaction holds an older floor. A
-- session that reads floors has locked the table of floors before, and keeps that lock to the end.

-- Deletes terms that no class uses any more, with their counters, and counters that are zero. Classes
-- that only such a term selected are claimed without the check again. Merges the rows that claims added
-- beside a counter that was held. Returns the number of terms. Misses a row that a claim wrote between the
-- snapshot and the lock; the next call takes it.
-- Locks: the installation's row, skip locked, which new terms wait for, too; profile rows, floors and
-- counters, skip locked.
create or replace function hwqueue.prune_terms(p_limit int) returns int
language plpgsql volatile
as $$
declare
  v_terms bigint[];
  v_classes bigint[];
  v_profiles bigint[];
  v_before pg_snapshot;
  v_is_known boolean;
begin
  perform 1 from hwqueue.installation s for no key update skip locked;
  if not found then
    return 0;
  end if;
  v_terms := array(
    select t.term_id from hwqueue.affinity_term t
    where not exists (
      select 1 from hwqueue.placement_class c
      where c.terms <> '[]' and c.terms @> jsonb_build_array(jsonb_build_object('digest', t.digest)))
    order by t.term_id limit p_limit);
  v_classes := array(
    select distinct m.class_id from hwqueue.class_term m where m.term_id = any (v_terms) and not m.is_own);
  delete from hwqueue.class_term m where m.term_id = any (v_terms);
  -- claims need not check these classes any more: noted in the profiles that can be locked
  v_profiles := array(
    select p.profile_id from hwqueue.profile p
    where p.profile_id in (
      select e.profile_id from hwqueue.eligibility e
      where e.class_id = any (v_classes) and e.is_checked)
    for no key update skip locked);
  update hwqueue.eligibility e set is_checked = false
  from hwqueue.placement_class c
  where e.profile_id = any (v_profiles) and e.class_id = any (v_classes) and e.is_checked
    and c.class_id = e.class_id and not coalesce(hwqueue.must_be_checked(c, e.affinity), true);
  update hwqueue.profile_queue s
  set checked = array(
    select e.class_id from hwqueue.eligibility e
    where e.profile_id = s.profile_id and e.queue_id = s.queue_id and e.is_checked and e.gpu_count = 0
      and e.custom is null limit 201)
  where s.profile_id = any (v_profiles);
  delete from hwqueue.affinity_term t where t.term_id = any (v_terms);
  -- floors of terms that are gone, and those that are too old to be used (cached_skew_reason)
  delete from hwqueue.spread_floor f where f.ctid = any (array(
    select o.ctid from hwqueue.spread_floor o where (hwqueue.is_old_floor(o.next_xid) or not exists (
      select 1 from hwqueue.affinity_term t where t.term_id = o.term_id))
      limit p_limit for update skip locked));
  -- a session that reads floors from here on sees what was lowered by then
  v_before := pg_current_snapshot();
  v_is_known := not exists (  -- no open transaction has read or written floors: each locks the table
    select from pg_locks l
    where l.locktype = 'relation' and l.relation = 'hwqueue.spread_floor'::regclass
      and l.mode = 'RowExclusiveLock' and l.granted
      and l.pid is distinct from pg_backend_pid()
      and l.database = (select d.oid from pg_database d where d.datname = current_database()));
  update hwqueue.term_counter k set dropped_xid = '0' where k.ctid = any (array(  -- lowered on another server
    select o.ctid from hwqueue.term_counter o
    where o.dropped_xid > pg_snapshot_xmax(pg_current_snapshot())
      and o.dropped_xid is distinct from pg_current_xact_id_if_assigned()
    limit p_limit for update skip locked));
  delete from hwqueue.term_counter k where k.ctid = any (array(
    select o.ctid from hwqueue.term_counter o
    where (o.leases = 0 and o.holders = 0 and (o.dropped_xid is null or v_is_known
          and o.dropped_xid <> pg_current_xact_id() and pg_visible_in_snapshot(o.dropped_xid, v_before)
          and not exists (  -- a cached floor that was built before the counter was lowered
            select from hwqueue.spread_floor f
            where f.term_id = o.term_id and hwqueue.is_unseen(o.dropped_xid, f.unseen, f.next_xid)))
      or not exists (select 1 from hwqueue.affinity_term t where t.term_id = o.term_id))
    limit p_limit for update skip locked));
  with parted as (
    select o.term_id, o.place from hwqueue.term_counter o
    group by o.term_id, o.place having count(*) > 1 limit p_limit
  ), held as (
    select o.ctid as row_ctid from parted p
    join hwqueue.term_counter o on o.term_id = p.term_id and o.place = p.place for update of o skip locked
  ), gone as (
    delete from hwqueue.term_counter k where k.ctid = any (array(select h.row_ctid from held h)) returning k.*
  )
  insert into hwqueue.term_counter (term_id, place, leases, holders, updates, dropped_xid)
  select g.term_id, g.place, sum(g.leases), sum(g.holders), 0,
         -- the highest of these ids need not be the last to become visible
         case when bool_or(g.dropped_xid is not null) then pg_current_xact_id() end
  from gone g group by g.term_id, g.place;
  return cardinality(v_terms);
end
$$;
