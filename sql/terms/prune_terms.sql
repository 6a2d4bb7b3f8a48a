-- Removes terms that no class asks any more, with their counts, and counts that have come to nothing; what they selected is claimed as
-- before they came. Gives the number of terms.
-- Locks: the shard's row, skip locked: new terms wait for it, too; profile rows, floors and counts, skip locked.
create or replace function hwqueue.prune_terms(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_terms bigint[];
  v_classes bigint[];
begin
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if not found then
    return 0;
  end if;
  v_terms := array(
    select t.term_id from hwqueue.term t
    where t.shard_id = p_shard and not exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.terms <> '[]' and c.terms @> jsonb_build_array(jsonb_build_object('digest', t.digest)))
    order by t.term_id limit p_limit);
  v_classes := array(select distinct m.class_id from hwqueue.class_term m where m.shard_id = p_shard and m.term_id = any (v_terms));
  delete from hwqueue.class_term m where m.shard_id = p_shard and m.term_id = any (v_terms);
  perform hwqueue.unmark_checked(v_classes, p_shard);
  delete from hwqueue.term t where t.shard_id = p_shard and t.term_id = any (v_terms);
  -- floors of terms that are gone, and those that are too old to be used (level_reason)
  delete from hwqueue.spread_floor f where f.ctid = any (array(
    select o.ctid from hwqueue.spread_floor o
    where o.shard_id = p_shard and (hwqueue.is_old_floor(o.next_xid) or not exists (
      select 1 from hwqueue.term t where t.shard_id = p_shard and t.term_id = o.term_id)) limit p_limit for update skip locked));
  perform hwqueue.prune_counts(p_limit, p_shard);
  return cardinality(v_terms);
end
$$;

-- Takes the marks of classes away that need not be checked at the claim any more, in profiles that nobody holds.
-- Locks: profile rows, skip locked; the caller holds the shard's row, so that no term is told meanwhile.
create or replace function hwqueue.unmark_checked(p_class_ids bigint[], p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_locked bigint[] := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id in (
      select e.profile_id from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids) and e.is_checked)
    for no key update skip locked);
begin
  update hwqueue.profile_eligibility e set is_checked = false
  from hwqueue.placement_class c
  where e.shard_id = p_shard and e.profile_id = any (v_locked) and e.class_id = any (p_class_ids) and e.is_checked
    and c.shard_id = p_shard and c.class_id = e.class_id
    and not coalesce(hwqueue.must_be_checked(c, e.affinity, p_shard), true);
  update hwqueue.profile_queue s
  set checked = array(
    select e.class_id from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.profile_id = s.profile_id and e.queue_id = s.queue_id and e.is_checked and e.gpu_count = 0
      and e.custom is null limit 201)
  where s.shard_id = p_shard and s.profile_id = any (v_locked);
end
$$;

-- Removes what is remembered of the fleet, for max_skew and for patience, and nobody has asked for in an hour: nobody may ask again; and what is
-- remembered for classes that are gone.
-- Locks: those rows, skip locked.
create or replace function hwqueue.prune_fleets(p_limit int, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
begin
  delete from hwqueue.spread_fleet f where f.ctid = any (array(
    select o.ctid from hwqueue.spread_fleet o
    where o.shard_id = p_shard and o.live_until < p_now - interval '1 hour' limit p_limit for update skip locked));
  delete from hwqueue.class_range r where r.ctid = any (array(
    select o.ctid from hwqueue.class_range o
    where o.shard_id = p_shard and (o.live_until < p_now - interval '1 hour' or not exists (
      select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = o.class_id)) limit p_limit for update skip locked));
end
$$;
