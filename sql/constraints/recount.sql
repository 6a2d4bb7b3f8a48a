-- Counting running leases from the claims themselves, not by counters: for dry runs and explanations, also of
-- classes that are not written anywhere, and for verify_invariants, which proves the counters right.

-- What verify_invariants says of terms. term_count: the counters of a published one differ from what runs.
-- away, max_per_domain: running leases break a required one; an earmark does not run yet: it may be where
-- what it waits for would keep it away. hidden_label: the class of an open lease hides what the term names.
create or replace function hwqueue.broken_terms() returns table (rule text, subject text, detail jsonb)
language sql stable
as $$
  with touched as (
    -- touched_terms without the cached class_term: by what the terms select now
    select c.lease_id, c.is_earmark is null and p.place <> '' as is_placed, c.stop_requested_at, k.terms,
           k.spread, t.term_id, t.use, t.domain, p.place, d.decides, d.counts
    from hwqueue.claim c
    join hwqueue.placement_class k on k.class_id = c.class_id
    join hwqueue.node n on n.node_id = c.node_id
    cross join hwqueue.affinity_term t
    cross join lateral (
      select k.terms @> jsonb_build_array(jsonb_build_object('digest', t.digest)) as decides,
             case when t.spec #> '{all,0,lease}' is not null
               then (t.spec #>> '{all,0,lease}')::uuid = c.lease_id
               else hwqueue.term_selects(t.spec, k) end as counts offset 0) d
    cross join lateral (
      select coalesce(hwqueue.term_place(t.spec, t.domain, n.node_id, n.rack, n.labels), '') as place
      offset 0) p
    where d.decides or d.counts
  ), running as (
    select t.term_id, t.place, sum(t.counts::int) as leases,
           sum((t.use = 'away' and t.decides)::int) as holders
    from touched t group by t.term_id, t.place
  ), written as (
    select k.term_id, k.place, sum(k.leases) as leases, sum(k.holders) as holders
    from hwqueue.term_counter k group by k.term_id, k.place
  )
  select 'term_count', t.term_id::text, jsonb_build_object('spec', t.spec, 'place', d.place,
           'written', array[d.leases, d.holders], 'counted', array[d.running_leases, d.running_holders])
  from (
    select coalesce(w.term_id, r.term_id) as term_id, coalesce(w.place, r.place) as place,
           coalesce(w.leases, 0) as leases, coalesce(w.holders, 0) as holders,
           coalesce(r.leases, 0) as running_leases, coalesce(r.holders, 0) as running_holders
    from written w full join running r on r.term_id = w.term_id and r.place = w.place
  ) d
  join hwqueue.affinity_term t on t.term_id = d.term_id and t.published_at is not null
  where (d.leases, d.holders) <> (d.running_leases, d.running_holders)
  union all
  select 'away', h.lease_id::text,
         jsonb_build_object('term', h.term_id, 'domain', h.domain, 'place', h.place, 'from', m.lease_id)
  from touched h
  join touched m on m.term_id = h.term_id and m.place = h.place and m.counts and m.lease_id <> h.lease_id
  where h.use = 'away' and h.decides and h.is_placed and m.is_placed
  union all
  select 'max_per_domain', min(h.lease_id::text),
         jsonb_build_object(
           'term', h.term_id, 'domain', h.domain, 'place', h.place, 'limit', s.most, 'running', count(*))
  from touched h
  cross join lateral (
    select min((s.value ->> 'max_per_domain')::bigint) as most
    from jsonb_array_elements(h.spread) s
    join hwqueue.affinity_term t on t.term_id = h.term_id
    where s.value ? 'max_per_domain'
      and (h.terms #>> array[s.value ->> 'term', 'digest'])::bigint = t.digest) s
  where h.use = 'cap' and h.decides and h.counts and h.stop_requested_at is null and h.is_placed
  group by h.term_id, h.domain, h.place, s.most
  having count(*) > s.most
  union all
  select 'hidden_label', l.lease_id::text, jsonb_build_object('term', t.term_id, 'label', e.value -> 'label')
  from hwqueue.affinity_term t
  cross join lateral jsonb_array_elements(t.spec -> 'all') i
  cross join lateral jsonb_array_elements(i.value -> 'exprs') e
  join hwqueue.placement_class c on c.labels @> jsonb_build_object(e.value ->> 'label', null)
    and (i.value -> 'tenants' = '"*"' or i.value -> 'tenants' ? c.tenant)
  join hwqueue.lease l on l.class_id = c.class_id
  where t.published_at is not null
    and not exists (select from hwqueue.outcome o where o.lease_id = l.lease_id)
$$;

-- All that a class must know of other leases, on every node: {"terms": [{PLACE: {"held", "bound",
-- "here"}}, ...] in the order of its terms, "spread": [spread_counts, ...] in the order of its spread}. held:
-- leases that run there; bound: without those asked to stop, but in the whole fleet; here: also without the
-- expired and, for max_skew, those on dead nodes. And where running leases that require to be away from it
-- keep it out: "kept_out": [DOMAIN, ...], "kept_at": {"DOMAIN@PLACE": true}.
-- p_lease: the lease that asks; null: one that is not spawned yet.
create or replace function hwqueue.recount_terms(p_class hwqueue.placement_class, p_lease uuid,
  p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
  v_hiding jsonb[] := array(
    select distinct jsonb_build_object(e #>> '{}', null)
    from jsonb_path_query(p_class.terms, 'lax $[*].spec.all[*].exprs[*].label') e);
begin
  return (
    with term as materialized (
      select s.ordinality as index, s.value -> 'spec' as spec,
             hwqueue.term_domain(s.value -> 'spec') as domain
      from jsonb_array_elements(p_class.terms) with ordinality s
    ), running as materialized (
      select k.* from (select distinct c.class_id from hwqueue.claim c) u
      cross join lateral (  -- a fence (offset 0): by key, also before the tables are analyzed
        select x.class_id, x.queue_id, x.task_name, x.tenant, x.service_id, x.labels, x.target, x.terms
        from hwqueue.placement_class x where x.class_id = u.class_id offset 0) k
    ), of_labels as materialized (  -- a class that hides a key which its terms name, by labels of its leases
      select r.*, h.labels as all_labels, h.lease_ids
      from running r
      left join lateral (
        select l.labels, array_agg(l.lease_id) as lease_ids
        from hwqueue.claim c join hwqueue.lease l on l.lease_id = c.lease_id
        where c.class_id = r.class_id and r.labels @> any (v_hiding) group by 1) h on true
    ), alike as materialized (
      -- by all that term_selects reads of a class: very many classes may run that differ in the rest
      select array_agg(r.class_id) as class_ids, jsonb_agg(r.lease_ids) as lease_ids, r.all_labels
      from of_labels r
      group by r.queue_id, r.task_name, r.tenant, r.service_id, r.labels, r.target, r.all_labels
    ), sought as materialized (  -- what its terms select, and what keeps away from it (index is null)
      select t.index, t.domain, a.class_ids[n.number] as class_id, a.lease_ids -> n.number - 1 as lease_ids
      from term t cross join alike a cross join lateral generate_subscripts(a.class_ids, 1) n(number)
      where (select hwqueue.term_selects(t.spec, case when a.all_labels is null then k
               else jsonb_populate_record(k, jsonb_build_object('labels', a.all_labels)) end)
             from hwqueue.placement_class k where k.class_id = a.class_ids[1])
      union all
      select distinct null::bigint, hwqueue.term_domain(t.value -> 'spec'), r.class_id, null::jsonb
      from running r cross join lateral jsonb_array_elements(r.terms) t
      where t.value #>> '{spec,use}' = 'away' and (hwqueue.term_selects(t.value -> 'spec', p_class)
        or (t.value #>> '{spec,all,0,lease}')::uuid = p_lease)
    ), on_node as materialized (  -- before a place is found: many run on each node
      select s.index, s.domain, c.node_id, count(*) as held,
             count(*) filter (where c.stop_requested_at <= p_now is not true) as staying,
             count(*) filter (where c.stop_requested_at <= p_now is not true and c.expires_at > p_now) as here
      from sought s join hwqueue.claim c on c.class_id = s.class_id
        and (coalesce(s.lease_ids, 'null') = 'null' or s.lease_ids ? c.lease_id::text)
      group by s.index, s.domain, c.node_id
    ), placed as materialized (
      select o.index, o.domain, sum(o.held) as held,
             coalesce(hwqueue.term_place(coalesce(t.spec, '{}'), o.domain, n.node_id, n.rack, n.labels), '')
               as place,
             sum(case o.domain when 'fleet' then o.held else o.staying end) as bound,
             sum(case when t.spec ->> 'use' <> 'skew' or hwqueue.is_live(n, s, p_now) then o.here else 0 end)
               as here
      from on_node o
      left join term t on t.index = o.index
      join hwqueue.node n on n.node_id = o.node_id
      join hwqueue.node_state s on s.node_id = o.node_id
      group by o.index, o.domain, 4
    ), counted as materialized (
      select coalesce(jsonb_agg(coalesce((
               select jsonb_object_agg(p.place,
                        jsonb_build_object('held', p.held, 'here', p.here, 'bound', p.bound))
               from placed p where p.index = t.index), '{}') order by t.index), '[]') as terms
      from term t
    )
    select jsonb_build_object('terms', c.terms, 'spread', (
        select coalesce(jsonb_agg(case when s.value ? 'max_skew'
          then hwqueue.spread_counts(s.value, p_class, c.terms, p_now) end order by s.ordinality), '[]')
        from jsonb_array_elements(p_class.spread) with ordinality s),
      'kept_out', k.domains, 'kept_at', k.places)
    from counted c
    cross join (
      select coalesce(jsonb_agg(distinct p.domain), '[]') as domains,
             coalesce(jsonb_object_agg(p.domain || '@' || p.place, true), '{}') as places
      from placed p where p.index is null and p.place <> '') k);
end
$$;
