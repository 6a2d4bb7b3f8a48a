-- A lease that asks something about others, or that others ask something about, joins those that run on a node: the decision, under
-- gates, and its counts. A gate is a row that stands for (term, place): whoever decides by a count there holds it alone, whoever
-- only changes that count shares it; claims on one node take turns by node_state anyway. Nobody waits for a gate: a lease whose gate is
-- held is not for this claim, and the next lease is tried.

-- Takes gates, alone or shared; false when somebody else has one of them.
-- Locks: gates, skip locked, so that the order does not matter. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.lock_gates(p_alone text[], p_shared text[], p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_alone int[] := '{}';
  v_shared int[] := '{}';
  v_locked int := 0;
begin
  if p_alone <> '{}' then
    v_alone := array(select distinct hwqueue.gate_of(a) from unnest(p_alone) a);
    select count(*) into v_locked from (
      select 1 from hwqueue.gate g where g.shard_id = p_shard and g.gate_id = any (v_alone) for no key update skip locked) l;
  end if;
  if v_locked = cardinality(v_alone) and p_shared <> '{}' then
    v_shared := array(select distinct hwqueue.gate_of(s) from unnest(p_shared) s);
    select v_locked + count(*) into v_locked from (
      select 1 from hwqueue.gate g where g.shard_id = p_shard and g.gate_id = any (v_shared) for share skip locked) l;
  end if;
  return v_locked = cardinality(v_alone) + cardinality(v_shared);
end
$$;

-- The number of a gate, 0..16383: two places may share one, then one of them is busy without need.
create or replace function hwqueue.gate_of(p_place text) returns int
language sql immutable parallel safe
as $$ select (hashtextextended(p_place, 0) & 16383)::int $$;

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
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.are_empty(p_touched hwqueue.touched_term[], p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return not exists (
    select 1 from unnest(p_touched) t
    join hwqueue.term_count k on k.shard_id = p_shard and k.term_id = t.term_id and k.domain = t.place
    where t.decides and t.use <> 'skew' and k.leases <> 0 or t.use = 'away' and k.holders <> 0);
end
$$;

-- Decides whether a lease may join what runs now. p_exact: by what nodes are now, not by what is remembered of them (spread_reason).
-- counted: what to write into its claim, and to count (add_counts) while the gates are held; reason: why it may not join, a reason code, or
-- 'busy', 'unpublished' or 'unlooked', which the next claim may find otherwise.
-- Locks: the caller holds node_state; gates, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.enter_terms(p_class hwqueue.placement_class, p_lease uuid, p_node hwqueue.node, p_exact boolean, p_now timestamptz,
                                               p_shard int, out counted jsonb, out reason text)
language plpgsql volatile
as $$
declare
  v_touched hwqueue.touched_term[] := hwqueue.touched_terms(p_class, p_lease, p_node, p_shard);
  v_joins boolean := p_class.terms @> '[{"spec": {"use": "toward"}}]';
  v_starts boolean := false;
  v_facts jsonb;
  v_alone text[];
  v_shared text[];
begin
  if v_joins then
    v_facts := hwqueue.term_facts(p_class, p_node, null, p_now, p_shard);
    v_starts := hwqueue.starts_group(p_class, v_facts);
  end if;
  select coalesce(array_agg(g.place) filter (where g.alone), '{}'), coalesce(array_agg(g.place) filter (where not g.alone), '{}')
  into v_alone, v_shared
  from (
    -- a group's gate is one for all places. A member that goes by another group shares it, too: two may each be the other's first
    select t.term_id || '@' || case t.use when 'toward' then '' else t.place end as place,
           t.decides and (v_starts or t.use <> 'toward') as alone
    from unnest(v_touched) t
    where t.use in ('away', 'apart', 'cap', 'skew') and t.domain <> 'node' and t.place <> ''
       or t.use = 'toward' and t.counts and v_joins
  ) g;
  -- a first look, if there is anything that it could come upon: mostly that is the end of it
  if v_alone = '{}' and v_shared = '{}' or v_joins or not hwqueue.are_empty(v_touched, p_shard) then
    v_facts := coalesce(v_facts, hwqueue.term_facts(p_class, p_node, null, p_now, p_shard));
    reason := hwqueue.terms_reason(p_class, p_lease, p_node, v_facts, v_alone = '{}' and v_shared = '{}', p_exact, p_now, p_shard);
  end if;
  if reason is null and (v_alone <> '{}' or v_shared <> '{}') then
    if hwqueue.lock_gates(v_alone, v_shared, p_shard) then
      -- what was read before the gates were ours may have changed
      v_facts := hwqueue.term_facts(p_class, p_node, null, p_now, p_shard);
      reason := case when v_joins and hwqueue.starts_group(p_class, v_facts) > v_starts then 'busy'
                     else hwqueue.terms_reason(p_class, p_lease, p_node, v_facts, true, p_exact, p_now, p_shard) end;
    else
      reason := 'busy';
    end if;
  end if;
  if reason is null then
    counted := hwqueue.counted_terms(v_touched);
  end if;
end
$$;
