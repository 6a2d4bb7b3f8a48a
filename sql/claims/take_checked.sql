-- Taking leases some of whose classes must be checked at the claim (p_checked). A try that ends in a class which may not run here now gives
-- its locks back, since others may claim what this node may not; the next one is made without that class.

-- The best entries that may be claimed, locked, as by take_best and enter_first. p_asks: ask for the classes that are plainly blocked
-- before the first try; else that is done when one was in vain. blocked: all that were found to be; is_new: one of them for a term
-- that has to be published first.
-- Locks: as try_best. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_checked(p_node hwqueue.node, p_classes bigint[], p_scores double precision[], p_checked bigint[],
  p_asks boolean, p_queue_ids int[], p_limit int, p_window int, p_probe int, p_now timestamptz, p_shard int,
  out places tid[], out score double precision, out counted jsonb, out entry hwqueue.ready, out blocked bigint[], out is_new boolean)
language plpgsql volatile
as $$
declare
  v_classes bigint[] := p_classes;
  v_scores double precision[] := p_scores;
  v_asks boolean := p_asks;
  v_asked boolean := false;
  v_try record;
begin
  places := '{}';
  blocked := '{}';
  is_new := false;
  loop
    if v_asks then
      blocked := blocked || hwqueue.blocked_classes(p_checked, p_node, p_now, p_shard);
      v_asked := true;
    end if;
    if blocked <> '{}' then
      select array_agg(k.class_id order by k.ordinality), array_agg(k.score order by k.ordinality) into v_classes, v_scores
      from unnest(p_classes, p_scores) with ordinality k(class_id, score, ordinality) where k.class_id not in (select unnest(blocked));
    end if;
    exit when coalesce(v_classes, '{}') = '{}';
    v_try := hwqueue.try_best(v_classes, v_scores, p_checked, p_node.node_id, p_queue_ids, p_limit, p_window, p_probe, p_now, p_shard);
    places := (v_try.first).kept;
    score := v_try.score;
    counted := (v_try.first).counted;
    entry := (v_try.first).entry;
    exit when (v_try.first).blocked = '{}';
    blocked := blocked || (v_try.first).blocked;
    is_new := is_new or (v_try.first).is_new;
    v_asks := not v_asked;
  end loop;
end
$$;

-- One try: the entries of the best lane that may be claimed; kept is empty when there are none, or the first of them may not (blocked).
-- Locks: the entries, skip locked; as enter_terms. Raises: nothing. Idempotent: no.
create or replace function hwqueue.try_best(p_classes bigint[], p_scores double precision[], p_checked bigint[], p_node uuid, p_queue_ids int[],
  p_limit int, p_window int, p_probe int, p_now timestamptz, p_shard int, out first hwqueue.first_entered, out score double precision)
language plpgsql volatile
as $$
declare
  v_best record;
begin
  for v_exact in 0 .. 1 loop
    begin
      v_best := hwqueue.take_best(p_classes, p_scores, p_queue_ids, p_limit, p_window, p_probe, p_now, p_shard);
      score := v_best.score;
      first := hwqueue.enter_first(v_best.places, p_checked, p_node, v_exact = 1, p_now, p_shard);
      if first.blocked <> '{}' then
        perform hwqueue.give_up();
      end if;
      first.entry := hwqueue.delete_only(first.kept);
    exception when sqlstate 'HWX01' then
      null;
    end;
    if first.unlooked is not null then
      perform hwqueue.look_around(first.unlooked, p_now, p_shard);  -- out here, for it to be kept
    end if;
    exit when first.is_open is not true;
  end loop;
end
$$;

-- The same at the front of a plain node's only queue, as by take_front. p_without: classes that are known to be blocked.
-- Locks: as try_best. Raises: nothing. Idempotent: no.
create or replace function hwqueue.try_front(p_state hwqueue.node_state, p_queue_id int, p_tasks text[], p_window int, p_tried_rank bigint,
  p_tried_position bigint, p_without bigint[], p_room hwqueue.headroom, p_limit int, p_now timestamptz, p_shard int)
returns hwqueue.first_entered
language plpgsql volatile
as $$
declare
  v_places tid[];
  v_first hwqueue.first_entered;
begin
  for v_exact in 0 .. 1 loop
    begin
      v_places := hwqueue.take_front(p_state.profile_id, p_state.classes_seen, p_state.classes_unseen, p_queue_id, p_tasks, p_window, p_tried_rank, p_tried_position,
                                     p_without, p_room, p_limit, p_now, p_shard);
      v_first := hwqueue.enter_first(v_places, hwqueue.checked_at_front(p_state.profile_id, p_queue_id, p_shard), p_state.node_id,
                                     v_exact = 1, p_now, p_shard);
      if v_first.blocked <> '{}' then
        perform hwqueue.give_up();
      end if;
      v_first.entry := hwqueue.delete_only(v_first.kept);
    exception when sqlstate 'HWX01' then
      null;
    end;
    if v_first.unlooked is not null then
      perform hwqueue.look_around(v_first.unlooked, p_now, p_shard);  -- out here, for it to be kept
    end if;
    exit when v_first.is_open is not true;
  end loop;
  return v_first;
end
$$;
