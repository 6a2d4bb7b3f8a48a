-- Removes retired classes that no lease refers to, once nobody can come any more who found them: step 3 of stamp_retired. A class
-- that a late spawn used after all stays until that lease is gone; one that a lease runs as, although it has a class of its own by now
-- (give_target), until it has run.
-- Locks: class rows, skip locked.
create or replace function hwqueue.prune_classes(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_oldest_running xid8 := pg_snapshot_xmin(pg_current_snapshot());
begin
  return hwqueue.delete_classes(array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.retired_at is not null and c.retired_before <= v_oldest_running
      and not exists (select 1 from hwqueue.lease l where l.shard_id = p_shard and l.class_id = c.class_id)
      -- all of them at once: few classes are retired, and claims have no index by class
      and c.class_id <> all (array(select distinct u.class_id from hwqueue.claim u where u.shard_id = p_shard))
    order by c.retired_at limit p_limit for update of c skip locked), p_limit, p_shard);
end
$$;

-- Deletes classes with what was judged and estimated of them, up to the one with which p_limit such rows have gone. Gives their number. What is
-- remembered of their patience may be held by a claim: prune_fleets removes it.
-- A class stays as long as another session holds what was judged of it.
-- Locks: the caller holds the class rows; what was judged, skip locked.
create or replace function hwqueue.delete_classes(p_class_ids bigint[], p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_class_id bigint;
  v_deleted int := 0;
  v_rows int;
  v_hanging int := 0;
begin
  foreach v_class_id in array p_class_ids loop
    -- skip locked: a registration or a step for terms, in a transaction that may last, may have written them
    delete from hwqueue.profile_eligibility e where e.ctid = any (array(
      select o.ctid from hwqueue.profile_eligibility o where o.shard_id = p_shard and o.class_id = v_class_id for update skip locked));
    get diagnostics v_rows = row_count;
    v_hanging := v_hanging + v_rows;
    delete from hwqueue.node_eligibility e where e.ctid = any (array(
      select o.ctid from hwqueue.node_eligibility o where o.shard_id = p_shard and o.class_id = v_class_id for update skip locked));
    get diagnostics v_rows = row_count;
    v_hanging := v_hanging + v_rows;
    continue when exists (select 1 from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.class_id = v_class_id)
               or exists (select 1 from hwqueue.node_eligibility e where e.shard_id = p_shard and e.class_id = v_class_id);
    delete from hwqueue.class_fleet f where f.ctid = any (array(
      select o.ctid from hwqueue.class_fleet o where o.shard_id = p_shard and o.class_id = v_class_id for update skip locked));
    continue when exists (select 1 from hwqueue.class_fleet f where f.shard_id = p_shard and f.class_id = v_class_id);
    delete from hwqueue.class_nodes m where m.shard_id = p_shard and m.class_id = v_class_id;
    delete from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = v_class_id;
    delete from hwqueue.class_rule r where r.shard_id = p_shard and r.class_id = v_class_id;
    delete from hwqueue.low_water w using hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id = v_class_id and w.shard_id = p_shard and w.queue_id = c.queue_id and w.class_id = v_class_id;
    delete from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_class_id;
    v_deleted := v_deleted + 1;
    exit when v_hanging >= p_limit;
  end loop;
  return v_deleted;
end
$$;
