-- What a class must meet in a node's own place (class_rule), so that many classes can be asked about at once.

-- Writes the rules of classes whose terms have their rows.
-- Locks: the caller holds the shard's row.
create or replace function hwqueue.write_rules(p_class_ids bigint[], p_shard int) returns void
language plpgsql volatile
as $$
begin
  delete from hwqueue.class_rule r where r.shard_id = p_shard and r.class_id = any (p_class_ids);
  insert into hwqueue.class_rule (shard_id, class_id, term_id, use, most, is_self, lease_id)
  select p_shard, c.class_id, t.term_id, case when d.decides then t.use else 'known' end, d.most, (s.value -> 'self')::boolean,
         case when d.decides then (t.spec #>> '{all,0,lease}')::uuid end
  from hwqueue.placement_class c
  cross join lateral jsonb_array_elements(c.terms) with ordinality s
  cross join lateral (  -- fenced: by digest, not all terms for each class
    select * from hwqueue.term x where x.shard_id = p_shard and x.digest = (s.value ->> 'digest')::bigint offset 0) t
  left join lateral (
    select true as decides, r.most
    from (
      select e.value ->> 'term' as index, null::bigint as most from jsonb_array_elements(c.required) e where e.value ? 'term'
      union all
      select e.value ->> 'term', coalesce(e.value ->> 'max_per_domain', e.value ->> 'max_skew')::bigint from jsonb_array_elements(c.spread) e
      where not e.value ?| array['targets', 'when', 'tally']
    ) r
    where r.index::bigint = s.ordinality - 1) d on true
  where c.shard_id = p_shard and c.class_id = any (p_class_ids);
end
$$;

-- Those of these classes that may not run on a node now, by what has been counted there and by where single
-- leases run; others may be blocked as well, which a closer look tells (enter_terms). One may be named twice.
-- Never one that may run: being with leases all of which are about to leave is left to that look.
-- lasting: those whose reason is known, with what proves that it still holds (known, see claim_candidates).
-- Statements of their own rather than a union, which costs as much again.
create or replace function hwqueue.blocked_classes(p_classes bigint[], p_node hwqueue.node, p_now timestamptz, p_shard int,
  out blocked bigint[], out lasting bigint[], out known hwqueue.node_candidates)
language plpgsql stable
as $$
declare
  v_held record;
  v_waits record;
begin
  with found as materialized (
    select r.classes, r.term_id, p.place, r.use = 'away' and t.published_at is not null as lasts
    from (  -- many classes may have a term in common: it is asked about once
      select c.term_id, c.use, c.most, c.is_self, array_agg(c.class_id) as classes
      from hwqueue.class_rule c where c.shard_id = p_shard and c.class_id = any (p_classes) and c.lease_id is null
      group by c.term_id, c.use, c.most, c.is_self) r
    cross join lateral (select * from hwqueue.term x where x.shard_id = p_shard and x.term_id = r.term_id offset 0) t
    cross join lateral (
      select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
    cross join lateral (
      select coalesce(sum(k.leases), 0) as leases from hwqueue.term_count k
      where r.use <> 'known' and k.shard_id = p_shard and k.term_id = r.term_id and k.domain = p.place) n
    where t.published_at is null or p.place is not null and case r.use
      when 'away' then n.leases > 0
      when 'cap' then n.leases + r.is_self::int > r.most
        and ((select hwqueue.none_leaves(p_now, p_shard)) or n.leases - hwqueue.leaving(r.term_id, p.place, false, p_now, p_shard) + r.is_self::int > r.most)
      when 'skew' then n.leases + r.is_self::int > r.most and hwqueue.level_reason(
        jsonb_build_object('max_skew', r.most), jsonb_build_object('value', p.place, 'held', n.leases, 'self', r.is_self),
        t.digest, p_now, p_shard) = 'spread_exceeded'
      when 'toward' then n.leases <= 0 and (not r.is_self or case when (select hwqueue.none_leaves(p_now, p_shard)) then hwqueue.read_total(r.term_id, p_shard)
                                                              else hwqueue.staying(r.term_id, null, null, true, p_now, p_shard) end > 0)
      end)
  select array(select unnest(f.classes) from found f), array(select unnest(f.classes) from found f where f.lasts),
         array(select f.term_id from found f where f.lasts), array(select f.place from found f where f.lasts)
  into blocked, lasting, known.term_ids, known.places;
  known.by_holders := array_fill(false, array[cardinality(known.term_ids)]);
  if exists (select 1 from hwqueue.class_rule c where c.shard_id = p_shard and c.lease_id is not null order by c.lease_id limit 1) then
    blocked := blocked || hwqueue.blocked_by_leases(p_classes, p_node, p_now, p_shard);
  end if;
  with found as materialized (
    select case when t.target is null then m.classes else array(  -- a class that others use as well is tried
             select c.class_id from hwqueue.placement_class c
             where c.shard_id = p_shard and c.class_id = any (m.classes) and c.target = t.target) end as classes,
           t.term_id, p.place, t.use = 'away' and n.holders > 0 as lasts
    from (
      select c.term_id, array_agg(c.class_id) as classes
      from hwqueue.class_term c where c.shard_id = p_shard and c.class_id = any (p_classes) group by c.term_id) m
    cross join lateral (
      select x.*, (x.spec #>> '{all,0,lease}')::uuid as target from hwqueue.term x where x.shard_id = p_shard and x.term_id = m.term_id offset 0) t
    cross join lateral (
      select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
    cross join lateral hwqueue.read_count(t.term_id, p.place, p_shard) n
    where t.use = 'away' and n.holders > 0 or t.holds_up and t.published_at is null and t.target is null)
  select array(select unnest(f.classes) from found f) as blocked, array(select unnest(f.classes) from found f where f.lasts) as lasting,
         array(select f.term_id from found f where f.lasts) as term_ids, array(select f.place from found f where f.lasts) as places
  into v_held;
  v_waits := hwqueue.waiting_classes(p_classes, p_node, p_now, p_shard);
  blocked := blocked || v_held.blocked || v_waits.classes;
  lasting := lasting || v_held.lasting || v_waits.classes;
  known.term_ids := known.term_ids || v_held.term_ids;
  known.places := known.places || v_held.places;
  known.by_holders := known.by_holders || array_fill(true, array[cardinality(v_held.term_ids)]);
  known.fleet_next := v_waits.next_xid;
  known.fleet_unseen := v_waits.unseen;
  known.until := coalesce(v_waits.until, p_now + interval '10 seconds');
end
$$;

-- Whether nobody is about to leave: no claim was asked to stop, none has expired.
create or replace function hwqueue.none_leaves(p_now timestamptz, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return not exists (
      select 1 from hwqueue.claim c where c.shard_id = p_shard and c.stop_requested_at <= p_now)
    and not exists (
      select 1 from hwqueue.claim c
      where c.shard_id = p_shard and c.check_at between hwqueue.claims_from(p_shard) and p_now and c.expires_at <= p_now);
end
$$;
