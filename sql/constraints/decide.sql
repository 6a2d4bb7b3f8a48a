-- Deciding whether a lease may run on a node beside what runs now, under lock stripes.
--
-- Example: a service's leases must be in different racks. Two claims on two nodes of rack 12 both need the
-- lock stripe of (affinity term, rack 12). One gets it, reads the counters again under the lock, and counts
-- its lease. The other finds the stripe locked and tries its next class.
--
-- A stripe is a row that stands for (affinity term, place). A claim that decides by a counter locks its
-- stripe exclusively, one that only changes the counter locks it for share. Terms over nodes take none:
-- node_state serialises the claims of a node. No claim waits for a stripe.
--
-- The invariant: a claim admits a lease by the counters of places wider than a node only while it holds
-- their lock stripes, and adds its own counts before the locks end, at commit. It may refuse a lease
-- without them; callers that grant nothing read term_facts without locks.

-- Decides whether a class that must be checked may run on a node now. A claim asks this by class, before
-- it locks any entry of the class. p_lease, p_eligible_at: of the class head, at p_tier and p_rank.
-- reason: why the class may not run; null when it may, and the claim then takes the oldest entry there.
--   'later': the class head waits for a better node, but an entry of a later tier and rank has waited long
--   enough; nothing else is decided then.
-- since: take only entries that have been claimable since then; only_lease: only this one; null: any.
-- term_deltas: what the claim adds to the counters. is_named: a term names a lease of the class.
-- is_choice: its leases are alternatives: take one whose choice nobody has taken.
-- Locks: the caller holds node_state; lock stripes, skip locked. The stripes of a class that may not run
-- stay locked until the transaction ends, and other claims skip what needs them.
create or replace function hwqueue.decide_class(p_class_id bigint, p_lease uuid, p_eligible_at timestamptz,
  p_tier smallint, p_rank bigint, p_node hwqueue.node, p_now timestamptz,
  out reason text, out term_deltas jsonb, out tier smallint, out rank bigint, out since timestamptz,
  out only_lease uuid, out is_named boolean, out during_execution boolean,
  out is_choice boolean)
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
  v_waits record;
  v_head record;
  v_entered record;
begin
  select c.* into v_class from hwqueue.placement_class c where c.class_id = p_class_id;
  v_waits := hwqueue.waits_for(v_class, p_node, p_eligible_at, p_now);
  if not v_waits.is_known then
    perform hwqueue.refresh_fleet_cache(p_class_id, p_now);
  end if;
  if v_waits.wait > '0' then
    since := p_now - v_waits.wait;
    if p_eligible_at > since then
      reason := 'waits';
      tier := p_tier;
      rank := p_rank;
      for v_try in 1 .. 16 loop  -- the heads of 16 ranks: within a rank the head is the oldest
        select r.tier, r.rank, r.eligible_at into v_head from hwqueue.ready r
        where r.class_id = p_class_id and (r.tier, r.rank) > (decide_class.tier, decide_class.rank)
          and (r.deadline is null or r.deadline > p_now)
        order by r.tier, r.rank, r.position limit 1;
        exit when not found;
        tier := v_head.tier;
        rank := v_head.rank;
        if v_head.eligible_at <= since then
          reason := 'later';
          exit;
        end if;
      end loop;
      return;
    end if;
  end if;
  v_entered := hwqueue.admit_class(v_class, p_lease, p_node, false, p_now);
  if v_entered.reason = 'cache_miss' then  -- a miss in the cached fleet
    perform hwqueue.refresh_fleet_cache(p_class_id, p_now);
    v_entered := hwqueue.admit_class(v_class, p_lease, p_node, true, p_now);
  end if;
  reason := v_entered.reason;
  term_deltas := v_entered.term_deltas;
  is_named := v_entered.is_named;
  during_execution := hwqueue.binds_during_execution(v_class);
  is_choice := v_class.is_choice;
  if is_named then
    only_lease := p_lease;  -- the decision holds for this lease of the class, not for others
  end if;
end
$$;

-- True if a class would be the first of a group that it requires to be with.
create or replace function hwqueue.would_start_group(p_class hwqueue.placement_class, p_facts jsonb)
returns boolean
language plpgsql immutable
as $$ begin return
  exists (
    select 1 from jsonb_array_elements(p_facts) with ordinality f
    where (f.value -> 'self')::boolean and (f.value ->> 'here')::bigint <= 0
      and p_class.terms #>> array[(f.ordinality - 1)::text, 'spec', 'use'] = 'toward');
end $$;

-- True if no counter of these terms, max_skew apart, is non-zero in its place, so that the check without
-- locks could not refuse a lease.
create or replace function hwqueue.are_counters_zero(p_touched hwqueue.touched_term[]) returns boolean
language plpgsql stable
as $$ begin
  return not exists (
    select 1 from unnest(p_touched) t
    join hwqueue.term_counter k on k.term_id = t.term_id and k.place = t.place
    where t.decides and t.use <> 'skew' and k.leases <> 0 or t.use = 'away' and t.counts and k.holders <> 0);
end $$;

-- Decides whether a lease may run beside what runs now. p_exact: by the nodes as they are now, not by
-- the cached fleet (spread_reason).
-- term_deltas: what to write into its claim, and to count (add_counts) while the lock stripes are held.
-- reason: why it may not run, a reason code, or 'busy', 'unpublished' or 'cache_miss' (a cache miss),
-- which the next claim may find otherwise. is_named: a term names a lease of the class.
-- A group ("toward") has one stripe for all places. A member that goes by another group locks it for
-- share: two such leases could each be the other's first.
-- Locks: the caller holds node_state; lock stripes, skip locked.
create or replace function hwqueue.admit_class(p_class hwqueue.placement_class, p_lease uuid,
  p_node hwqueue.node, p_exact boolean, p_now timestamptz,
  out term_deltas jsonb, out reason text, out is_named boolean)
language plpgsql volatile
as $$
declare
  v_terms record := hwqueue.touched_terms(p_class, p_lease, p_node);
  v_term hwqueue.touched_term;
  v_joins boolean := p_class.terms @> '[{"spec": {"use": "toward"}}]';
  v_starts boolean := false;
  v_stripe int;
  v_alone int[] := '{}';
  v_shared int[] := '{}';
  v_own int := 0;
  v_needs_none boolean;  -- no lock stripe
  v_locked int;
  -- only what runs in the places of these terms can keep a lease of the class out: all of its own terms
  -- keep away or limit a number, and all are counted
  v_by_counters boolean := not v_joins and not v_terms.is_named and p_class.service_id is null
    and p_class.trusts = '{}';
  v_all_zero boolean := false;
  v_facts jsonb;
begin
  is_named := p_class.target is not null or v_terms.is_named;
  if v_joins then
    v_facts := hwqueue.term_facts(p_class, p_node, p_now);
    v_starts := hwqueue.would_start_group(p_class, v_facts);
  end if;
  foreach v_term in array v_terms.touched loop
    v_by_counters := v_by_counters and v_term.by_counters_alone
      and (not v_term.decides or v_term.use in ('away', 'cap', 'soft') and v_term.place <> '');
    v_own := v_own + v_term.decides::int;
    if v_term.use in ('away', 'apart', 'cap', 'skew') and v_term.domain <> 'node' and v_term.place <> ''
       or v_term.use = 'toward' and v_term.counts and v_joins then
      -- 0..16383: two places may share a stripe, and one may then find it locked without need
      v_stripe := hashtextextended(
        v_term.term_id || '@' || case v_term.use when 'toward' then '' else v_term.place end, 0) & 16383;
      if v_term.decides and (v_starts or v_term.use <> 'toward') then
        v_alone := case when v_stripe = any (v_alone) then v_alone else v_alone || v_stripe end;
      else
        v_shared := case when v_stripe = any (v_shared) then v_shared else v_shared || v_stripe end;
      end if;
    end if;
  end loop;
  v_by_counters := v_by_counters and v_own = jsonb_array_length(p_class.terms);
  v_needs_none := v_alone = '{}' and v_shared = '{}';
  -- a check without locks, skipped when all counters are zero: most classes that are refused end here
  if not v_joins then
    v_all_zero := hwqueue.are_counters_zero(v_terms.touched);
  end if;
  if not v_all_zero or v_needs_none and not v_by_counters then
    v_facts := coalesce(v_facts, hwqueue.term_facts(p_class, p_node, p_now));
    reason := hwqueue.terms_reason(p_class, p_lease, p_node, v_facts, v_needs_none, p_exact, p_now);
  end if;
  if reason is null and not v_needs_none then
    v_locked := 0;  -- skip locked, so that the order does not matter
    if v_alone <> '{}' then
      perform from hwqueue.lock_stripe g where g.stripe_id = any (v_alone) for no key update skip locked;
      get diagnostics v_locked = row_count;
    end if;
    if v_locked = cardinality(v_alone) and v_shared <> '{}' then
      select v_locked + count(*) into v_locked from (
        select 1 from hwqueue.lock_stripe g where g.stripe_id = any (v_shared) for share skip locked) l;
    end if;
    if v_locked < cardinality(v_alone) + cardinality(v_shared) then
      reason := 'busy';
    -- what was read before the stripes were locked may have changed
    elsif not v_by_counters or not hwqueue.are_counters_zero(v_terms.touched) then
      v_facts := hwqueue.term_facts(p_class, p_node, p_now);
      reason := case when v_joins and hwqueue.would_start_group(p_class, v_facts) > v_starts then 'busy'
        else hwqueue.terms_reason(p_class, p_lease, p_node, v_facts, true, p_exact, p_now) end;
    end if;
  end if;
  if reason is null then
    term_deltas := hwqueue.counted_terms(v_terms.touched);
  end if;
end
$$;

-- What a claim must know of each of a class's terms on one node, in their order: {"value": the node's place,
-- "held": leases running there, "here": those that are not about to stop (for max_per_domain expired leases
-- stay, since they may go on, and in the whole fleet all), "elsewhere": for toward, whether any run in
-- another place, "self": whether the term selects the class itself}. A term that is not published yet is
-- null: nothing may be decided by it.
-- expr_reason and spread_reason judge by these facts. A decision reads them again under the lock stripes.
-- p_own: the term_deltas of a running claim, which is then left out itself; null: the lease does not run.
create or replace function hwqueue.term_facts(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_now timestamptz, p_own jsonb default null) returns jsonb
language plpgsql stable
as $$
declare
  v_term record;
  v_facts jsonb := '[]'::jsonb;
  v_value text;
  v_held bigint;
  v_here bigint;
  v_elsewhere boolean;
begin
  for v_term in
    select (s.value -> 'self')::boolean and s.value #>> '{spec,use}' <> 'soft' as is_self, t.term_id,
           t.published_at, coalesce(t.domain, hwqueue.term_domain(s.value -> 'spec')) as domain,
           s.value #>> '{spec,all,0,lease}' as lease_id, s.value #>> '{spec,use}' as use,
           case when p_own is null then 0 else (  -- how many of those that are counted are left out
             select coalesce(sum((d.value ->> 'n')::int), 0) from jsonb_array_elements(p_own) d
             where (d.value ->> 't')::bigint = t.term_id) end as own
    from jsonb_array_elements(p_class.terms) with ordinality s
    left join hwqueue.affinity_term t on t.digest = (s.value ->> 'digest')::bigint
    order by s.ordinality
  loop
    if v_term.published_at is null then
      v_facts := v_facts || 'null'::jsonb;
      continue;
    elsif v_term.lease_id is not null then
      v_facts := v_facts || hwqueue.lease_fact(v_term.lease_id::uuid, v_term.domain, p_node, p_now);
      continue;
    end if;
    v_value := hwqueue.domain_value(v_term.domain, p_node.node_id, p_node.rack, p_node.labels);
    v_held := 0;
    v_here := 0;
    v_elsewhere := false;
    if v_value is not null then
      select c.leases - v_term.own into v_held from hwqueue.read_count(v_term.term_id, v_value) c;
    end if;
    if v_held > 0 then
      v_here := v_held - case when v_term.use = 'cap' and v_term.domain = 'fleet' then 0
        else coalesce((hwqueue.stopping_by_place(v_term.term_id, v_term.use <> 'cap', '{}', p_now)
          ->> v_value)::bigint, 0) end;
    end if;
    if v_term.is_self and v_term.use = 'toward' and v_here <= 0 then  -- may it be the first of its group?
      v_elsewhere := hwqueue.remaining_count(v_term.term_id, null, p_now) > v_term.own;
    end if;
    v_facts := v_facts || jsonb_build_object('value', v_value, 'held', v_held, 'here', v_here,
      'elsewhere', v_elsewhere, 'self', v_term.is_self);
  end loop;
  return v_facts;
end
$$;

-- The fact of a term on one lease: where it runs, or else where it succeeded.
create or replace function hwqueue.lease_fact(p_lease uuid, p_domain text, p_node hwqueue.node,
  p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
  v_value text := hwqueue.domain_value(p_domain, p_node.node_id, p_node.rack, p_node.labels);
  v_runs record;
  v_there boolean;
begin
  select c.node_id, 1 as held,
         (c.stop_requested_at <= p_now is not true and c.expires_at > p_now)::int as here into v_runs
  from hwqueue.claim c where c.lease_id = p_lease;
  if not found then
    select o.node_id, 0 as held, 1 as here into v_runs
    from hwqueue.outcome o where o.lease_id = p_lease and (o.state = 'completed') is true;
  end if;
  v_there := (
    select hwqueue.domain_value(p_domain, n.node_id, n.rack, n.labels) = v_value
    from hwqueue.node n where n.node_id = v_runs.node_id);
  return jsonb_build_object('value', v_value, 'held', case when v_there then v_runs.held else 0 end,
    'here', case when v_there then v_runs.here else 0 end, 'elsewhere', false, 'self', false);
end
$$;

-- Why a lease may not run beside what runs: the first reason code, null when it may. 'unpublished': a
-- term of its class is not counted yet.
-- p_skew: check max_skew as well, which costs most. p_exact: by the nodes as they are now, not by the
-- cached fleet. The caller holds the locks of what it decides by, or does not decide.
create or replace function hwqueue.terms_reason(p_class hwqueue.placement_class, p_lease uuid,
  p_node hwqueue.node, p_facts jsonb, p_skew boolean, p_exact boolean, p_now timestamptz) returns text
language plpgsql stable
as $$
declare
  v_expr jsonb;
  v_reason text;
  v_attested text[];
  v_holds_up boolean;
  v_keeps_out boolean;
begin
  -- of the terms that select the class: whether one must be published first, and whether running leases keep
  -- the class out of this place: a required "away" holds both ways
  select coalesce(bool_or(t.published_at is null and t.was_published), false),
         coalesce(bool_or(n.holders > 0
           and coalesce((t.spec #>> '{all,0,lease}')::uuid = p_lease, true)), false)
  into v_holds_up, v_keeps_out
  from hwqueue.class_term m
  join hwqueue.affinity_term t on t.term_id = m.term_id
  cross join lateral (
    select sum(k.holders) as holders from hwqueue.term_counter k
    where t.use = 'away' and k.term_id = t.term_id
      and k.place = hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels)) n
  where m.class_id = p_class.class_id and not m.is_own;
  if v_holds_up or p_facts @> '[null]' or p_class.service_id is not null
    and hwqueue.has_stale_policy(p_class) then
    return 'unpublished';
  end if;
  if p_facts <> '[]' and p_class.required <> '[]' then
    v_attested := case when p_node.attested = '{}' then '{}' else hwqueue.attested_at(p_node, p_now) end;
    -- requirements that mention neither other leases nor trust were decided when the class was judged
    for v_expr in
      select e.value from jsonb_array_elements(p_class.required) e
      where jsonb_path_exists(e.value, 'strict $.** ? (exists(@.term) || exists(@.trust))', '{}', true)
    loop
      v_reason := hwqueue.expr_reason(v_expr, p_node.labels, p_node.rack, p_node.node_id,
        p_node.resources || p_node.gpu_ids, p_facts, v_attested);
      if v_reason is not null then
        return v_reason;
      end if;
    end loop;
  end if;
  if p_facts <> '[]' and p_class.spread <> '[]' then
    for v_expr in select s.value from jsonb_array_elements(p_class.spread) s
      where p_skew or not s.value ? 'max_skew' loop
      v_reason := hwqueue.spread_reason(v_expr, p_class, p_facts,
        case when p_exact and v_expr ? 'max_skew'
          then hwqueue.spread_counts(v_expr, p_class, null, p_now) end, p_now);
      if v_reason is not null then
        return v_reason;
      end if;
    end loop;
  end if;
  return case when v_keeps_out then 'anti_affinity_conflict' end;
end
$$;

-- Has reap check the requirements during execution of a claim that the caller grants. p_claims: how often its
-- lease has been claimed before. A lease that was deleted and spawned again with the same id may have a row
-- from before. Locks: the row.
create or replace function hwqueue.note_placement_check(p_lease uuid, p_claims int) returns void
language plpgsql volatile
as $$ begin
  insert into hwqueue.placement_check (lease_id, claim_no)
  values (p_lease,
    hwqueue.claim_no(hwqueue.next_token(hwqueue.this_generation(), p_claims)))
  on conflict (lease_id, claim_no) do update set broken = '[]';
end $$;
