-- Takes the oldest of these entries that can be had: of a class that must be checked (p_checked) one, which is deleted already (entry); of other
-- classes up to p_limit that follow each other, locked. The entries are given by position and class, oldest first, of one tier, rank and score.
-- p_head: what is known of the first of them, if anything. An entry that another session holds is passed
-- over: one that has waited its patience says nothing of younger ones.
-- blocked: the class that may not run here now, for that reason; nothing was taken then. 'later': only an entry of it
-- that has waited for a better node may, which stands at later_tier and later_rank, so other classes come first.
-- Locks: node_state is held by the caller; gates, the entries and term_count, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_entries(p_positions bigint[], p_classes bigint[], p_checked bigint[], p_tier smallint, p_rank bigint,
  p_head hwqueue.entry_head, p_limit int, p_node hwqueue.node, p_now timestamptz, p_shard int,
  out places tid[], out counted jsonb, out entry hwqueue.ready, out blocked bigint, out reason text, out later_tier smallint, out later_rank bigint)
language plpgsql volatile
as $$
declare
  v_is_checked boolean[] := case when p_checked = '{}' then array_fill(false, array[cardinality(p_classes)])
                            when p_classes <@ p_checked then array_fill(true, array[cardinality(p_classes)])
                            else hwqueue.are_among(p_classes, p_checked) end;
  v_count int := cardinality(p_positions);
  v_first int := 1;
  v_last int;
  v_head hwqueue.entry_head;
  v_verdict record;
  v_taken record;
begin
  places := '{}';
  while v_first <= v_count loop
    -- entries that follow each other: of one class that must be checked, or of any that need not be
    v_last := case when p_checked = '{}' then v_count else v_first end;
    while v_last < v_count and v_is_checked[v_last + 1] = v_is_checked[v_first]
          and (p_classes[v_last + 1] = p_classes[v_first] or not v_is_checked[v_first]) loop
      v_last := v_last + 1;
    end loop;
    if not v_is_checked[v_first] then
      places := hwqueue.lock_seen(p_positions[v_first : v_last], p_classes[v_first : v_last], p_tier, p_rank, p_limit, p_shard);
      exit when places <> '{}';
    else
      v_head := p_head;
      if v_first > 1 or v_head.lease_id is null then
        select r.lease_id, r.eligible_at into v_head.lease_id, v_head.eligible_at from hwqueue.ready r
        where r.shard_id = p_shard and r.class_id = p_classes[v_first] and r.tier = p_tier and r.rank = p_rank
          and r.position between p_positions[v_first] and p_positions[v_last] and (r.deadline is null or r.deadline > p_now)
        order by r.position limit 1;
      end if;
      for v_pass in 1 .. 2 loop
        exit when v_head.lease_id is null;
        v_verdict := hwqueue.decide_class(p_classes[v_first], v_head.lease_id, v_head.eligible_at, p_tier, p_rank, p_node, p_now, p_shard);
        if v_verdict.reason is not null then
          exit when v_pass = 2;  -- no reason against those that others hold
          blocked := p_classes[v_first];
          reason := v_verdict.reason;
          later_tier := v_verdict.tier;
          later_rank := v_verdict.rank;
          return;
        end if;
        v_taken := hwqueue.take_decided(p_classes[v_first], p_tier, p_rank, p_positions[v_first], p_positions[v_last],
                                        v_verdict.since, v_verdict.only_lease, p_now, p_shard);
        if v_taken.place is not null then
          counted := hwqueue.add_counts(v_verdict.counted, 1, p_shard);
          if v_verdict.is_named then
            perform hwqueue.wake_classes((v_taken.entry).lease_id, p_shard);
          end if;
          places := array[v_taken.place];
          entry := v_taken.entry;
          return;
        end if;
        exit when v_verdict.since is null;
        -- others hold those that have waited their patience; younger ones need not wait where no better
        -- node lives
        select r.lease_id, r.eligible_at into v_head.lease_id, v_head.eligible_at from hwqueue.ready r
        where r.shard_id = p_shard and r.class_id = p_classes[v_first] and r.tier = p_tier and r.rank = p_rank
          and r.position between p_positions[v_first] and p_positions[v_last]
          and (r.deadline is null or r.deadline > p_now) and r.eligible_at > v_verdict.since
        order by r.position limit 1;
      end loop;
    end if;
    v_first := v_last + 1;
  end loop;
end
$$;

-- Deletes the oldest entry of a class in a tier and rank, between two positions, that has been claimable since p_since
-- (null: any) and is of that lease (null: of any). No place: others hold all of them, or they have another class by now (give_target).
-- Locks: the entry, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.take_decided(p_class_id bigint, p_tier smallint, p_rank bigint, p_from bigint, p_to bigint, p_since timestamptz,
  p_lease uuid, p_now timestamptz, p_shard int, out place tid, out entry hwqueue.ready)
language plpgsql volatile
as $$
declare
  v_gone record;
begin
  delete from hwqueue.ready r where r.ctid = (
    select x.ctid from hwqueue.ready x
    where x.shard_id = p_shard and x.class_id = p_class_id and x.tier = p_tier and x.rank = p_rank
      and x.position between p_from and p_to and (x.deadline is null or x.deadline > p_now)
      and (p_since is null or x.eligible_at <= p_since) and (p_lease is null or x.lease_id = p_lease)
    order by x.position limit 1 for update skip locked)
  returning r.ctid as place, r as entry into v_gone;
  if found then
    place := v_gone.place;
    entry := v_gone.entry;
  end if;
end
$$;

-- Which of these classes are among others.
create or replace function hwqueue.are_among(p_classes bigint[], p_others bigint[]) returns boolean[]
language sql immutable
as $$ select array(select c in (select unnest(p_others)) from unnest(p_classes) c) $$;
