-- Eligibility: which classes a profile or a node may run, judged once and cached.
--
-- Example: 500 equal CPU machines share one profile. A spawn writes a new GPU class. The next claim of
-- any of them judges the class once for the profile, finds that it is not eligible, and records how far
-- it has come. The other 499 read the cached answer.
--
-- Judging goes in batches, in the order of the transactions that wrote the classes: up to 500 classes that
-- cost no more than judge_budget, and up to eight batches while a claim finds nothing to run.
--
-- The invariant: a class that commits late is never missed. A profile (for classes that name nodes,
-- resources or trust domains: a node) records what its last judge had seen, as classes_unseen and
-- classes_seen, which is the judge's next_xid (base/session.sql). A batch may end amid the classes of
-- one transaction: those of judged_xid up to judged_class are judged, too. That is a sound place to
-- stop, because once the transaction has ended all its classes are there.
--
-- While the transaction runs, only its own calls judge its classes, and it may still make older classes
-- candidates (is_woken). Then judged_class is negative, and only later calls of the same transaction
-- read it. When the transaction has ended, all its classes are judged again.

-- Judges the classes that a node's profile has not seen yet, and of those that name nodes, resources or trust
-- domains the ones that the node itself has not seen, and caches which are eligible.
-- extra: what could not be cached because another session is judging for the profile, as [{"class_id",
-- "affinity"}]. more: there may be more to judge. awaits: there was something to judge, and terms are
-- not published yet.
-- Locks: the caller holds node_state; the profile row, skip locked.
create or replace function hwqueue.judge_classes(p_node hwqueue.node, p_state hwqueue.node_state,
  out extra jsonb, out more boolean, out awaits boolean)
language plpgsql volatile
as $$
declare
  c_limit constant int := 500;
  v_state hwqueue.node_state;
  v_profile hwqueue.profile;
  v_own hwqueue.profile;
  v_locked hwqueue.profile;
  v_batch bigint[];
begin
  extra := '[]'::jsonb;
  more := false;
  awaits := false;
  select p.* into v_profile from hwqueue.profile p where p.profile_id = p_node.profile_id;
  -- mostly nothing is new: one check for both
  if not hwqueue.has_new_classes(
    least(hwqueue.valid_next_xid(v_profile.classes_seen), hwqueue.valid_next_xid(p_state.classes_seen)),
    v_profile.classes_unseen || p_state.classes_unseen) then
    return;
  end if;
  awaits := hwqueue.has_unpublished_terms();
  -- read again: current_generation resets what was seen, if this is another server by now
  select s.* into v_state from hwqueue.node_state s where s.node_id = p_node.node_id;
  if hwqueue.has_new_classes(hwqueue.valid_next_xid(v_state.classes_seen), v_state.classes_unseen) then
    -- p_node.profile_id is the profile that is judged; this one is the node's own
    select p.* into v_own
    from hwqueue.node n join hwqueue.profile p on p.profile_id = n.profile_id
    where n.node_id = p_node.node_id;
    more := hwqueue.judge_next(v_own, p_node, v_state, c_limit, false) = c_limit;
  end if;
  if not hwqueue.has_new_classes(
    hwqueue.valid_next_xid(v_profile.classes_seen), v_profile.classes_unseen) then
    return;
  end if;
  select p.* into v_locked from hwqueue.profile p
  where p.profile_id = p_node.profile_id for no key update skip locked;
  if found then
    more := hwqueue.judge_next(v_locked, null, null, c_limit, false) = c_limit or more;
  else
    v_batch := (hwqueue.next_classes(
      row(v_profile.classes_seen, v_profile.classes_unseen, v_profile.judged_xid, v_profile.judged_class
        )::hwqueue.judging_progress,
      v_profile.anchors, false, c_limit)).batch;
    perform hwqueue.rebind_classes(v_batch, false), hwqueue.note_selected(v_batch);
    select coalesce(jsonb_agg(jsonb_build_object('class_id', c.class_id, 'affinity',
      hwqueue.fixed_affinity(c, v_profile.labels, v_profile.rack, null, '{}', v_profile.taints)::numeric)),
      '[]') into extra
    from unnest(v_batch) u(class_id)
    join hwqueue.placement_class c on c.class_id = u.class_id
    where hwqueue.suits(c, v_profile, null, '{}')
      and not exists (
        select 1 from hwqueue.eligibility e
        where e.profile_id = p_node.profile_id and e.queue_id = c.queue_id and e.class_id = c.class_id);
  end if;
end
$$;

-- Judges up to p_limit classes for a profile, or for a node those that name nodes, resources or trust
-- domains: p_profile is its own, and its attestations all count; a claim checks which have expired. Returns
-- how many; p_limit means that there may be more.
-- p_is_upkeep: leave a batch with a class that costs more than judge_budget to claims.
-- Locks: the caller holds the profile's row, or node_state; as rebind_classes without waiting.
create or replace function hwqueue.judge_next(p_profile hwqueue.profile, p_node hwqueue.node,
  p_state hwqueue.node_state, p_limit int, p_is_upkeep boolean) returns int
language plpgsql volatile
as $$
declare
  v_is_pinned boolean := p_node.node_id is not null;
  v_profile_id bigint := case when not v_is_pinned then p_profile.profile_id end;
  v_resources uuid[] := coalesce(p_node.resources || p_node.gpu_ids, '{}');
  v_attested text[] := coalesce(p_node.attested, '{}');
  v_gpu_ids uuid[] := coalesce(p_node.gpu_ids, '{}');
  v_gpu_parents uuid[] := coalesce(p_node.gpu_parents, '{}');
  v_from hwqueue.judging_progress := case when v_is_pinned
    then row(p_state.classes_seen, p_state.classes_unseen, p_state.judged_xid, p_state.judged_class)
    else row(p_profile.classes_seen, p_profile.classes_unseen, p_profile.judged_xid, p_profile.judged_class)
    end;
  v_next record;
begin
  select n.batch, n.judged, n.more into v_next
  from hwqueue.next_classes(v_from, case when v_is_pinned then p_node.anchors else p_profile.anchors end,
    v_is_pinned, p_limit) n;
  if v_next.batch = '{}' and v_from.xid = pg_current_xact_id_if_assigned() then
    return 0;  -- the unseen classes are the caller's own, and judged
  elsif p_is_upkeep and exists (
      select 1 from hwqueue.placement_class c
      where c.class_id = any (v_next.batch) and c.cost > hwqueue.judge_budget()) then
    return 0;
  elsif v_next.batch <> '{}' then
    perform hwqueue.rebind_classes(v_next.batch, false), hwqueue.note_selected(v_next.batch);
    insert into hwqueue.eligibility (
      profile_id, node_id, queue_id, class_id, task_name, cpu_milli, memory_mib, gpu_count, gpu_milli,
      gpu_wanted, custom, trusts, affinity, is_checked, cpu_isolation, gpu_exclusivity)
    select v_profile_id, p_node.node_id, c.queue_id, c.class_id, c.task_name,
           hwqueue.cpu_needed(c.cpu_milli, i.cpu), c.memory_mib, c.gpu_count, c.gpu_milli, c.gpu_wanted,
           c.custom, nullif(c.trusts, '{}'), a.affinity, hwqueue.must_be_checked(c, a.affinity), i.cpu,
           hwqueue.gpu_exclusivity_on(c.gpu_exclusivity, p_profile.gpu_share_mode)
    from hwqueue.placement_class c
    cross join lateral (
      select hwqueue.fixed_affinity(c, p_profile.labels, p_profile.rack, p_node.node_id, v_resources,
        p_profile.taints) as affinity offset 0) a
    cross join lateral (
      select hwqueue.cpu_isolation_on(c.cpu_isolation, p_profile.default_cpu_isolation) as cpu) i
    where c.class_id = any (v_next.batch)
      and hwqueue.suits(c, p_profile, p_node.node_id, v_resources, v_attested, v_gpu_ids, v_gpu_parents)
    on conflict do nothing;
    -- what nodes of a profile without GPUs and custom countables may run of each queue, and others may
    insert into hwqueue.profile_queue as s (profile_id, queue_id, classes, task_names,
        most_cpu_milli, most_memory_mib, scores_equal, checked, others, classes_seen)
    select v_profile_id, e.queue_id,
           coalesce((array_agg(e.class_id) filter (where k.is_plain))[1 : 201], '{}'),
           coalesce((array_agg(distinct e.task_name) filter (where k.is_plain))[1 : 51], '{}'),
           coalesce(max(e.cpu_milli) filter (where k.is_plain), 0),
           coalesce(max(e.memory_mib) filter (where k.is_plain), 0),
           coalesce(bool_and(coalesce(e.affinity = 0, false)) filter (where k.is_plain), true),
           coalesce((array_agg(e.class_id) filter (where k.is_plain and e.is_checked))[1 : 201], '{}'),
           coalesce((array_agg(e.class_id) filter (where not k.is_plain))[1 : 2], '{}'), '0'
    from hwqueue.eligibility e
    cross join lateral (select e.gpu_count = 0 and e.custom is null as is_plain) k
    where e.profile_id = v_profile_id and e.class_id = any (v_next.batch)
    group by e.queue_id
    on conflict (profile_id, queue_id) do update
    set classes = array(select distinct u from unnest(s.classes || excluded.classes) u limit 201),
        task_names = array(select distinct u from unnest(s.task_names || excluded.task_names) u limit 51),
        most_cpu_milli = greatest(s.most_cpu_milli, excluded.most_cpu_milli),
        most_memory_mib = greatest(s.most_memory_mib, excluded.most_memory_mib),
        checked = array(select distinct u from unnest(s.checked || excluded.checked) u limit 201),
        others = array(select distinct u from unnest(s.others || excluded.others) u limit 2),
        scores_equal = s.scores_equal and excluded.scores_equal;
  end if;
  if v_is_pinned then
    update hwqueue.node_state s
    set classes_seen = (v_next.judged).next_xid, classes_unseen = (v_next.judged).unseen,
        judged_xid = (v_next.judged).xid, judged_class = (v_next.judged).class_id,
        pinned_queues = case when v_next.batch = '{}' then s.pinned_queues else array(
          select distinct e.queue_id from hwqueue.eligibility e where e.node_id = p_node.node_id) end
    where s.node_id = p_node.node_id;
  else
    update hwqueue.profile p
    set classes_seen = (v_next.judged).next_xid, classes_unseen = (v_next.judged).unseen,
        judged_xid = (v_next.judged).xid, judged_class = (v_next.judged).class_id
    where p.profile_id = v_profile_id;
    update hwqueue.profile_queue s
    set classes_seen = (v_next.judged).next_xid, classes_unseen = (v_next.judged).unseen
    where s.profile_id = v_profile_id;
  end if;
  return case when v_next.more then p_limit else cardinality(v_next.batch) end;
end
$$;

-- True if there are classes that a judge which has seen this has not judged. Ordered, so that each half
-- is one index probe: mostly there is nothing, and a scan would read all. Ids above are of another server.
create or replace function hwqueue.has_new_classes(p_seen xid8, p_unseen xid8[]) returns boolean
language plpgsql stable
as $$ begin
  return (select c.class_id from hwqueue.placement_class c
          where c.created_xid >= p_seen and c.created_xid <= greatest(pg_snapshot_xmax(pg_current_snapshot()),
            pg_current_xact_id_if_assigned()) order by c.created_xid limit 1) is not null
      or (select x.class_id from unnest(p_unseen) u(xid)
          cross join lateral (
            select c.class_id from hwqueue.placement_class c
            where c.created_xid >= u.xid and c.created_xid <= u.xid
            order by c.created_xid limit 1) x limit 1) is not null;
end $$;

-- Of transactions whose classes were unseen, those whose classes still are. A busy moment leaves many ids,
-- and each costs claims an index probe, so a session that writes the row anyway shortens the list.
create or replace function hwqueue.prune_unseen_xids(p_unseen xid8[]) returns xid8[]
language plpgsql stable
as $$ begin
  return case when p_unseen = '{}' then p_unseen else array(
    select u from unnest(p_unseen) u where not hwqueue.has_ended(u) or exists (
      select 1 from hwqueue.placement_class c where c.created_xid = u)) end;
end $$;

-- The next classes to judge among those with one of the anchors, and the progress to record then. A class
-- that is no candidate yet is passed over: it gets a new created_xid when it becomes one. One statement reads
-- the classes and what it sees, so a class of the batch belongs to a transaction that has ended, or to the
-- caller's. The caller's own come last: later calls do not see them as long as it runs, and they must not
-- keep those calls from reaching others. Classes that the caller made candidates may be older than the last
-- one judged, so each of its calls judges them. Bitmap scans are for the GIN index on anchors.
create or replace function hwqueue.next_classes(p_from hwqueue.judging_progress, p_anchors text[],
  p_pinned boolean, p_limit int, out batch bigint[], out judged hwqueue.judging_progress, out more boolean)
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_own xid8 := pg_current_xact_id_if_assigned();
  v_from hwqueue.judging_progress := case
    when hwqueue.valid_next_xid(p_from.next_xid) = p_from.next_xid then p_from
    else row('0', '{}', null, null)::hwqueue.judging_progress end;
  v_now record;
  v_own_judged bigint := case when v_from.xid = v_own then -v_from.class_id end;
  v_last xid8;
begin
  select s.unseen, s.next_xid, b.classes, b.xids, b.found into v_now
  from hwqueue.visible_now() s
  cross join lateral (
    -- as many as the budget allows; the last one may exceed it
    select coalesce(array_agg(k.class_id order by k.place) filter (where k.spent < hwqueue.judge_budget()),
           '{}') as classes,
           array_agg(k.created_xid order by k.place) filter (where k.spent < hwqueue.judge_budget()) as xids,
           count(*) as found
    from (
      select u.created_xid, u.class_id, row_number() over o as place, sum(u.cost) over o - u.cost as spent
      from (
        select false as is_own, x.created_xid, x.class_id, x.cost
        from unnest(v_from.unseen) r(xid)
        cross join lateral (
          select c.created_xid, c.class_id, c.cost from hwqueue.placement_class c
          where c.created_xid = r.xid
            and c.class_id > case when r.xid = v_from.xid then v_from.class_id else -1 end
            and c.is_pinned = p_pinned and c.anchors && p_anchors
            and not c.waits and (c.terms = '[]' or hwqueue.has_published_terms(c.terms))
          order by c.class_id limit p_limit) x
        where r.xid < v_from.next_xid and r.xid is distinct from v_own
        union all
        (select false, c.created_xid, c.class_id, c.cost from hwqueue.placement_class c
         where (c.created_xid, c.class_id)
             > (v_from.next_xid, case when v_from.next_xid = v_from.xid then v_from.class_id else -1 end)
           and c.created_xid <= pg_snapshot_xmax(pg_current_snapshot())  -- (has_new_classes)
           and c.created_xid is distinct from v_own and c.is_pinned = p_pinned and c.anchors && p_anchors
           and not c.waits and (c.terms = '[]' or hwqueue.has_published_terms(c.terms))
         order by c.created_xid, c.class_id limit p_limit)
        union all
        (select true, c.created_xid, c.class_id, c.cost from hwqueue.placement_class c
         where c.created_xid = v_own and (c.class_id > coalesce(v_own_judged, -1) or c.is_woken)
           and c.is_pinned = p_pinned and c.anchors && p_anchors
           and not c.waits and (c.terms = '[]' or hwqueue.has_published_terms(c.terms))
         order by c.class_id limit p_limit)
      ) u window o as (order by u.is_own, u.created_xid, u.class_id) order by place limit p_limit) k) b;
  batch := v_now.classes;
  more := v_now.found = p_limit or cardinality(batch) < v_now.found;
  v_last := v_now.xids[cardinality(batch)];
  judged := row(v_now.next_xid, v_now.unseen, v_last, batch[cardinality(batch)])::hwqueue.judging_progress;
  if more and v_last is distinct from v_own then  -- classes after the last of the batch are unseen
    judged.next_xid := greatest(v_last, v_from.next_xid);
    judged.unseen := array(
      select u from unnest(v_now.unseen || v_from.unseen) u
      where u < judged.next_xid and (u = any (v_now.unseen) or u >= v_last) group by u);
  elsif v_last is distinct from v_own then  -- no class is left
    judged.xid := case when v_own_judged is not null then v_own end;
    judged.class_id := -v_own_judged;
  else
    judged.class_id := -greatest(judged.class_id, v_own_judged);
  end if;
end
$$;
