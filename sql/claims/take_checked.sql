-- Taking leases some of whose classes must be checked at the claim (p_checked). The class is decided first and an entry locked last, so a class
-- that may not run here leaves nothing behind: no lock, no subtransaction, no transaction id of its own.

-- The best entries that may be claimed, locked: one of a class that is to be checked, else up to p_limit of others, all of one score.
-- p_asks: ask which classes are blocked, in one statement, before the first try; else that is done when one was in vain. Other classes that turn
-- out to be blocked, eight in the order of the queue, then eight more in turn (all_but_turn), end the search among those that must
-- be checked: what need not be is taken all the same, and later claims of the node go on where this one stopped.
-- A class that is 'later' (take_entries) is set aside until nothing can be had before its place, and the search begins there again.
-- blocked: all that were found to be; is_new: one of them for a term that has to be published first.
-- Locks: as take_entries. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_checked(p_node hwqueue.node, p_classes bigint[], p_scores double precision[], p_checked bigint[],
  p_asks boolean, p_queue_ids int[], p_limit int, p_window int, p_probe int, p_now timestamptz, p_shard int,
  out places tid[], out score double precision, out counted jsonb, out entry hwqueue.ready, out blocked bigint[], out is_new boolean)
language plpgsql volatile
as $$
declare
  v_from hwqueue.scan_from := hwqueue.queue_fronts(p_queue_ids, cardinality(p_classes), p_shard);
  v_classes bigint[] := p_classes;
  v_scores double precision[] := p_scores;
  v_asks boolean := p_asks;
  v_asked boolean := false;
  v_tries int := p_asks::int;  -- the front may have been one
  v_left_out bigint[] := '{}';
  v_later hwqueue.later_class[] := '{}';  -- what may run of these comes after other classes
  v_next hwqueue.later_class;
  v_try record;
begin
  places := '{}';
  blocked := '{}';
  is_new := false;
  while v_from.queue_ids is not null loop
    if v_asks then
      blocked := blocked || (hwqueue.blocked_classes(p_checked, p_node, p_now, p_shard)).blocked;
      v_asked := true;
    end if;
    if v_tries = 8 then
      v_left_out := hwqueue.all_but_turn(p_checked, blocked || array(select l.class_id from unnest(v_later) l), p_node.node_id, p_shard);
    end if;
    if blocked <> '{}' or v_tries > p_asks::int then  -- after a try there are others to leave out
      select coalesce(array_agg(k.class_id order by k.ordinality), '{}'), array_agg(k.score order by k.ordinality)
      into v_classes, v_scores
      from unnest(p_classes, p_scores) with ordinality k(class_id, score, ordinality)
      where k.class_id not in (select unnest(blocked || v_left_out) union all select l.class_id from unnest(v_later) l);
    end if;
    exit when v_classes = '{}' and v_later = '{}';
    select l.* into v_next from unnest(v_later) l order by l.tier, l.rank limit 1;
    v_try := hwqueue.try_lanes(v_classes, v_scores, p_checked, p_node, v_from, v_next.tier, v_next.rank,
                               p_limit, p_window, p_probe, p_now, p_shard);
    v_tries := v_tries + 1;
    if v_try.blocked is null then
      places := v_try.places;
      score := v_try.score;
      counted := v_try.counted;
      entry := v_try.entry;
      exit when places <> '{}' or v_later = '{}';
      v_from := hwqueue.start_from(v_from, v_next.tier, v_next.rank);  -- all before that place has been tried
      v_later := array(select l from unnest(v_later) l where (l.tier, l.rank) > (v_next.tier, v_next.rank));
    elsif v_try.reason = 'later' then
      v_later := v_later || row(v_try.blocked, v_try.later_tier, v_try.later_rank)::hwqueue.later_class;
    else
      blocked := blocked || v_try.blocked;
      is_new := is_new or v_try.reason = 'unpublished';
    end if;
    v_asks := not v_asked;
  end loop;
end
$$;

-- Of classes that must be checked those that a claim leaves out after eight tries in vain: all that are not blocked but the next eight that
-- have entries, by their ids from where the node's last such claim stopped. So each of them is tried by some claim, however many there are.
-- Locks: node_state is held by the caller. Raises: nothing. Idempotent: no.
create or replace function hwqueue.all_but_turn(p_checked bigint[], p_blocked bigint[], p_node uuid, p_shard int) returns bigint[]
language plpgsql volatile
as $$
declare
  v_after bigint;
  v_open bigint[];
  v_turn bigint[];
begin
  v_after := (select s.tried_class from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node);
  v_open := array(select k from unnest(p_checked) k where k not in (select unnest(p_blocked)) order by k <= v_after, k);
  v_turn := array(
    select k.class_id from unnest(v_open) with ordinality k(class_id, n)
    cross join lateral (
      select 1 from hwqueue.ready r where r.shard_id = p_shard and r.class_id = k.class_id order by r.tier, r.rank, r.position limit 1) h
    order by k.n limit 8);
  if v_turn <> '{}' then
    update hwqueue.node_state s set tried_class = v_turn[cardinality(v_turn)] where s.shard_id = p_shard and s.node_id = p_node;
  end if;
  return array(select k from unnest(v_open) k where k <> all (v_turn));
end
$$;
