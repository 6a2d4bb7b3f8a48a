-- Which classes are blocked on a node, and which wait for a better one.

-- Those of these classes that may not run on a node now, by what has been counted there and by where single
-- leases run; others may be blocked as well, which a closer look tells (admit_class). One may be named twice.
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
    cross join lateral (select * from hwqueue.affinity_term x where x.shard_id = p_shard and x.term_id = r.term_id offset 0) t
    cross join lateral (
      select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
    cross join lateral (
      select coalesce(sum(k.leases), 0) as leases from hwqueue.term_counter k
      where r.use <> 'known' and k.shard_id = p_shard and k.term_id = r.term_id and k.domain = p.place) n
    where t.published_at is null or p.place is not null and case r.use
      when 'away' then n.leases > 0
      when 'cap' then n.leases + r.is_self::int > r.most
        and ((select hwqueue.nothing_is_stopping(p_now, p_shard)) or n.leases - hwqueue.stopping_count(r.term_id, p.place, false, p_now, p_shard) + r.is_self::int > r.most)
      when 'skew' then n.leases + r.is_self::int > r.most and hwqueue.cached_skew_reason(
        jsonb_build_object('max_skew', r.most), jsonb_build_object('value', p.place, 'held', n.leases, 'self', r.is_self),
        t.digest, p_now, p_shard) = 'spread_exceeded'
      when 'toward' then n.leases <= 0 and (not r.is_self or case when (select hwqueue.nothing_is_stopping(p_now, p_shard)) then hwqueue.read_total(r.term_id, p_shard)
                                                              else hwqueue.remaining_count(r.term_id, null, null, true, p_now, p_shard) end > 0)
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
      select x.*, (x.spec #>> '{all,0,lease}')::uuid as target from hwqueue.affinity_term x where x.shard_id = p_shard and x.term_id = m.term_id offset 0) t
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
create or replace function hwqueue.nothing_is_stopping(p_now timestamptz, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return not exists (
      select 1 from hwqueue.claim c where c.shard_id = p_shard and c.stop_requested_at <= p_now)
    and not exists (
      select 1 from hwqueue.claim c
      where c.shard_id = p_shard and c.check_at between hwqueue.claims_scan_start(p_shard) and p_now and c.expires_at <= p_now);
end
$$;

-- Those of these classes that a requirement about one lease keeps from a node now: it runs elsewhere, or where they must not be; or they must
-- be with it, and it neither runs nor has succeeded (lease_fact).
create or replace function hwqueue.blocked_by_leases(p_classes bigint[], p_node hwqueue.node, p_now timestamptz, p_shard int) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    select unnest(r.classes)
    from (
      select c.term_id, c.use, c.lease_id, array_agg(c.class_id) as classes
      from hwqueue.class_rule c where c.shard_id = p_shard and c.class_id = any (p_classes) and c.lease_id is not null
      group by c.term_id, c.use, c.lease_id) r
    cross join lateral (select * from hwqueue.affinity_term x where x.shard_id = p_shard and x.term_id = r.term_id offset 0) t
    cross join lateral (
      select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
    left join lateral (
      select c.node_id, c.stop_requested_at <= p_now is not true and c.expires_at > p_now as stays
      from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = r.lease_id offset 0) runs on true
    left join lateral (
      select o.node_id from hwqueue.outcome o
      where runs.node_id is null and o.shard_id = p_shard and o.lease_id = r.lease_id and o.state = 'completed' offset 0) ran on true
    left join lateral (
      select hwqueue.domain_value(t.domain, n.node_id, n.rack, n.labels) as place
      from hwqueue.node n where n.shard_id = p_shard and n.node_id = coalesce(runs.node_id, ran.node_id) offset 0) there on true
    where t.published_at is null or p.place is not null and case r.use
      when 'toward' then (there.place = p.place and coalesce(runs.stays, true)) is not true
      when 'away' then runs.node_id is not null and there.place = p.place
      end);
end
$$;

-- Those of these classes whose leases all wait for a better node, as far as it is remembered how well nodes suit them.
-- until: when the first of them may have waited enough, if no node moves (next_xid, unseen: what this look has
-- seen). At most for a second: a lease that gets another class (update_lease), or is committed late, is older.
-- What is known of many classes is read at once and joined by hash: in half the time.
create or replace function hwqueue.waiting_classes(p_classes bigint[], p_node hwqueue.node, p_now timestamptz, p_shard int,
  out classes bigint[], out until timestamptz, out next_xid xid8, out unseen xid8[])
language plpgsql stable set enable_hashjoin = on set enable_nestloop = off
as $$
declare
  v_moved xid8;
  v_profile_id bigint;  -- that is judged for the node
begin
  classes := '{}';
  perform 1 from hwqueue.class_range r where r.shard_id = p_shard limit 1;
  if not found then  -- nothing waits
    return;
  end if;
  v_profile_id := (select s.profile_id from hwqueue.node_state s where s.shard_id = p_shard and s.node_id = p_node.node_id);
  v_moved := (select s.moved_xid from hwqueue.node_state s where s.shard_id = p_shard order by s.moved_xid desc limit 1);
  with fresh as materialized (
    select r.* from hwqueue.class_range r
    where r.shard_id = p_shard and r.class_id = any (p_classes) and r.live_until > p_now and v_moved < r.next_xid
  ), moving as materialized (
    select array(
      select s.moved_xid from hwqueue.node_state s
      where s.shard_id = p_shard and s.moved_xid = any (array(
        select u from (select distinct f.unseen from fresh f) d, unnest(d.unseen) u))
      order by s.moved_xid) as xids  -- in order, for the index on it
  ), alive as materialized (
    select s.node_id, s.seen_at + s.heartbeat_timeout as until from hwqueue.node_state s
    where s.shard_id = p_shard and s.node_id = any (array(
      select f.best_node from fresh f union select f.worst_node from fresh f))
  ), known as materialized (
    select r.class_id, r.best, r.worst, least(b.until, w.until, r.live_until) as live_until, c.queue_id, c.patience
    from fresh r
    join alive b on b.node_id = r.best_node and b.until > p_now
    join alive w on w.node_id = r.worst_node and w.until > p_now
    join hwqueue.placement_class c on c.class_id = r.class_id
    where c.shard_id = p_shard and c.class_id = any (p_classes) and not r.unseen && (select m.xids from moving m)
  ), open_queue as materialized (
    select q.queue_id, q.patience, f.tier, f.rank, f.position,
           (select true from hwqueue.ready x  -- mostly a queue has one tier and rank
            where x.shard_id = p_shard and x.queue_id = q.queue_id and (x.tier, x.rank) > (f.tier, f.rank)
            order by x.tier, x.rank, x.position limit 1) as has_more
    from hwqueue.queue q
    cross join lateral hwqueue.first_live_entry(q.queue_id, p_shard) f
    where q.shard_id = p_shard and q.queue_id = any (array(select distinct k.queue_id from known k))
  )
  select coalesce(array_agg(k.class_id), '{}'), min(least(h.eligible_at + w.wait, k.live_until, p_now + interval '1 second'))
  into classes, until
  from known k
  join open_queue q on q.queue_id = k.queue_id
  cross join lateral (
    select e.affinity from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.profile_id = v_profile_id and e.queue_id = k.queue_id and e.class_id = k.class_id
    union all
    select e.affinity from hwqueue.node_eligibility e
    where e.shard_id = p_shard and e.node_id = p_node.node_id and e.queue_id = k.queue_id and e.class_id = k.class_id
    limit 1) e
  cross join lateral (
    select x.tier, x.rank, x.eligible_at from hwqueue.ready x
    where x.shard_id = p_shard and x.class_id = k.class_id and (x.tier, x.rank, x.position) >= (q.tier, q.rank, q.position)
    order by x.tier, x.rank, x.position limit 1) h
  cross join lateral (select hwqueue.wait_between(coalesce(k.patience, q.patience), e.affinity, k.best, k.worst) as wait) w
  where h.eligible_at + w.wait > p_now
    -- behind it in this tier and rank all are younger. No anti join, which would read all that wait
    and (q.has_more is null or (
      select true from hwqueue.ready x
      where x.shard_id = p_shard and x.class_id = k.class_id and (x.tier, x.rank) > (h.tier, h.rank)
      order by x.tier, x.rank, x.position limit 1) is null);
  if classes <> '{}' then
    select s.next_xid, s.unseen into next_xid, unseen from hwqueue.visible_now() s;
  end if;
end
$$;

-- The bounded wait for a better node (design 5.3): in a queue that nodes pull from, a preference means nothing if the first node to ask
-- gets the lease. So a lease is held back from a node, at most for its patience, while a better one lives:
--   wait = patience x (best - affinity here) / (best - worst)
-- over live, uncordoned nodes that may run it and whose total capacity suffices; from the moment the lease became claimable (eligible_at), and
-- nothing sets that back. No better node alive, no wait.

-- How long leases of a class wait for a better node than this one, from the moment they became claimable: no longer than their patience, and
-- exactly that if the lease at hand has waited so long. What a class prefers about other leases changes at any moment: then it does not wait at all.
-- is_known: it was not necessary to look at the fleet, or is not worth remembering. p_looks: look if it is; else there is no wait then.
create or replace function hwqueue.waits_for(p_class hwqueue.placement_class, p_node hwqueue.node, p_eligible_at timestamptz, p_looks boolean,
                                             p_now timestamptz, p_shard int, out wait interval, out is_known boolean)
language plpgsql stable
as $$
declare
  v_patience interval := p_class.patience;
  v_here double precision;
  v_range hwqueue.class_range;
begin
  wait := '0';
  is_known := true;
  if p_class.preferred = '[]' and hwqueue.node_taints(p_node) = '[]' then
    return;  -- all nodes are as good
  elsif v_patience is null then
    v_patience := (select q.patience from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_class.queue_id);
  end if;
  if p_eligible_at + v_patience <= p_now then
    wait := v_patience;  -- younger leases of the class are not through
    return;
  end if;
  v_here := hwqueue.fixed_affinity(p_class, p_node.labels, p_node.rack, p_node.node_id, p_node.resources || p_node.gpu_ids,
                                   hwqueue.node_taints(p_node));
  if v_here is null or v_here >= hwqueue.best_affinity(p_class) then
    return;
  end if;
  v_range := hwqueue.cached_range(p_class.class_id, p_now, p_shard);
  if v_range.class_id is null then
    is_known := p_class.preferred = '[]';
    if not p_looks then
      return;
    end if;
    v_range := hwqueue.scan_range(p_class, p_now, p_shard);
  end if;
  wait := hwqueue.wait_between(v_patience, v_here, v_range.best, v_range.worst);
end
$$;

-- The wait on a node of that affinity.
create or replace function hwqueue.wait_between(p_patience interval, p_here double precision, p_best double precision, p_worst double precision)
returns interval
language sql immutable parallel safe
as $$
  select case when p_best > p_here then p_patience * ((p_best - p_here) / (p_best - least(p_worst, p_here))) else '0' end
$$;

-- The highest affinity that any node could have for a class, its strength included: as fixed_affinity has it, to the last bit.
create or replace function hwqueue.best_affinity(p_class hwqueue.placement_class) returns double precision
language sql immutable
as $$
  select hwqueue.class_strength(p_class) * coalesce(100 * sum(w.weight) filter (where w.weight > 0) / sum(abs(w.weight)), 0)
  from (select (p.value ->> 'weight')::double precision as weight from jsonb_array_elements(p_class.preferred) p) w
$$;

-- Whether each claim of a class must be checked by itself: it or others ask something about other leases, or it might like another node better.
create or replace function hwqueue.must_be_checked(p_class hwqueue.placement_class, p_affinity double precision, p_shard int) returns boolean
language sql stable
as $$
  select p_class.terms <> '[]' or hwqueue.is_selected(p_class.class_id, p_shard) or hwqueue.is_stale(p_class, p_shard)
    or p_class.patience is distinct from interval '0' and p_affinity < hwqueue.best_affinity(p_class)
$$;
