-- Requirements during execution: those that must hold as long as their leases run ("during": "execution").
--
-- Every claim of a class with such requirements has a row in placement_check (note_placement_check in
-- decide), written by whatever grants it. So a class without them costs nobody anything, and reap
-- (reap_stops) finds those claims without reading others. No settlement deletes the row; reap does.
--
-- The invariant: only a session that holds the node_state of the claim's node updates its row.

-- Returns the requirements during execution that a running claim does not meet now: [{"at": the place in the
-- list, from 0, "code": the reason, "since"}]. Those that p_before already had keep their time. One that asks
-- about leases of which nothing is known is not judged: its term is not published yet, or the lease that it
-- names is pruned.
create or replace function hwqueue.broken_requirements(p_class hwqueue.placement_class,
  p_claim hwqueue.claim, p_node hwqueue.node, p_before jsonb, p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
  v_attested text[] := hwqueue.attested_at(p_node, p_now);
  v_facts jsonb := '[]';
begin
  if p_class.terms <> '[]' then
    v_facts := (  -- without itself, and without leases that are about to stop, also where it keeps away
      select coalesce(jsonb_agg(case
        when f.value = 'null' or t.lease_id is not null
          and not exists (select from hwqueue.lease l where l.lease_id = t.lease_id)
          and not exists (select from hwqueue.claim c where c.lease_id = t.lease_id)
          and not exists (
            select from hwqueue.outcome o where o.lease_id = t.lease_id) then 'null'
        else f.value || jsonb_build_object('held',
          least((f.value ->> 'held')::bigint, (f.value ->> 'here')::bigint)) end order by f.ordinality), '[]')
      from jsonb_array_elements(hwqueue.term_facts(p_class, p_node, p_now,
        coalesce(p_claim.term_deltas, '[]'))) with ordinality f
      cross join lateral (
        select (p_class.terms #>> array[(f.ordinality - 1)::text, 'spec', 'all', '0', 'lease'])::uuid
          as lease_id) t);
  end if;
  return (
    select coalesce(jsonb_agg(jsonb_build_object('at', e.ordinality - 1, 'code', r.code, 'since', coalesce(
      (select b -> 'since' from jsonb_array_elements(p_before) b where (b -> 'at')::int = e.ordinality - 1),
      to_jsonb(p_now))) order by e.ordinality), '[]')
    from jsonb_array_elements(p_class.required) with ordinality e
    cross join lateral (
      select case when e.value ? 'during' then hwqueue.expr_reason(e.value, p_node.labels, p_node.rack,
        p_node.node_id, p_node.resources || p_node.gpu_ids, v_facts, v_attested) end as code offset 0) r
    where r.code is not null and not (v_facts @> '[null]' and exists (
      select 1 from jsonb_path_query(e.value, 'strict $.**.term ? (@.type() == "number")', '{}', true) t
      where v_facts -> (t #>> '{}')::int = 'null')));
end
$$;
