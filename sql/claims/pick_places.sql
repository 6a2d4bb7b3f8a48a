-- Locks the best ready entries that a node may run now and gives their places, best first; no places: there are none. A plain node
-- (p_is_plain) takes from the front of its only queue; when there is nothing for it, it is plain no longer (is_plain): the next call need not ask.
-- p_tried_*: see take_front. Of an only entry, counted: what to write into its claim, null: nothing; entry: what it was, if it is deleted already.
-- Locks: as pick_leases. Raises: QHN01 deregistered. Idempotent: no.
create or replace function hwqueue.pick_places(p_state hwqueue.node_state, p_load hwqueue.node_load, p_room hwqueue.headroom,
  p_is_plain boolean, p_queue_ids int[], p_tasks text[], p_window int, p_tried_rank bigint, p_tried_position bigint, p_limit int, p_now timestamptz, p_shard int)
returns hwqueue.picked
language plpgsql volatile
as $$
declare
  v_limit int := case when p_state.is_counted then 1 else p_limit end;
  v_without bigint[] := '{}';
  v_blocked bigint[] := '{}';
  v_checked bigint[];
  v_picked hwqueue.picked;
begin
  v_picked.score := 0;
  if p_is_plain then
    v_checked := hwqueue.checked_at_front(p_state.profile_id, p_queue_ids[1], p_shard);
    if cardinality(v_checked) between 1 and 200 then  -- more are asked about in pick_leases
      v_without := hwqueue.without_entries(p_state.profile_id, v_checked, p_queue_ids[1], p_shard);
      if p_state.meets_blocked and cardinality(v_without) < cardinality(v_checked) then
        v_blocked := hwqueue.blocked_classes(array(select c from unnest(v_checked) c where c <> all (v_without)),
                                             hwqueue.read_node(p_state.node_id, p_shard), p_now, p_shard);
        v_without := v_without || v_blocked;
      end if;
    end if;
    if cardinality(v_without) = cardinality(v_checked) and hwqueue.leaves_out(p_state.profile_id, p_queue_ids[1], v_without, p_shard) then
      v_picked.places := hwqueue.take_front(p_state.profile_id, p_state.classes_seen, p_state.classes_unseen, p_queue_ids[1], p_tasks, p_window, p_tried_rank, p_tried_position,
                                            v_without, p_room, v_limit, p_now, p_shard);
      -- read again: the look at the front may have seen classes that are newer than what was read before it
      v_checked := hwqueue.checked_at_front(p_state.profile_id, p_queue_ids[1], p_shard);
      v_picked.places := hwqueue.before_checked(v_picked.places, v_checked);
    end if;
  end if;
  v_picked.is_plain := coalesce(v_picked.places, '{}') <> '{}';
  if not v_picked.is_plain then
    v_picked := hwqueue.pick_leases(p_state, p_load, p_queue_ids, p_tasks, p_limit, v_blocked, p_now, p_shard);
  elsif v_checked <> '{}' then
    perform hwqueue.note_met(p_state, v_blocked <> '{}', false, p_shard);
  end if;
  return v_picked;
end
$$;

-- Remembers of a node whether its last claim came upon blocked classes, and that terms wait to be in force (p_awaits, or, upon blocked
-- classes, if they do): its next claim takes a step for them.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.note_met(p_state hwqueue.node_state, p_blocked boolean, p_awaits boolean, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_awaits boolean := p_state.awaits_terms or p_awaits or p_blocked and hwqueue.terms_pending(p_shard);
begin
  if (p_state.meets_blocked, p_state.awaits_terms) <> (p_blocked, v_awaits) then
    update hwqueue.node_state s set meets_blocked = p_blocked, awaits_terms = v_awaits
    where s.shard_id = p_shard and s.node_id = p_state.node_id;
  end if;
end
$$;

-- Of locked entries those before the first whose class must be checked.
-- Locks: they are held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.before_checked(p_places tid[], p_checked bigint[]) returns tid[]
language plpgsql volatile
as $$
declare
  v_first bigint;
begin
  if p_checked <> '{}' and p_places <> '{}' then
    select p.n into v_first from unnest(p_places) with ordinality p(place, n)
    cross join lateral (select r.class_id from hwqueue.ready r where r.ctid = p.place) e
    where cardinality(p_checked) > 200 or e.class_id = any (p_checked) order by p.n limit 1;
  end if;
  return case when v_first is null then p_places else p_places[1 : v_first - 1] end;
end
$$;

-- Those of these classes of a queue that have no ready entry; none where that is of no use (take_front) or takes long: of up to 32 classes.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.without_entries(p_profile_id bigint, p_classes bigint[], p_queue_id int, p_shard int) returns bigint[]
language plpgsql volatile
as $$
declare
  v_from record;
begin
  if cardinality(p_classes) > 32 then
    return '{}';
  end if;
  select f.tier, f.rank, f.position, e.is_even into v_from
  from hwqueue.profile_queue e
  cross join lateral hwqueue.queue_front(p_queue_id, p_shard) f
  where e.shard_id = p_shard and e.profile_id = p_profile_id and e.queue_id = p_queue_id;
  if v_from.tier is null or not v_from.is_even then
    return '{}';
  end if;
  return array(
    select c from unnest(p_classes) c
    where (
      select true from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = c and (r.tier, r.rank, r.position) >= (v_from.tier, v_from.rank, v_from.position)
      order by r.tier, r.rank, r.position limit 1) is null);
end
$$;
