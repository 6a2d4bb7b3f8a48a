-- Whether a class that must be checked may run on a node now: the decision of a claim, made by the class before any entry of it is locked.
-- p_lease, p_eligible_at: of its oldest entry, which stands at p_tier and p_rank. reason: why it may not, null when it may. Then the claim
-- takes the oldest entry there that has been claimable since `since` (null: any), of only_lease if that is not null,
-- and adds counted. is_named: a term names a lease of the class.
-- If the oldest entry waits for a better node, an entry of another rank behind it may have waited long enough: that is
-- 'later', at tier and rank, and nothing else is decided.
-- Locks: node_state is held by the caller; gates, skip locked: those of a class that may not run stay held until the transaction ends, and
-- others pass by them. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.decide_class(p_class_id bigint, p_lease uuid, p_eligible_at timestamptz, p_tier smallint, p_rank bigint,
  p_node hwqueue.node, p_now timestamptz, p_shard int,
  out reason text, out counted jsonb, out tier smallint, out rank bigint, out since timestamptz,
  out only_lease uuid, out is_named boolean)
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
  v_waits record;
  v_entered record;
begin
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  v_waits := hwqueue.waits_for(v_class, p_node, p_eligible_at, true, p_now, p_shard);
  if not v_waits.is_known then
    perform hwqueue.look_around(p_class_id, p_now, p_shard);
  end if;
  if v_waits.wait > '0' then
    since := p_now - v_waits.wait;
    if p_eligible_at > since then
      select x.tier, x.rank, case when x.lease_id is null then 'waits' else 'later' end into tier, rank, reason
      from hwqueue.patient_rank(p_class_id, p_tier, p_rank, since, p_now, p_shard) x;
      return;
    end if;
  end if;
  v_entered := hwqueue.enter_terms(v_class, p_lease, p_node, false, p_now, p_shard);
  if v_entered.reason = 'unlooked' then  -- what is remembered of the fleet does not tell
    perform hwqueue.look_around(p_class_id, p_now, p_shard);
    v_entered := hwqueue.enter_terms(v_class, p_lease, p_node, true, p_now, p_shard);
  end if;
  reason := v_entered.reason;
  counted := v_entered.counted;
  is_named := v_entered.is_named;
  if is_named then
    only_lease := p_lease;  -- what was decided holds for this lease of the class, not for others
  end if;
end
$$;

-- The next tier and rank behind a place where an entry of a class has been claimable since p_since; looks at the heads of 16 ranks: within one,
-- the head is the oldest. lease_id: the head's; null: there is none.
create or replace function hwqueue.patient_rank(p_class_id bigint, p_tier smallint, p_rank bigint, p_since timestamptz, p_now timestamptz, p_shard int,
                                                out tier smallint, out rank bigint, out lease_id uuid)
language plpgsql stable
as $$
declare
  v_head record;
begin
  tier := p_tier;
  rank := p_rank;
  for v_look in 1 .. 16 loop
    select r.tier, r.rank, r.eligible_at, r.lease_id into v_head from hwqueue.ready r
    where r.shard_id = p_shard and r.class_id = p_class_id and (r.tier, r.rank) > (patient_rank.tier, patient_rank.rank)
      and (r.deadline is null or r.deadline > p_now)
    order by r.tier, r.rank, r.position limit 1;
    exit when not found;
    tier := v_head.tier;
    rank := v_head.rank;
    if v_head.eligible_at <= p_since then
      lease_id := v_head.lease_id;
      return;
    end if;
  end loop;
end
$$;
