-- New affinity terms: publishing them so that every claim counts for them before one decides by them.

-- Classes that are new, and the terms that select them.

-- Writes down which terms select the classes of a batch. A term that is written at this moment finds them itself, or this call's mark.
-- Without index scans: a young term table would be read by its key, all of it for each class.
-- Idempotent: yes; two calls at once may write the same row twice, which does no harm.
create or replace function hwqueue.note_selected(p_class_ids bigint[], p_shard int) returns void
language plpgsql volatile set enable_bitmapscan = on set enable_indexscan = off
as $$
begin
  perform 1 from hwqueue.affinity_term t where t.shard_id = p_shard limit 1;
  if found then
    insert into hwqueue.class_term (shard_id, class_id, term_id)
    select p_shard, c.class_id, t.term_id
    from hwqueue.placement_class c
    join hwqueue.affinity_term t on t.shard_id = p_shard and t.anchors && hwqueue.selected_anchors(c) and hwqueue.term_selects(t.spec, c)
    where c.shard_id = p_shard and c.class_id = any (p_class_ids)
      and not exists (select 1 from hwqueue.class_term m
                      where m.shard_id = p_shard and m.class_id = c.class_id and m.term_id = t.term_id);
  end if;
end
$$;

-- Whether any term selects a class.
create or replace function hwqueue.is_selected(p_class_id bigint, p_shard int) returns boolean
language sql stable
as $$ select exists (select 1 from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = p_class_id) $$;

-- Whether a class goes by a policy of its service that has changed: until it is bound anew, none of its leases is claimed.
create or replace function hwqueue.is_stale(p_class hwqueue.placement_class, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return p_class.service_id is not null and p_class.away_from <> hwqueue.service_away_from(p_class.service_id, p_shard);
end
$$;

-- Gives stale classes among these the terms that their service's policy asks for now. The terms are counted anew: claims of these classes may be
-- under way that count for nothing yet. Whoever judges new classes calls it, too, since a spawn may write a class while the policy
-- changes; with p_waits it waits for whom it must tell, else, if the shard's row is taken, the classes stay stale for now.
-- Locks: the shard's row; profile rows by id; the classes; terms.
create or replace function hwqueue.rebind_classes(p_class_ids bigint[], p_waits boolean, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.placement_class c
  where c.shard_id = p_shard and c.class_id = any (p_class_ids) and c.service_id is not null and hwqueue.is_stale(c, p_shard);
  if not found then
    return;
  elsif p_waits then
    perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update;
    perform 1 from hwqueue.profile p where p.shard_id = p_shard order by p.profile_id for no key update;
    -- what nodes remember as blocked may not be any more (cached_candidates)
    update hwqueue.profile p set classes_seen = p.classes_seen
    where p.shard_id = p_shard and p.profile_id = any (array(
      select distinct e.profile_id from hwqueue.profile_eligibility e
      where e.shard_id = p_shard and e.class_id = any (p_class_ids)));
  else
    perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
    if not found then
      return;
    end if;
  end if;
  for v_class in
    select c.* from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id = any (p_class_ids) and hwqueue.is_stale(c, p_shard) order by c.class_id
  loop
    v_class.away_from := hwqueue.service_away_from(v_class.service_id, p_shard);
    v_class := hwqueue.bind_terms(v_class);
    update hwqueue.placement_class c
    set away_from = v_class.away_from, required = v_class.required, preferred = v_class.preferred, spread = v_class.spread,
        terms = v_class.terms, terms_written = false
    where c.shard_id = p_shard and c.class_id = v_class.class_id;
    delete from hwqueue.class_rule r where r.shard_id = p_shard and r.class_id = v_class.class_id;
    perform hwqueue.set_checked(array[v_class.class_id], p_shard);
    if p_waits then
      perform hwqueue.recount_claims(null, v_class.class_id, p_shard);
    end if;
    update hwqueue.affinity_term t set published_at = null, barrier = null, written_xid = pg_current_xact_id()
    where t.shard_id = p_shard and t.digest in (select (s.value ->> 'digest')::bigint from jsonb_array_elements(v_class.terms) s);
  end loop;
end
$$;

-- Puts the terms in force that speak of a service in its failure domain, or of any service in that of a queue, where that has changed: they
-- are counted anew, in other places, and until that is done nobody decides by them, nor may what they select be claimed.
-- Locks: the shard's row.
create or replace function hwqueue.move_terms(p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_term hwqueue.affinity_term;
  v_new_id bigint;
begin
  perform 1 from hwqueue.affinity_term t
  where t.shard_id = p_shard and t.spec ->> 'domain' = 'failure' and t.domain <> hwqueue.term_domain(t.spec, p_shard);
  if not found then
    return;
  end if;
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update;
  for v_term in
    select t.* from hwqueue.affinity_term t
    where t.shard_id = p_shard and t.spec ->> 'domain' = 'failure' and t.domain <> hwqueue.term_domain(t.spec, p_shard)
  loop
    delete from hwqueue.affinity_term t where t.shard_id = p_shard and t.term_id = v_term.term_id;
    insert into hwqueue.affinity_term (shard_id, digest, spec, use, domain, anchors, written_xid, holds_up, created_at)
    values (p_shard, v_term.digest, v_term.spec, v_term.use, hwqueue.term_domain(v_term.spec, p_shard), v_term.anchors, '0', true, hwqueue.clock())
    returning term_id into v_new_id;
    update hwqueue.class_term m set term_id = v_new_id where m.shard_id = p_shard and m.term_id = v_term.term_id;
    update hwqueue.class_rule r set term_id = v_new_id where r.shard_id = p_shard and r.term_id = v_term.term_id;
    delete from hwqueue.term_counter k where k.shard_id = p_shard and k.term_id = v_term.term_id;
  end loop;
end
$$;

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
    select * from hwqueue.affinity_term x where x.shard_id = p_shard and x.digest = (s.value ->> 'digest')::bigint offset 0) t
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

-- Marks classes that must be checked at the claim wherever it is remembered that somebody may run them. True when there was something to
-- mark, or a profile or node was held by another session.
-- Locks: profile rows and node_eligibility, skip locked.
create or replace function hwqueue.set_checked(p_class_ids bigint[], p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_profile_ids bigint[];
  v_locked bigint[];
  v_pinned boolean := exists (
    select 1 from hwqueue.node_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids) and not e.is_checked);
begin
  if v_pinned then
    update hwqueue.node_eligibility e set is_checked = true
    -- skip locked: register_node deletes them, in a transaction that may last. One that is updated between the snapshot and the lock is missed:
    -- v_pinned says that there was something to mark, and whoever is told so asks again
    where e.ctid = any (array(
      select o.ctid from hwqueue.node_eligibility o
      where o.shard_id = p_shard and o.class_id = any (p_class_ids) and not o.is_checked for update skip locked));
  end if;
  v_profile_ids := array(
    select distinct e.profile_id from hwqueue.profile_eligibility e
    where e.shard_id = p_shard and e.class_id = any (p_class_ids) and not e.is_checked);
  v_locked := array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.profile_id = any (v_profile_ids) for no key update skip locked);
  update hwqueue.profile_eligibility e set is_checked = true
  where e.shard_id = p_shard and e.class_id = any (p_class_ids) and e.profile_id = any (v_locked) and not e.is_checked;
  update hwqueue.profile_queue s
  set checked = array(select distinct u from unnest(s.checked || array(
        select e.class_id from hwqueue.profile_eligibility e
        where e.shard_id = p_shard and e.profile_id = s.profile_id and e.queue_id = s.queue_id and e.class_id = any (p_class_ids)
          and e.gpu_count = 0 and e.custom is null)) u limit 201)
  where s.shard_id = p_shard and s.profile_id = any (v_locked);
  return v_pinned or v_profile_ids <> '{}';
end
$$;

-- New terms come into force here. A spawn writes a class with its terms and tells nobody; until every claim knows of a term and
-- counts for it, leases that decide by it wait. In steps, each in whatever transaction comes by (a claim that wants such a lease, reap):
--   1. The term gets its row; classes that it selects get class_term rows and are marked in what nodes may run. Claims that see this count.
--   2. When every transaction that was open then has ended, the same is done again: it finds what those could not see. If it
--      finds nothing, every claim from now on knows the term.
--   3. What runs and has not been counted is counted, and the term is published.
-- With nobody else at work steps 2 and 3 are one call: two calls in all.
-- A class some of whose terms are not in force is no candidate: nobody judges it (in_force), so it costs claims nothing however long that
-- lasts. When its last term comes into force it gets a new created_xid: to everybody who judges classes it is new then.

-- Brings on up to p_limit terms that are not published. pending: some are left. p_holds: whether running claims may be held to count them, until
-- the caller's transaction ends. Claims leave that to reap, since their transaction may stay open while other nodes want to settle; but
-- not for longer than ten seconds: nobody may be calling reap. Null: publish nothing, since the caller has entered a lease that does not run yet.
-- Locks: the shard's row, skip locked; profile rows, class rows and claims, skip locked.
create or replace function hwqueue.publish_terms(p_limit int, p_holds boolean, p_now timestamptz, p_shard int, out published int, out pending boolean)
language plpgsql volatile
as $$
declare
  v_term hwqueue.affinity_term;
  v_is_over boolean;
  v_changed boolean;
begin
  published := 0;
  pending := true;
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if not found then
    return;
  end if;
  perform hwqueue.write_terms(p_limit, p_now, p_shard);
  if hwqueue.has_unpublished_terms(p_shard) and not exists (select 1 from hwqueue.lock_stripe g where g.shard_id = p_shard) then
    insert into hwqueue.lock_stripe (shard_id, stripe_id) select p_shard, g from generate_series(0, 16383) g;
  end if;
  for v_term in
    select t.* from hwqueue.affinity_term t where t.shard_id = p_shard and t.published_at is null order by t.term_id limit p_limit
  loop
    -- written by this very transaction: others cannot see it yet
    continue when v_term.written_xid = pg_current_xact_id();
    -- asked before the look: what ends later than that, the look may not see
    v_is_over := hwqueue.no_open_xid_below(coalesce(v_term.barrier, pg_snapshot_xmax(pg_current_snapshot())));
    v_changed := hwqueue.spread_term(v_term, p_shard);
    if v_changed then
      update hwqueue.affinity_term t set written_xid = pg_current_xact_id(), barrier = null where t.shard_id = p_shard and t.term_id = v_term.term_id;
    elsif not v_is_over then
      update hwqueue.affinity_term t set barrier = pg_snapshot_xmax(pg_current_snapshot())
      where t.shard_id = p_shard and t.term_id = v_term.term_id and v_term.barrier is null;
    elsif p_holds is not null and hwqueue.lock_classes(v_term.digest, p_shard)
      and hwqueue.count_running(v_term, p_holds or v_term.created_at + interval '10 seconds' <= p_now, p_shard) then
      update hwqueue.affinity_term t set published_at = p_now where t.shard_id = p_shard and t.term_id = v_term.term_id;
      perform hwqueue.admit_classes(v_term.digest, p_shard);
      perform hwqueue.note_event('term_published', format('term %s is in force: %s, by %s', v_term.term_id, v_term.use, v_term.domain), p_shard,
        jsonb_build_object('term_id', v_term.term_id, 'use', v_term.use, 'domain', v_term.domain));
      published := published + 1;
    end if;
  end loop;
  pending := hwqueue.has_unpublished_terms(p_shard);
end
$$;

-- Whether no other transaction below an id is open.
create or replace function hwqueue.no_open_xid_below(p_xid xid8) returns boolean
language sql volatile
as $$
  select not exists (
    select 1 from pg_snapshot_xip(pg_current_snapshot()) x where x < p_xid and x is distinct from pg_current_xact_id_if_assigned())
$$;

-- Gives the terms of up to p_limit classes that are new their rows, but for classes that another session holds: it may be waking them.
-- Locks: the caller holds the shard's row; class rows, skip locked.
create or replace function hwqueue.write_terms(p_limit int, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_classes bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.terms <> '[]' and not c.terms_written order by c.class_id limit p_limit
    for no key update skip locked);
begin
  if v_classes <> '{}' then
    insert into hwqueue.affinity_term (shard_id, digest, spec, use, domain, anchors, written_xid, created_at)
    select distinct on (s.value ->> 'digest') p_shard, (s.value ->> 'digest')::bigint, s.value -> 'spec', s.value #>> '{spec,use}',
           hwqueue.term_domain(s.value -> 'spec', p_shard), hwqueue.term_anchors(s.value -> 'spec'), '0'::xid8, p_now
    from hwqueue.placement_class c, jsonb_array_elements(c.terms) s
    where c.shard_id = p_shard and c.class_id = any (v_classes)
    on conflict do nothing;
    perform hwqueue.write_rules(v_classes, p_shard);
    update hwqueue.placement_class c
    set terms_written = true, is_woken = true, waits = hwqueue.waits_for_start(c, p_shard),
        -- for who judged it while a term of it was being published
        created_xid = case when hwqueue.published_classes(c.terms, p_shard) then pg_current_xact_id() else c.created_xid end
    where c.shard_id = p_shard and c.class_id = any (v_classes);
  end if;
end
$$;

-- Tells the classes that a term selects: class_term, and a mark wherever a profile or a node may run them, so that claims check. True when
-- there was something new to tell, or somebody could not be told yet.
-- Locks: the caller holds the shard's row; profile rows, skip locked.
create or replace function hwqueue.spread_term(p_term hwqueue.affinity_term, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_classes bigint[];
  v_new bigint[];
begin
  if p_term.spec #> '{all,0,lease}' is not null and not hwqueue.assign_target_class((p_term.spec #>> '{all,0,lease}')::uuid, p_shard) then
    return true;
  end if;
  v_classes := hwqueue.selected_classes(p_term.spec, p_shard);
  v_new := array(
    select c from unnest(v_classes) c
    where not exists (select 1 from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = c and m.term_id = p_term.term_id));
  insert into hwqueue.class_term (shard_id, class_id, term_id) select p_shard, c, p_term.term_id from unnest(v_new) c;
  -- a class that is new and was judged by nobody makes no difference: whoever judges it knows the term. Who judged one before may not have
  -- known it; claims go by class_term then, and do not see these rows until this is committed
  return hwqueue.set_checked(v_classes, p_shard) or hwqueue.is_judged(v_new, p_shard) or p_term.written_xid = '0';
end
$$;

-- Whether somebody remembers of one of these classes who may run it.
create or replace function hwqueue.is_judged(p_class_ids bigint[], p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  return exists (select 1 from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids))
      or exists (select 1 from hwqueue.node_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids));
end
$$;

-- The classes whose leases a term selects; of a term on one lease, its class, and the one that it runs as.
create or replace function hwqueue.selected_classes(p_spec jsonb, p_shard int) returns bigint[]
language plpgsql stable set enable_bitmapscan = on
as $$
declare
  v_lease uuid := (p_spec #>> '{all,0,lease}')::uuid;
  v_service uuid := (
    select (i.value ->> 'service')::uuid from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'service' limit 1);
  v_queue int := (select (i.value ->> 'queue')::int from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'task' limit 1);
  v_equal jsonb := (
    select coalesce(jsonb_object_agg(e.value ->> 'label', e.value #>> '{values,0}'), '{}')
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
    where e.value ->> 'op' = 'in' and jsonb_array_length(e.value -> 'values') = 1);
begin
  if v_lease is not null then
    return array(
      select l.class_id from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = v_lease
      union
      select c.class_id from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = v_lease);
  end if;
  if v_service is not null then
    return array(
      select c.class_id from hwqueue.placement_class c
      where c.shard_id = p_shard and c.service_id = v_service and hwqueue.term_selects(p_spec, c));
  elsif v_queue is not null then
    return array(
      select c.class_id from hwqueue.placement_class c
      where c.shard_id = p_shard and c.queue_id = v_queue and hwqueue.term_selects(p_spec, c));
  end if;
  return array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.labels @> v_equal and hwqueue.term_selects(p_spec, c));
end
$$;

-- The class of a lease that a term names: one of its own, so that the others of its class go on as before; else the class as it is.
-- Above read committed every lease with an id of the caller's own gets one.
-- Locks: as find_class. Raises: as find_class.
create or replace function hwqueue.target_class(p_class_id bigint, p_lease uuid, p_shard int) returns bigint
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.affinity_term t where t.shard_id = p_shard and t.anchors && array['lease:' || p_lease] limit 1;
  -- an older snapshot may not show the term
  if not found and current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
    return p_class_id;
  end if;
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = p_class_id;
  if not found or v_class.target = p_lease then
    return v_class.class_id;
  end if;
  return hwqueue.find_class(v_class.queue_id, v_class.task_name, v_class.tenant, v_class.service_id, v_class.labels, v_class.placement,
                            p_shard, v_class.patience, p_lease);
end
$$;

-- Gives a lease that a term names a class of its own, if it has none, so that the term does not concern others; while it runs, from its next
-- attempt on. False when its entry is held by another session, or deleted by this one: then nothing was done.
-- Locks: the lease's entry, skip locked; its class, skip locked; its row. Raises: as find_class.
create or replace function hwqueue.assign_target_class(p_lease uuid, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_place tid;
  v_class_id bigint;
begin
  select l.* into v_lease from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = p_lease;
  v_class_id := hwqueue.target_class(v_lease.class_id, p_lease, p_shard);
  if v_class_id is null or v_class_id = v_lease.class_id or (hwqueue.lease_end(p_lease, p_shard)).state is not null then
    return true;
  end if;
  -- the one update that entries ever see: who locks one looks at its class again
  select r.ctid into v_place from hwqueue.ready r
  where r.shard_id = p_shard and r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank = v_lease.rank
    and r.position = v_lease.position and r.lease_id = p_lease for update skip locked;
  if found then
    update hwqueue.ready r set class_id = v_class_id where r.ctid = v_place;
    perform hwqueue.wake_classes_of_entries(array[v_class_id], p_shard);
  else
    select s.ctid into v_place from hwqueue.scheduled s
    where s.shard_id = p_shard and s.queue_id = v_lease.queue_id and s.available_at = v_lease.available_at and s.lease_id = p_lease
    for update skip locked;
    if found then
      update hwqueue.scheduled s set class_id = v_class_id where s.ctid = v_place;
      -- no candidate before the lease is due (wake_classes_of_entries)
      update hwqueue.placement_class c set waits = true
      where c.shard_id = p_shard and c.class_id = v_class_id and c.created_xid = pg_current_xact_id();
    else
      perform 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease for update skip locked;
      if not found then
        return false;
      end if;
    end if;
  end if;
  update hwqueue.lease l set class_id = v_class_id where l.shard_id = p_shard and l.lease_id = p_lease;
  return true;
end
$$;

-- Which classes are candidates of claims, as far as their terms decide that: those whose terms are all in force (publish_terms), and that do not wait
-- for a lease which has not started yet. The others are not judged, and so are in nobody's list of what may run.

-- Whether all of a class's terms are in force.
create or replace function hwqueue.published_classes(p_terms jsonb, p_shard int) returns boolean
language sql stable
as $$
  select not exists (
    select 1 from jsonb_array_elements(p_terms) s
    where not exists (
      select 1 from hwqueue.affinity_term t
      where t.shard_id = p_shard and t.digest = (s.value ->> 'digest')::bigint and t.published_at is not null))
$$;

-- Locks the classes of a term that is about to be published. False when another session holds any, which may be waking it: who judges that
-- before the term is published passes it over, so admit_classes must come after.
-- Locks: the caller holds the shard's row; class rows, skip locked.
create or replace function hwqueue.lock_classes(p_digest bigint, p_shard int) returns boolean
language plpgsql volatile set enable_bitmapscan = on
as $$
declare
  v_classes bigint[] := array(
    select k.class_id from hwqueue.placement_class k
    where k.shard_id = p_shard and k.terms <> '[]' and k.terms @> jsonb_build_array(jsonb_build_object('digest', p_digest)));
begin
  return (
    select count(*) = cardinality(v_classes) from (
      select from hwqueue.placement_class k
      where k.shard_id = p_shard and k.class_id = any (v_classes) for no key update skip locked) l);
end
$$;

-- Makes the classes that a term was the last to hold up candidates: they are new to everybody who judges.
-- Locks: the caller holds the shard's row, and theirs (lock_classes).
create or replace function hwqueue.admit_classes(p_digest bigint, p_shard int) returns void
language plpgsql volatile set enable_bitmapscan = on
as $$
begin
  update hwqueue.placement_class c
  set created_xid = pg_current_xact_id(), is_woken = true, waits = c.waits and hwqueue.waits_for_start(c, p_shard)
  where c.shard_id = p_shard and c.terms <> '[]' and c.terms @> jsonb_build_array(jsonb_build_object('digest', p_digest))
    and hwqueue.published_classes(c.terms, p_shard);
end
$$;

-- Whether terms wait to be in force.
create or replace function hwqueue.has_unpublished_terms(p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.terms <> '[]' and not c.terms_written order by c.class_id limit 1)
    or exists (
      select 1 from hwqueue.affinity_term t where t.shard_id = p_shard and t.published_at is null order by t.term_id limit 1);
end
$$;

-- Takes a step for new terms, if a step is due: a claim does so first, on a node that has met one (node_state.awaits_terms). It is not due
-- while the oldest of them wait for transactions that are open. Returns whether any term is left.
-- Locks: node_state is held by the caller; as publish_terms.
create or replace function hwqueue.take_publish_step(p_node uuid, p_now timestamptz, p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  if not hwqueue.has_unpublished_terms(p_shard) then
    update hwqueue.node_state s set awaits_terms = false where s.shard_id = p_shard and s.node_id = p_node;
    return false;
  end if;
  if exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.terms <> '[]' and not c.terms_written order by c.class_id limit 1)
    or exists (
      select 1 from (
        select t.barrier from hwqueue.affinity_term t where t.shard_id = p_shard and t.published_at is null order by t.term_id limit 2) t
      where t.barrier is null or hwqueue.no_open_xid_below(t.barrier)) then
    perform hwqueue.publish_terms(2, false, p_now, p_shard);
  end if;
  return true;
end
$$;

-- Classes that wait (placement_class.waits) are no candidates: they must be with one lease, which has not started, or are for one lease only
-- (target_class), which is scheduled.

-- Whether the only lease of a class is scheduled, or a class must be with a lease that neither runs nor has succeeded: until that one starts no
-- node may run the class, but for nodes outside the domain that the class lets pass.
create or replace function hwqueue.waits_for_start(p_class hwqueue.placement_class, p_shard int) returns boolean
language sql stable
as $$
  -- put to sleep once (assign_target_class): while a class is awake its lease may be on its way into ready
  select p_class.waits and p_class.target is not null and coalesce(hwqueue.lease_state(p_class.target, p_shard) = 'scheduled', false) or exists (
    select 1 from jsonb_array_elements(p_class.required) e
    cross join lateral (
      select (p_class.terms #>> array[e.value ->> 'term', 'spec', 'all', '0', 'lease'])::uuid as lease_id) t
    where t.lease_id is not null and not e.value ? 'away' and e.value ->> 'unknown' is distinct from 'pass'
      and not exists (select 1 from hwqueue.claim x where x.shard_id = p_shard and x.lease_id = t.lease_id)
      and not exists (select 1 from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = t.lease_id and o.state = 'completed'))
$$;

-- A lease starts: classes that waited for it are candidates from when the caller's transaction commits. Those that another session holds are
-- found by wake_missed_classes.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_classes_of_lease(p_lease uuid, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id from hwqueue.class_rule r
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = r.class_id
    where r.shard_id = p_shard and r.lease_id = p_lease and k.waits
    for no key update of k skip locked));
end
$$;

-- Entries come into ready: whoever puts them there wakes their classes, which are candidates from when the caller's transaction commits.
-- Those that another session holds are found by wake_missed_classes; of those whose terms are not in force it is decided when they are (admit_classes),
-- and until then a lock on them would hold that up.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_classes_of_entries(p_classes bigint[], p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id from hwqueue.placement_class k
    where k.shard_id = p_shard and k.class_id = any (p_classes) and k.waits and not hwqueue.waits_for_start(k, p_shard)
      and hwqueue.published_classes(k.terms, p_shard)
    for no key update of k skip locked));
end
$$;

-- Makes classes candidates that still wait for leases that have started: such a lease was adopted, or started while the class was written.
-- Looks at the first p_limit that wait, and at as many from where watch_classes goes on, so all have their turn, however long the first wait.
-- Locks: class rows, skip locked.
create or replace function hwqueue.wake_missed_classes(p_limit int, p_shard int) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.placement_class c set waits = false, is_woken = true, created_xid = pg_current_xact_id()
  where c.shard_id = p_shard and c.class_id = any (array(
    select k.class_id
    from (
      (select x.class_id from hwqueue.placement_class x where x.shard_id = p_shard and x.waits order by x.class_id limit p_limit)
      union
      (select x.class_id from hwqueue.placement_class x
       where x.shard_id = p_shard and x.waits and x.class_id > (
         select m.watched_class from hwqueue.reap_cursor m where m.shard_id = p_shard order by m.version desc limit 1)
       order by x.class_id limit p_limit)) w
    join hwqueue.placement_class k on k.shard_id = p_shard and k.class_id = w.class_id
    where not hwqueue.waits_for_start(k, p_shard)
    for no key update of k skip locked));
end
$$;
