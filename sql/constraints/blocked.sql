-- Which classes are blocked on a node for now: by affinity terms (blocked_classes), or because they wait for
-- a better node (waiting_classes, waits_for); and which each claim checks (must_be_checked).
--
-- A claim drops, in a few statements for all its candidate classes, those that may not run here, and caches
-- the answers whose reason lasts. Only the others are checked one by one, under lock stripes (decide_class).
-- The invariant: a class that may run is never returned.
--
-- Delay scheduling (patience): nodes pull their work, so without a wait the first node to claim would get the
-- lease. So it is withheld from a node, for at most its patience, while a better node lives:
--
--   wait = patience x (best - affinity of this node) / (best - worst)
--
-- best and worst are taken over live, uncordoned nodes that may run the lease and whose total capacity
-- suffices. The wait counts from the moment the lease became claimable (eligible_at), and nothing sets
-- that back.

-- Those of p_classes that may not run on a node now; one may be returned twice. admit_class finds out what
-- else is blocked: for instance those that must be with leases that are all about to stop.
-- lasting: the classes whose reason can be cached, with what proves that it still holds in known (see
-- claim_candidates). Separate statements, because one union takes twice as long.
create or replace function hwqueue.blocked_classes(p_classes bigint[], p_node hwqueue.node, p_now timestamptz,
  out blocked bigint[], out lasting bigint[], out known hwqueue.node_candidates)
language plpgsql stable
as $$
declare
  v_held record;
  v_waits record;
begin
  with stopping as materialized (  -- none: counters need no correction for leases that are about to stop
    select exists (select 1 from hwqueue.claim c where c.stop_requested_at <= p_now)
      or exists (
        select 1 from hwqueue.claim c
        where c.check_at between hwqueue.claims_scan_start() and p_now and c.expires_at <= p_now) as is_any
  ), found as materialized (
    select r.classes, r.term_id, p.place, r.use = 'away' and t.published_at is not null as lasts
    from (  -- classes often share a term: each term is evaluated once
      select c.term_id, c.use, c.most, c.is_self, array_agg(c.class_id) as classes
      from hwqueue.class_term c where c.class_id = any (p_classes) and c.is_own and c.lease_id is null
      group by c.term_id, c.use, c.most, c.is_self) r
    cross join lateral (
      select * from hwqueue.affinity_term x where x.term_id = r.term_id offset 0) t
    cross join lateral (
      select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
    cross join lateral (
      select coalesce(sum(k.leases), 0) as leases from hwqueue.term_counter k
      where r.use <> 'known' and k.term_id = r.term_id and k.place = p.place) n
    where t.published_at is null or p.place is not null and case r.use
      when 'away' then n.leases > 0
      when 'cap' then n.leases + r.is_self::int > r.most
        and (t.domain = 'fleet' or not (select s.is_any from stopping s)
          or n.leases + r.is_self::int - coalesce((
            hwqueue.stopping_by_place(r.term_id, false, '{}', p_now) ->> p.place)::bigint, 0) > r.most)
      when 'skew' then n.leases + r.is_self::int > r.most
        and hwqueue.cached_skew_reason(jsonb_build_object('max_skew', r.most),
          jsonb_build_object('value', p.place, 'held', n.leases, 'self', r.is_self),
          t.digest, p_now) = 'spread_exceeded'
      when 'toward' then n.leases <= 0
        and (not r.is_self or case when (select s.is_any from stopping s)
          then hwqueue.remaining_count(r.term_id, null, p_now)
          else (select coalesce(sum(k.leases), 0) from hwqueue.term_counter k where k.term_id = r.term_id)
          end > 0)
      end)
  select array(select unnest(f.classes) from found f),
         array(select unnest(f.classes) from found f where f.lasts),
         array(select f.term_id from found f where f.lasts),
         array(select f.place from found f where f.lasts)
  into blocked, lasting, known.term_ids, known.places;
  known.by_holders := array_fill(false, array[cardinality(known.term_ids)]);
  if exists (select 1 from hwqueue.class_term c where c.lease_id is not null
      order by c.lease_id limit 1) then
    -- by a requirement about one lease (see lease_fact): the class must be with the lease, which runs
    -- elsewhere, or neither runs nor has succeeded; or away from it, and it runs in the same place
    blocked := blocked || array(
      select unnest(r.classes)
      from (
        select c.term_id, c.use, c.lease_id, array_agg(c.class_id) as classes
        from hwqueue.class_term c where c.class_id = any (p_classes) and c.is_own and c.lease_id is not null
        group by c.term_id, c.use, c.lease_id) r
      cross join lateral (
        select * from hwqueue.affinity_term x where x.term_id = r.term_id offset 0) t
      cross join lateral (
        select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
      left join lateral (
        select c.node_id, c.stop_requested_at <= p_now is not true and c.expires_at > p_now as stays
        from hwqueue.claim c where c.lease_id = r.lease_id offset 0) runs on true
      left join lateral (
        select o.node_id from hwqueue.outcome o where runs.node_id is null and o.lease_id = r.lease_id
          and (o.state = 'completed') is true offset 0) ran on true
      left join lateral (
        select hwqueue.domain_value(t.domain, n.node_id, n.rack, n.labels) as place
        from hwqueue.node n where n.node_id = coalesce(runs.node_id, ran.node_id) offset 0) there on true
      where t.published_at is null or p.place is not null and case r.use
        when 'toward' then (there.place = p.place and coalesce(runs.stays, true)) is not true
        when 'away' then runs.node_id is not null and there.place = p.place
        end);
  end if;
  -- by leases that run in the node's place and require to be away from them (holders), which can be cached,
  -- and by terms that select them and are not published yet
  with found as materialized (
    -- a term that names a lease blocks the lease's own class; a class shared with other leases is tried
    select case when t.target is null then m.classes else array(
             select c.class_id from hwqueue.placement_class c
             where c.class_id = any (m.classes) and c.target = t.target)
           end as classes,
           t.term_id, p.place, t.use = 'away' and n.holders > 0 as lasts
    from (
      select c.term_id, array_agg(c.class_id) as classes
      from hwqueue.class_term c where c.class_id = any (p_classes) and not c.is_own group by c.term_id) m
    cross join lateral (
      select x.*, (x.spec #>> '{all,0,lease}')::uuid as target from hwqueue.affinity_term x
      where x.term_id = m.term_id offset 0) t
    cross join lateral (
      select hwqueue.domain_value(t.domain, p_node.node_id, p_node.rack, p_node.labels) as place offset 0) p
    cross join lateral hwqueue.read_count(t.term_id, p.place) n
    where t.use = 'away' and n.holders > 0 or t.was_published and t.published_at is null and t.target is null)
  select array(select unnest(f.classes) from found f) as blocked,
         array(select unnest(f.classes) from found f where f.lasts) as lasting,
         array(select f.term_id from found f where f.lasts) as term_ids,
         array(select f.place from found f where f.lasts) as places
  into v_held;
  v_waits := hwqueue.waiting_classes(p_classes, p_node, p_now);
  blocked := blocked || v_held.blocked || v_waits.classes;
  lasting := lasting || v_held.lasting || v_waits.classes;
  known.term_ids := known.term_ids || v_held.term_ids;
  known.places := known.places || v_held.places;
  known.by_holders := known.by_holders || array_fill(true, array[cardinality(v_held.term_ids)]);
  known.fleet_next := v_waits.next_xid;
  known.fleet_unseen := v_waits.unseen;
  known.valid_until := coalesce(v_waits.until, p_now + interval '10 seconds');
end
$$;

-- Those of p_classes whose leases all wait for a better node, by the cached class_range.
-- until: when the first of them may have waited long enough if no node moves (next_xid and unseen say
-- what this scan has seen). That is at most a second away: a lease that changes its class (update_lease)
-- or commits late may be older than the class head seen here. Joined by hash, which takes half the time.
create or replace function hwqueue.waiting_classes(p_classes bigint[], p_node hwqueue.node, p_now timestamptz,
  out classes bigint[], out until timestamptz, out next_xid xid8, out unseen xid8[])
language plpgsql stable set enable_hashjoin = on set enable_nestloop = off
as $$
declare
  v_moved xid8;
  v_profile_id bigint;  -- the one that is judged for the node
begin
  classes := '{}';
  perform 1 from hwqueue.class_range r limit 1;
  if not found then
    return;  -- no class waits
  end if;
  v_profile_id := (select s.profile_id from hwqueue.node_state s where s.node_id = p_node.node_id);
  v_moved := (select s.moved_xid from hwqueue.node_state s order by s.moved_xid desc limit 1);
  with fresh as materialized (
    select r.* from hwqueue.class_range r
    where r.class_id = any (p_classes) and r.live_until > p_now and v_moved < r.next_xid
  ), moving as materialized (
    select array(
      select s.moved_xid from hwqueue.node_state s
      where s.moved_xid = any (array(
        select u from (select distinct f.unseen from fresh f) d, unnest(d.unseen) u))
      order by s.moved_xid) as xids  -- ordered, so that the index on moved_xid is used
  ), alive as materialized (
    select s.node_id, s.seen_at + s.heartbeat_timeout as until from hwqueue.node_state s
    where s.node_id = any (array(select f.best_node from fresh f union select f.worst_node from fresh f))
  ), known as materialized (
    select r.class_id, r.best, r.worst, least(b.until, w.until, r.live_until) as live_until, c.queue_id,
           c.patience
    from fresh r
    join alive b on b.node_id = r.best_node and b.until > p_now
    join alive w on w.node_id = r.worst_node and w.until > p_now
    join hwqueue.placement_class c on c.class_id = r.class_id
    where c.class_id = any (p_classes) and not r.unseen && (select m.xids from moving m)
  ), open_queue as materialized (
    select q.queue_id, q.patience, f.tier, f.rank, f.position,
           (select true from hwqueue.ready x  -- most queues have one tier and rank
            where x.queue_id = q.queue_id and (x.tier, x.rank) > (f.tier, f.rank)
            order by x.tier, x.rank, x.position limit 1) as has_more
    from hwqueue.queue q
    cross join lateral hwqueue.first_live_entry(q.queue_id) f
    where q.queue_id = any (array(select distinct k.queue_id from known k))
  )
  select coalesce(array_agg(k.class_id), '{}'),
         min(least(h.eligible_at + w.wait, k.live_until, p_now + interval '1 second'))
  into classes, until
  from known k join open_queue q on q.queue_id = k.queue_id
  cross join lateral (  -- "between": by its key, not by the class alone, which many profiles have
    select e.affinity from hwqueue.eligibility e
    where e.profile_id = v_profile_id and e.queue_id = k.queue_id
      and e.class_id between k.class_id and k.class_id
    union all
    select e.affinity from hwqueue.eligibility e
    where e.node_id = p_node.node_id and e.queue_id = k.queue_id
      and e.class_id between k.class_id and k.class_id
    limit 1) e
  cross join lateral (
    select x.tier, x.rank, x.eligible_at from hwqueue.ready x
    where x.class_id = k.class_id and (x.tier, x.rank, x.position) >= (q.tier, q.rank, q.position)
    order by x.tier, x.rank, x.position limit 1) h
  cross join lateral (
    select hwqueue.wait_between(coalesce(k.patience, q.patience), e.affinity, k.best, k.worst) as wait) w
  where h.eligible_at + w.wait > p_now
    -- in its tier and rank all behind the head are younger. Not an anti join: it would read all that wait
    and (q.has_more is null or (
      select true from hwqueue.ready x where x.class_id = k.class_id and (x.tier, x.rank) > (h.tier, h.rank)
      order by x.tier, x.rank, x.position limit 1) is null);
  if classes <> '{}' then
    select s.next_xid, s.unseen into next_xid, unseen from hwqueue.visible_now() s;
  end if;
end
$$;

-- How long leases of a class wait for a better node than this one, from the moment they became
-- claimable; their patience if the lease at hand has waited that long. A class does not wait for its
-- preferences about other leases, which change at any moment.
-- is_known: the fleet did not have to be scanned, or the result is not worth caching.
create or replace function hwqueue.waits_for(p_class hwqueue.placement_class, p_node hwqueue.node,
  p_eligible_at timestamptz, p_now timestamptz, out wait interval, out is_known boolean)
language plpgsql stable
as $$
declare
  v_patience interval := p_class.patience;
  v_affinity double precision;  -- of this node
  v_range hwqueue.class_range;
begin
  wait := '0';
  is_known := true;
  if p_class.preferred = '[]' and hwqueue.node_taints(p_node) = '[]' then
    return;  -- all nodes suit it equally
  elsif v_patience is null then
    v_patience := (select q.patience from hwqueue.queue q where q.queue_id = p_class.queue_id);
  end if;
  if p_eligible_at + v_patience <= p_now then
    wait := v_patience;  -- younger leases of the class still wait
    return;
  end if;
  v_affinity := hwqueue.fixed_affinity(p_class, p_node.labels, p_node.rack, p_node.node_id,
    p_node.resources || p_node.gpu_ids, hwqueue.node_taints(p_node));
  if v_affinity is null or v_affinity >= hwqueue.best_affinity(p_class) then
    return;
  end if;
  v_range := hwqueue.cached_range(p_class.class_id, p_now);
  if v_range.class_id is null then
    is_known := p_class.preferred = '[]';
    v_range := hwqueue.scan_range(p_class, p_now);
  end if;
  wait := hwqueue.wait_between(v_patience, v_affinity, v_range.best, v_range.worst);
end
$$;

-- The wait on a node of affinity p_here, given the best and the worst affinity in the fleet.
create or replace function hwqueue.wait_between(p_patience interval, p_here double precision,
  p_best double precision, p_worst double precision) returns interval
language sql immutable parallel safe
as $$
  select case when p_best > p_here
    then p_patience * ((p_best - p_here) / (p_best - least(p_worst, p_here))) else '0' end
$$;

-- The highest affinity that any node could have for a class. It equals what fixed_affinity computes, to the
-- last bit.
create or replace function hwqueue.best_affinity(p_class hwqueue.placement_class) returns double precision
language plpgsql immutable
as $$ begin return (
  select hwqueue.class_strength(p_class) * coalesce(
    100 * sum(w.weight) filter (where w.weight > 0) / sum(abs(w.weight)), 0)
  from (
    select (p.value ->> 'weight')::double precision as weight
    from jsonb_array_elements(p_class.preferred) p) w
); end $$;

-- True if each claim of a class must be checked by itself: of a requirement during execution reap is to know,
-- of a choice nobody may have taken another alternative; all others could be refused.
create or replace function hwqueue.must_be_checked(p_class hwqueue.placement_class,
  p_affinity double precision) returns boolean
language plpgsql stable
as $$ begin return
  p_class.terms <> '[]' or p_class.is_choice or hwqueue.binds_during_execution(p_class)
    or exists (select 1 from hwqueue.class_term m where m.class_id = p_class.class_id and not m.is_own)
    or hwqueue.has_stale_policy(p_class)
    or p_class.patience is distinct from interval '0' and p_affinity < hwqueue.best_affinity(p_class);
end $$;

-- must_be_checked for a lease that is reserved. A claim takes leases of classes that a profile has judged,
-- and the session that judges one writes which terms select it. A reservation may come before that.
create or replace function hwqueue.reservation_must_be_checked(p_class hwqueue.placement_class)
returns boolean
language plpgsql volatile
as $$
begin
  if not exists (select 1 from hwqueue.eligibility e where e.class_id = p_class.class_id) then
    perform hwqueue.note_selected(array[p_class.class_id]);
  end if;
  return hwqueue.must_be_checked(p_class, hwqueue.best_affinity(p_class));
end
$$;
