-- One try: the best entries of these classes that can be had, before p_to_tier and p_to_rank (null: all of them). No places:
-- there are none, or the class of the best one, blocked, may not run here now, for that reason (take_entries says when later).
-- Where nothing must be checked, entries that it has not seen are looked up and locked in one statement.
-- Locks: as take_entries.
create or replace function hwqueue.try_lanes(p_classes bigint[], p_scores double precision[], p_checked bigint[], p_node hwqueue.node,
  p_from hwqueue.scan_from, p_to_tier smallint, p_to_rank bigint, p_limit int, p_window int, p_probe int, p_now timestamptz, p_shard int,
  out places tid[], out score double precision, out counted jsonb, out entry hwqueue.ready, out blocked bigint,
  out reason text, out later_tier smallint, out later_rank bigint)
language plpgsql volatile
as $$
declare
  v_lane record;
  v_limit int;
  v_sees boolean;
  v_depth int;
  v_positions bigint[];
  v_seen bigint[];
  v_behind record;
  v_taken record;
  v_after_tier smallint;
  v_after_rank bigint;
begin
  places := '{}';
  while places = '{}' and blocked is null and p_from.queue_ids is not null loop
    v_lane := hwqueue.next_lane(p_classes, p_scores, v_after_tier, v_after_rank, score, p_from, p_window, p_probe, p_now, p_shard);
    exit when v_lane.classes is null or (v_lane.tier, v_lane.rank) >= (p_to_tier, p_to_rank);
    score := v_lane.score;
    v_limit := least(p_limit, v_lane.takes);
    v_positions := v_lane.positions;
    v_seen := v_lane.seen_classes;
    v_sees := v_positions is not null and (v_lane.is_head is not true or v_limit = 1 or v_seen[1] = any (p_checked));
    v_depth := case when v_sees then 0 else v_limit end;
    loop
      if v_depth > 0 and p_checked = '{}' then
        places := hwqueue.lock_lane(v_lane.classes, p_from, v_lane.tier, v_lane.rank, v_depth, v_limit,
                                    p_now, p_shard);
        exit when places <> '{}' or v_depth >= 16384;
      else
        if v_depth > 0 then
          v_behind := hwqueue.lane_entries(v_lane.classes, p_from, v_lane.tier, v_lane.rank, v_depth,
                                           p_now, p_shard);
          v_positions := v_behind.positions;
          v_seen := v_behind.classes;
        end if;
        v_taken := hwqueue.take_entries(v_positions, v_seen, p_checked, v_lane.tier, v_lane.rank, null,
                                        v_limit, p_node, p_now, p_shard);
        places := v_taken.places;
        counted := v_taken.counted;
        entry := v_taken.entry;
        blocked := v_taken.blocked;
        reason := v_taken.reason;
        later_tier := v_taken.later_tier;
        later_rank := v_taken.later_rank;
        exit when places <> '{}' or blocked is not null
          or v_depth > 0 and (cardinality(v_positions) < v_depth or v_depth >= 16384);
      end if;
      v_depth := least(8 * greatest(v_depth, v_limit), 16384);  -- others hold what was seen: look further back
    end loop;
    v_after_tier := v_lane.tier;
    v_after_rank := v_lane.rank;
  end loop;
end
$$;
