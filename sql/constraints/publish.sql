-- Publishing affinity terms: every claim counts for a new term before any claim decides by it.
--
-- Example: a spawn writes the first lease that must be away from app=db, while a claim of another lease with
-- app=db is under way that has never heard of the term, so it counts nothing. So the lease waits until the
-- term is published. A claim that wants such a lease, or reap, takes three steps (docs, Leases that ask about
-- other leases: A new affinity term): write the term, and its row of class_term for each class that it
-- selects; again once all transactions open then have ended; count what runs.
--
-- A class is a candidate of claims, as far as its terms decide that, if they are all published and it does
-- not wait for a lease to start (placement_class.waits, see term_classes.sql). Other classes are not judged
-- (has_published_terms), so they are in no cached list of what may run and cost claims nothing. When its last
-- term is published a class gets a new created_xid (publish_term), so that every profile judges it as a new
-- class.

-- True if a class is stale: the policy of its service has changed since it was written. None of its leases
-- is claimed until rebind_classes has written the terms of the new policy into it.
create or replace function hwqueue.has_stale_policy(p_class hwqueue.placement_class) returns boolean
language plpgsql stable
as $$ begin
  return p_class.service_id is not null
    and p_class.away_from <> hwqueue.service_away_from(p_class.service_id);
end $$;

-- Writes the terms that their service's policy asks for now into the stale classes among these, to be counted
-- again: claims of these classes may be under way that count for nothing yet. Who judges new classes calls
-- this, too, since a spawn may write a class while the policy changes. p_waits: wait for the rows to change;
-- otherwise, if the installation's row is locked, the classes stay stale for now.
-- Locks: the installation's row; profile rows by id; the classes; terms.
create or replace function hwqueue.rebind_classes(p_class_ids bigint[], p_waits boolean) returns void
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.placement_class c
  where c.class_id = any (p_class_ids) and c.service_id is not null and hwqueue.has_stale_policy(c);
  if not found then
    return;
  elsif p_waits then
    perform 1 from hwqueue.installation s for no key update;
    perform 1 from hwqueue.profile p order by p.profile_id for no key update;
    -- classes that nodes have cached as blocked may be free now (cached_candidates)
    update hwqueue.profile p set classes_seen = p.classes_seen
    where p.profile_id = any (array(
      select distinct e.profile_id from hwqueue.eligibility e where e.class_id = any (p_class_ids)));
  else
    perform 1 from hwqueue.installation s for no key update skip locked;
    if not found then
      return;
    end if;
  end if;
  for v_class in
    select c.* from hwqueue.placement_class c
    where c.class_id = any (p_class_ids) and hwqueue.has_stale_policy(c) order by c.class_id
  loop
    v_class.away_from := hwqueue.service_away_from(v_class.service_id);
    v_class := hwqueue.bind_terms(v_class);
    update hwqueue.placement_class c
    set away_from = v_class.away_from, required = v_class.required, preferred = v_class.preferred,
      spread = v_class.spread, terms = v_class.terms, terms_written = false
    where c.class_id = v_class.class_id;
    delete from hwqueue.class_term m where m.class_id = v_class.class_id and m.is_own;
    perform hwqueue.require_check(array[v_class.class_id]);
    if p_waits then
      perform hwqueue.recount_claims(null, v_class.class_id);
    end if;
    update hwqueue.affinity_term t
    set published_at = null, publish_after_xid = null, written_xid = pg_current_xact_id(),
      created_at = hwqueue.clock()
    where t.digest in (select (s.value ->> 'digest')::bigint from jsonb_array_elements(v_class.terms) s);
  end loop;
  perform hwqueue.write_terms(p_class_ids, null);
end
$$;

-- Moves affinity terms whose failure domain has changed. They are counted again, in other places. Until that
-- is done no claim decides by them, and no lease that they select is claimed.
-- Locks: the installation's row.
create or replace function hwqueue.move_terms() returns void
language plpgsql volatile
as $$
declare
  v_term hwqueue.affinity_term;
  v_new_id bigint;
begin
  perform 1 from hwqueue.affinity_term t
  where t.spec ->> 'domain' = 'failure' and t.domain <> hwqueue.term_domain(t.spec);
  if not found then
    return;
  end if;
  perform 1 from hwqueue.installation s for no key update;
  for v_term in
    select t.* from hwqueue.affinity_term t
    where t.spec ->> 'domain' = 'failure' and t.domain <> hwqueue.term_domain(t.spec) loop
    delete from hwqueue.affinity_term t where t.term_id = v_term.term_id;
    insert into hwqueue.affinity_term
      (digest, spec, use, domain, anchors, written_xid, was_published, created_at)
    values (v_term.digest, v_term.spec, v_term.use, hwqueue.term_domain(v_term.spec),
      v_term.anchors, '0', true, hwqueue.clock())
    returning term_id into v_new_id;
    update hwqueue.class_term m set term_id = v_new_id where m.term_id = v_term.term_id;
    delete from hwqueue.term_counter k where k.term_id = v_term.term_id;
  end loop;
end
$$;

-- Marks classes as checked at the claim, wherever it is cached that a profile or a node may run them.
-- True when there was a row to mark, or another session held a profile or a node.
-- Locks: profile rows and eligibility of nodes, skip locked.
create or replace function hwqueue.require_check(p_class_ids bigint[]) returns boolean
language plpgsql volatile
as $$
declare
  v_profile_ids bigint[] := array(  -- with a null for rows of nodes
    select distinct e.profile_id from hwqueue.eligibility e
    where e.class_id = any (p_class_ids) and not e.is_checked);
  v_locked bigint[];
begin
  v_locked := array(
    select p.profile_id from hwqueue.profile p
    where p.profile_id = any (v_profile_ids) for no key update skip locked);
  -- skip locked: register_node deletes rows of a node, in a transaction that may last. A row that is updated
  -- between the MVCC snapshot and the lock is missed. But the result is true, and the caller then calls again
  update hwqueue.eligibility e set is_checked = true
  where e.ctid = any (array(
    select o.ctid from hwqueue.eligibility o
    where o.class_id = any (p_class_ids) and not o.is_checked
      and (o.node_id is not null or o.profile_id = any (v_locked)) for update skip locked));
  update hwqueue.profile_queue s
  set checked = array(select distinct u from unnest(s.checked || array(
        select e.class_id from hwqueue.eligibility e
        where e.profile_id = s.profile_id and e.queue_id = s.queue_id
          and e.class_id = any (p_class_ids) and e.gpu_count = 0 and e.custom is null)) u limit 201)
  where s.profile_id = any (v_locked);
  return v_profile_ids <> '{}';
end
$$;

-- Takes the next step for up to p_limit terms that are not published, tenants in turn, of the 50 * p_limit
-- oldest (write_terms, too). Returns how many it has published.
-- p_holds: whether running claims may be locked until the caller's transaction ends, to count them. A
-- claim leaves that to reap, since its transaction may stay open. After ten seconds it locks them all the
-- same, because it may be that no worker calls reap. Null: publish nothing, since the caller has counted a
-- lease that does not run yet.
-- Locks: the installation's row, skip locked; profile rows, class rows and claims, skip locked.
create or replace function hwqueue.publish_terms(p_limit int, p_holds boolean, p_now timestamptz) returns int
language plpgsql volatile
as $$
declare
  v_term hwqueue.affinity_term;
  v_is_over boolean;
  v_holds boolean;
  v_changed boolean;
  v_classes bigint[];  -- those that the term selects
  v_new bigint[];
  v_published int := 0;
  v_from timestamptz := coalesce((
    select m.terms_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity');
begin
  perform 1 from hwqueue.installation s for no key update skip locked;
  if not found then
    return 0;
  end if;
  perform hwqueue.write_terms(array(
    select x.class_id from (
      select y.class_id, y.tenant from hwqueue.placement_class y
      where y.terms <> '[]' and not y.terms_written and y.created_at >= v_from
      order by y.created_at, y.class_id limit 50 * p_limit) x
    order by row_number() over (partition by x.tenant order by x.class_id), x.class_id), p_limit);
  if hwqueue.has_unpublished_terms() and not exists (select 1 from hwqueue.lock_stripe g) then
    insert into hwqueue.lock_stripe (stripe_id) select g from generate_series(0, 16383) g;
  end if;
  for v_term in
    select t.* from (
      select y.* from hwqueue.affinity_term y
      where y.published_at is null and y.created_at >= v_from
      order by y.created_at, y.term_id limit 50 * p_limit) t
    order by row_number() over (partition by t.spec #> '{all,0,tenants}' order by t.term_id), t.term_id
    limit p_limit
  loop
    -- written by this transaction: no other can see it yet
    continue when v_term.written_xid = pg_current_xact_id();
    -- read before the classes: they may not show what a transaction wrote that ends after this
    v_is_over := hwqueue.no_open_xid_below(
      coalesce(v_term.publish_after_xid, pg_snapshot_xmax(pg_current_snapshot())));
    v_holds := p_holds or p_holds is not null and v_term.created_at + interval '10 seconds' <= p_now;
    v_changed := v_term.spec #> '{all,0,lease}' is not null
      and not hwqueue.assign_target_class((v_term.spec #>> '{all,0,lease}')::uuid);
    if hwqueue.show_labels(v_term.spec, 2000, v_holds is true) then
      continue when v_holds is not true;
      v_changed := true;
    end if;
    if not v_changed then
      v_classes := hwqueue.selected_classes(v_term.spec);
      v_new := array(
        select c from unnest(v_classes) c
        where not exists (
          select 1 from hwqueue.class_term m
          where m.class_id = c and not m.is_own and m.term_id = v_term.term_id));
      insert into hwqueue.class_term (class_id, term_id) select c, v_term.term_id from unnest(v_new) c;
      -- a new class that no profile has judged makes no difference: a session that judges it knows the
      -- term. One that has judged it already may not have known it. Claims then decide by class_term, and
      -- do not see the rows written here until this transaction commits
      v_changed := hwqueue.require_check(v_classes) or v_term.written_xid = '0';
      v_changed := v_changed or exists (
        select 1 from hwqueue.eligibility e where e.class_id = any (v_new));
    end if;
    if v_changed then
      update hwqueue.affinity_term t set written_xid = pg_current_xact_id(), publish_after_xid = null
        where t.term_id = v_term.term_id;
    elsif not v_is_over then
      update hwqueue.affinity_term t set publish_after_xid = pg_snapshot_xmax(pg_current_snapshot())
      where t.term_id = v_term.term_id
        and coalesce(hwqueue.valid_next_xid(v_term.publish_after_xid), '0') = '0';
    elsif v_holds is not null and hwqueue.publish_term(v_term, v_holds, p_now) then
      perform hwqueue.note_event('term_published',
        format('term %s is published: %s, by %s', v_term.term_id, v_term.use, v_term.domain),
        jsonb_build_object('term_id', v_term.term_id, 'use', v_term.use, 'domain', v_term.domain));
      v_published := v_published + 1;
    end if;
  end loop;
  return v_published;
end
$$;

-- Counts for a term what runs already, granted by claims that did not know it, and publishes it: the
-- classes for which it was the last term not published are candidates, which every profile judges as new.
-- False, having done nothing, when another session holds one of its classes, which may be waking it, or
-- such a claim, which may be settling it; or when there are such claims and p_holds does not allow to
-- lock them. A later call tries again.
-- Locks: the caller holds the installation's row; class rows, claims, term_counter, all skip locked.
create or replace function hwqueue.publish_term(p_term hwqueue.affinity_term, p_holds boolean,
  p_now timestamptz) returns boolean
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_counted jsonb := jsonb_build_array(jsonb_build_object('t', p_term.term_id));
  v_own jsonb := jsonb_build_array(jsonb_build_object('digest', p_term.digest));
  v_lease uuid := (p_term.spec #>> '{all,0,lease}')::uuid;
  v_askers bigint[] := array(
    select k.class_id from hwqueue.placement_class k where k.terms <> '[]' and k.terms @> v_own);
  v_claims uuid[];
  v_locked int;
  v_count record;
begin
  -- held until the term is published: who judged one of them before that has passed it over
  perform from hwqueue.placement_class k where k.class_id = any (v_askers) for no key update skip locked;
  get diagnostics v_locked = row_count;
  if v_locked < cardinality(v_askers) then
    return false;
  end if;
  v_claims := array(
    select c.lease_id from hwqueue.claim c
    join hwqueue.placement_class k on k.class_id = c.class_id
    where c.class_id = any (array(
        select m.class_id from hwqueue.class_term m where m.term_id = p_term.term_id and not m.is_own
        union
        select a from unnest(v_askers) a where p_term.use = 'away'))
      and (c.term_deltas @> v_counted) is not true
      and (coalesce(c.lease_id = v_lease, true) or p_term.use = 'away' and k.terms @> v_own));
  if v_claims <> '{}' and not p_holds then
    return false;
  end if;
  select count(*) into v_locked from (select 1 from hwqueue.claim c where c.lease_id = any (v_claims)
    for update skip locked) l;
  if v_locked < cardinality(v_claims) then
    return false;
  end if;
  for v_count in
    select c.lease_id, jsonb_build_array(t.value) as term_deltas
    from hwqueue.claim c
    join hwqueue.placement_class k on k.class_id = c.class_id
    join hwqueue.node n on n.node_id = c.node_id
    cross join lateral jsonb_array_elements(
      hwqueue.counted_terms((hwqueue.touched_terms(k, c.lease_id, n)).touched)) t
    -- checked again: before the claim was locked, register_node may have counted it
    where c.lease_id = any (v_claims) and (c.term_deltas @> v_counted) is not true
      and (t.value -> 't')::bigint = p_term.term_id
  loop
    update hwqueue.claim c set term_deltas = coalesce(c.term_deltas, '[]') || v_count.term_deltas
    where c.lease_id = v_count.lease_id;
    perform hwqueue.add_counts(v_count.term_deltas, 1);
  end loop;
  update hwqueue.affinity_term t set published_at = p_now where t.term_id = p_term.term_id;
  update hwqueue.placement_class c
  set created_xid = pg_current_xact_id(), is_woken = true, waits = c.waits and hwqueue.waits_for_start(c)
  where c.class_id = any (v_askers) and hwqueue.has_published_terms(c.terms);
  return true;
end
$$;

-- True if no other transaction below an id is open.
create or replace function hwqueue.no_open_xid_below(p_xid xid8) returns boolean
language plpgsql volatile
as $$ begin return
  not exists (
    select 1 from pg_snapshot_xip(pg_current_snapshot()) x where x < p_xid
      and x is distinct from pg_current_xact_id_if_assigned());
end $$;

-- Writes the rows for the terms of up to p_limit of these classes, the first ones, and the rules of these
-- (class_term.is_own): what a class must meet in a node's own place, so that one statement can check many
-- classes (blocked_classes). Skips classes that another session has locked: it may be waking them.
-- Locks: the caller holds the installation's row; class rows, skip locked.
create or replace function hwqueue.write_terms(p_class_ids bigint[], p_limit int) returns void
language plpgsql volatile
as $$
declare
  v_classes bigint[] := array(
    select c.class_id from unnest(p_class_ids) with ordinality u(class_id, turn)
    join hwqueue.placement_class c using (class_id)
    where c.terms <> '[]' and not c.terms_written
    order by u.turn limit p_limit for no key update of c skip locked);
begin
  if v_classes = '{}' then
    return;
  end if;
  insert into hwqueue.affinity_term (digest, spec, use, domain, anchors, written_xid, created_at)
  select distinct on (s.value ->> 'digest') (s.value ->> 'digest')::bigint, s.value -> 'spec',
         s.value #>> '{spec,use}', hwqueue.term_domain(s.value -> 'spec'),
         hwqueue.term_anchors(s.value -> 'spec'), '0'::xid8, hwqueue.clock()
  from hwqueue.placement_class c, jsonb_array_elements(c.terms) s where c.class_id = any (v_classes)
  on conflict do nothing;
  delete from hwqueue.class_term m where m.class_id = any (v_classes) and m.is_own;
  insert into hwqueue.class_term (class_id, term_id, is_own, use, most, is_self, lease_id)
  select c.class_id, t.term_id, true, case when d.decides then t.use else 'known' end, d.most,
         (s.value -> 'self')::boolean,
         case when d.decides then (t.spec #>> '{all,0,lease}')::uuid end
  from hwqueue.placement_class c
  cross join lateral jsonb_array_elements(c.terms) with ordinality s
  cross join lateral (  -- fenced: found by digest, instead of reading all terms for each class
    select * from hwqueue.affinity_term x where x.digest = (s.value ->> 'digest')::bigint offset 0) t
  left join lateral (
    select true as decides, r.most
    from (
      select e.value ->> 'term' as index, null::bigint as most from jsonb_array_elements(c.required) e
      where e.value ? 'term'
      union all
      select e.value ->> 'term', coalesce(e.value ->> 'max_per_domain', e.value ->> 'max_skew')::bigint
      from jsonb_array_elements(c.spread) e
      where not e.value ?| array['targets', 'when', 'tally']
    ) r where r.index::bigint = s.ordinality - 1) d on true
  where c.class_id = any (v_classes);
  update hwqueue.placement_class c
  set terms_written = true, is_woken = true, waits = hwqueue.waits_for_start(c),
      -- new to the profiles that passed it over while a term of it was being published
      created_xid = case when hwqueue.has_published_terms(c.terms) then pg_current_xact_id()
        else c.created_xid end
  where c.class_id = any (v_classes);
end
$$;

-- True if terms are not published yet. With p_is_due: if a step for them is due, which is none while the
-- oldest wait for open transactions.
create or replace function hwqueue.has_unpublished_terms(p_is_due boolean default false) returns boolean
language plpgsql stable
as $$
declare
  v_from timestamptz := coalesce((
    select m.terms_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity');
begin
  return exists (
      select 1 from hwqueue.placement_class c
      where c.terms <> '[]' and not c.terms_written and c.created_at >= v_from order by c.created_at limit 1)
    or exists (
      select 1 from (
        select t.publish_after_xid from hwqueue.affinity_term t
        where t.published_at is null and t.created_at >= v_from order by t.created_at, t.term_id limit 2) t
      where not p_is_due or t.publish_after_xid is null or hwqueue.no_open_xid_below(t.publish_after_xid));
end
$$;

-- Takes a step for new terms if one is due, and returns whether any term is left, on a node that has met an
-- unpublished term (awaits_terms).
-- Locks: the caller holds node_state; then as publish_terms.
create or replace function hwqueue.take_publish_step(p_node uuid, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
begin
  if not hwqueue.has_unpublished_terms() then
    update hwqueue.node_state s set awaits_terms = false where s.node_id = p_node;
    return false;
  end if;
  perform hwqueue.publish_terms(2, false, p_now) where hwqueue.has_unpublished_terms(true);
  return true;
end
$$;
