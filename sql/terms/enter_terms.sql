-- A lease that asks something about others, or that others ask something about, joins those that run on a node: the decision, under
-- gates, and its counts. A gate is a row that stands for (term, place): whoever decides by a count there holds it alone, whoever
-- only changes that count shares it; claims on one node take turns by node_state anyway. Nobody waits for a gate: a lease whose gate is
-- held is not for this claim, and the next lease is tried.

-- Takes gates, alone or shared; false when somebody else has one of them.
-- Locks: gates, skip locked, so that the order does not matter.
create or replace function hwqueue.lock_gates(p_alone int[], p_shared int[], p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_locked int := 0;
begin
  if p_alone <> '{}' then
    select count(*) into v_locked from (
      select 1 from hwqueue.gate g where g.shard_id = p_shard and g.gate_id = any (p_alone) for no key update skip locked) l;
  end if;
  if v_locked = cardinality(p_alone) and p_shared <> '{}' then
    select v_locked + count(*) into v_locked from (
      select 1 from hwqueue.gate g where g.shard_id = p_shard and g.gate_id = any (p_shared) for share skip locked) l;
  end if;
  return v_locked = cardinality(p_alone) + cardinality(p_shared);
end
$$;

-- Whether a class would be the first of a group that it requires to be with.
create or replace function hwqueue.starts_group(p_class hwqueue.placement_class, p_facts jsonb) returns boolean
language sql immutable
as $$
  select exists (
    select 1 from jsonb_array_elements(p_facts) with ordinality f
    where (f.value -> 'self')::boolean and (f.value ->> 'here')::bigint <= 0
      and p_class.terms #>> array[(f.ordinality - 1)::text, 'spec', 'use'] = 'toward')
$$;

-- Whether a look at the places of these terms, without max_skew, would come upon nothing that could keep a lease out.
create or replace function hwqueue.are_empty(p_touched hwqueue.touched_term[], p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return not exists (
    select 1 from unnest(p_touched) t
    join hwqueue.term_count k on k.shard_id = p_shard and k.term_id = t.term_id and k.domain = t.place
    where t.decides and t.use <> 'skew' and k.leases <> 0 or t.use = 'away' and t.counts and k.holders <> 0);
end
$$;

-- The gates of these terms. A group's is one for all places; a member that goes by another group shares it, too: two may each be the other's
-- first. is_plain: nothing but what runs in their places can keep a lease of the class out: its own terms, of which it has p_terms, keep away or
-- limit how many there are, and all are counted.
create or replace function hwqueue.gates_of(p_touched hwqueue.touched_term[], p_terms int, p_joins boolean, p_starts boolean,
                                            out alone int[], out shared int[], out is_plain boolean)
language plpgsql immutable
as $$
declare
  v_term hwqueue.touched_term;
  v_gate int;
  v_own int := 0;
begin
  alone := '{}';
  shared := '{}';
  is_plain := not p_joins;
  foreach v_term in array p_touched loop
    is_plain := is_plain and v_term.is_plain and (not v_term.decides or v_term.use in ('away', 'cap', 'soft') and v_term.place <> '');
    v_own := v_own + v_term.decides::int;
    if v_term.use in ('away', 'apart', 'cap', 'skew') and v_term.domain <> 'node' and v_term.place <> ''
       or v_term.use = 'toward' and v_term.counts and p_joins then
      -- 0..16383: two places may share one, then one of them is busy without need
      v_gate := hashtextextended(
        v_term.term_id || '@' || case v_term.use when 'toward' then '' else v_term.place end, 0) & 16383;
      if v_term.decides and (p_starts or v_term.use <> 'toward') then
        alone := case when v_gate = any (alone) then alone else alone || v_gate end;
      else
        shared := case when v_gate = any (shared) then shared else shared || v_gate end;
      end if;
    end if;
  end loop;
  is_plain := is_plain and v_own = p_terms;
end
$$;

-- Decides whether a lease may join what runs now. p_exact: by what nodes are now, not by what is remembered of them (spread_reason).
-- counted: what to write into its claim, and to count (add_counts) while the gates are held; reason: why it may not join, a reason code, or
-- 'busy', 'unpublished' or 'unlooked', which the next claim may find otherwise. is_named: a term names a lease of the class.
-- Locks: the caller holds node_state; gates, skip locked.
create or replace function hwqueue.enter_terms(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_exact boolean, p_now timestamptz,
                                               p_shard int, out counted jsonb, out reason text, out is_named boolean)
language plpgsql volatile
as $$
declare
  v_terms record := hwqueue.touched_terms(p_class, p_lease, p_node, p_shard);
  v_joins boolean := p_class.terms @> '[{"spec": {"use": "toward"}}]';
  v_starts boolean := false;
  v_gates record;
  v_free boolean;
  v_plain boolean;
  v_empty boolean := false;
  v_facts jsonb;
begin
  is_named := p_class.target is not null or v_terms.is_named;
  if v_joins then
    v_facts := hwqueue.term_facts(p_class, p_node, null, p_now, p_shard);
    v_starts := hwqueue.starts_group(p_class, v_facts);
  end if;
  v_gates := hwqueue.gates_of(v_terms.touched, jsonb_array_length(p_class.terms), v_joins, v_starts);
  v_free := v_gates.alone = '{}' and v_gates.shared = '{}';
  v_plain := v_gates.is_plain and not v_terms.is_named and p_class.service_id is null and p_class.trusts = '{}';
  -- a first look, if there is anything that it could come upon: mostly that is the end of it
  if not v_joins then
    v_empty := hwqueue.are_empty(v_terms.touched, p_shard);
  end if;
  if not v_empty or v_free and not v_plain then
    v_facts := coalesce(v_facts, hwqueue.term_facts(p_class, p_node, null, p_now, p_shard));
    reason := hwqueue.terms_reason(p_class, p_lease, p_node, v_facts, v_free, p_exact, p_now, p_shard);
  end if;
  if reason is null and not v_free then
    if hwqueue.lock_gates(v_gates.alone, v_gates.shared, p_shard) then
      -- what was read before the gates were ours may have changed
      if not v_plain or not hwqueue.are_empty(v_terms.touched, p_shard) then
        v_facts := hwqueue.term_facts(p_class, p_node, null, p_now, p_shard);
        reason := case when v_joins and hwqueue.starts_group(p_class, v_facts) > v_starts then 'busy'
                       else hwqueue.terms_reason(p_class, p_lease, p_node, v_facts, true, p_exact, p_now, p_shard) end;
      end if;
    else
      reason := 'busy';
    end if;
  end if;
  if reason is null then
    counted := hwqueue.counted_terms(v_terms.touched);
  end if;
end
$$;
