-- Which classes a profile, or a node, has not been judged for.
--
-- How far a profile (and for classes that name nodes, resources or trust domains: a node) has come is what its last judge has seen
-- (common/seen.sql): classes_unseen and classes_seen, the latter being its next_xid. A batch may end amid the classes of one transaction:
-- those of judged_xid up to judged_class are judged, too. That is a sound place to stop, since all of them are there once it has ended.
-- As long as it runs only its own calls judge them, and it may still make older classes candidates (is_woken): then judged_class is
-- negative, and says so to later calls of the transaction alone. When it has ended, all its classes are judged again.

-- Whether there are classes that have not been judged by whoever has seen this. Ordered, so that each half is one probe of the index:
-- mostly there is nothing, and a scan would read every class to find that out.
create or replace function hwqueue.has_new_classes(p_seen xid8, p_unseen xid8[], p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return (select c.class_id from hwqueue.placement_class c
          where c.shard_id = p_shard and c.created_xid >= p_seen order by c.created_xid limit 1) is not null
      or (select x.class_id from unnest(p_unseen) u(xid)
          cross join lateral (
            select c.class_id from hwqueue.placement_class c
            where c.shard_id = p_shard and c.created_xid >= u.xid and c.created_xid <= u.xid order by c.created_xid limit 1) x
          limit 1) is not null;
end
$$;

-- Of transactions whose classes were unseen, those whose classes still are: they run, or have ended and left classes. A busy moment leaves
-- many ids behind, and each costs claims an index probe, so whoever writes the row anyway writes them shorter.
create or replace function hwqueue.still_unseen(p_unseen xid8[], p_shard int) returns xid8[]
language plpgsql stable
as $$
begin
  return case when p_unseen = '{}' then p_unseen else array(
    select u from unnest(p_unseen) u
    where not hwqueue.has_ended(u)
       or exists (select 1 from hwqueue.placement_class c where c.shard_id = p_shard and c.created_xid = u)) end;
end
$$;

-- The next classes to judge, of those that hang on one of the anchors, and what has been judged once they are.
-- A class that is no candidate yet (in_force) is passed over: it gets a new created_xid when it becomes one.
-- Read in one statement with what it sees, so a class of the batch is of a transaction that has ended, or of the caller's. The caller's own
-- come last: they are unseen by later calls as long as it runs, and must not keep those from reaching others. Those that it made candidates
-- may be older than the last one judged, and are judged by each of its calls.
-- Claims forbid bitmap scans; this is what the GIN index on anchors is for.
create or replace function hwqueue.next_classes(p_from hwqueue.judged, p_anchors text[], p_pinned boolean, p_limit int, p_shard int,
                                                out batch bigint[], out judged hwqueue.judged, out more boolean)
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_own xid8 := pg_current_xact_id_if_assigned();
  v_from hwqueue.judged := case when hwqueue.valid_mark(p_from.next_xid) = p_from.next_xid then p_from
                                      else row('0', '{}', null, null)::hwqueue.judged end;
  v_now record;
  v_own_judged bigint := case when v_from.xid = v_own then -v_from.class_id end;
  v_last xid8;
begin
  select s.unseen, s.next_xid, b.classes, b.xids, b.found into v_now
  from hwqueue.seen_now() s
  cross join lateral (
    -- as many as the budget has room for, the last one may go beyond it
    select coalesce(array_agg(k.class_id order by k.place) filter (where k.spent < hwqueue.judge_budget()), '{}') as classes,
           array_agg(k.created_xid order by k.place) filter (where k.spent < hwqueue.judge_budget()) as xids, count(*) as found
    from (
      select u.created_xid, u.class_id, row_number() over o as place, sum(u.cost) over o - u.cost as spent
      from (
        select false as is_own, x.created_xid, x.class_id, x.cost
        from unnest(v_from.unseen) r(xid)
        cross join lateral (
          select c.created_xid, c.class_id, c.cost from hwqueue.placement_class c
          where c.shard_id = p_shard and c.created_xid = r.xid and c.class_id > case when r.xid = v_from.xid then v_from.class_id else -1 end
            and c.is_pinned = p_pinned and c.anchors && p_anchors
            and not c.waits and (c.terms = '[]' or hwqueue.in_force(c.terms, p_shard))
          order by c.class_id limit p_limit) x
        where r.xid < v_from.next_xid and r.xid is distinct from v_own
        union all
        (select false, c.created_xid, c.class_id, c.cost from hwqueue.placement_class c
         where c.shard_id = p_shard
           and (c.created_xid, c.class_id) > (v_from.next_xid, case when v_from.next_xid = v_from.xid then v_from.class_id else -1 end)
           and c.created_xid is distinct from v_own and c.is_pinned = p_pinned and c.anchors && p_anchors
           and not c.waits and (c.terms = '[]' or hwqueue.in_force(c.terms, p_shard))
         order by c.created_xid, c.class_id limit p_limit)
        union all
        (select true, c.created_xid, c.class_id, c.cost from hwqueue.placement_class c
         where c.shard_id = p_shard and c.created_xid = v_own
           and (c.class_id > coalesce(v_own_judged, -1) or c.is_woken)
           and c.is_pinned = p_pinned and c.anchors && p_anchors
           and not c.waits and (c.terms = '[]' or hwqueue.in_force(c.terms, p_shard))
         order by c.class_id limit p_limit)
      ) u window o as (order by u.is_own, u.created_xid, u.class_id) order by place limit p_limit) k) b;
  batch := v_now.classes;
  more := v_now.found = p_limit or cardinality(batch) < v_now.found;
  v_last := v_now.xids[cardinality(batch)];
  judged := row(v_now.next_xid, v_now.unseen, v_last, batch[cardinality(batch)])::hwqueue.judged;
  if more and v_last is distinct from v_own then  -- what comes behind the last of them is unseen
    judged.next_xid := greatest(v_last, v_from.next_xid);
    judged.unseen := array(
      select u from unnest(v_now.unseen || v_from.unseen) u
      where u < judged.next_xid and (u = any (v_now.unseen) or u >= v_last) group by u);
  elsif v_last is distinct from v_own then  -- all are judged
    judged.xid := case when v_own_judged is not null then v_own end;
    judged.class_id := -v_own_judged;
  else
    judged.class_id := -greatest(judged.class_id, v_own_judged);
  end if;
end
$$;
