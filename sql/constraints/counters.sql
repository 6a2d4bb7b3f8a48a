-- Counters of affinity terms: how many leases of a term run in each place.
--
-- Example: a lease of app=db is claimed in rack 12. Its claim carries term_deltas [{"t": 7, "d": "12", "n":
-- 1, "h": 0}], and 1 is added to the counter of term 7 in place "12". The end of the claim subtracts the same
-- deltas. t is the term, d the place, n is 1 if the term selects the lease, and h is 1 if the lease is a
-- holder: it requires to be away from the leases of the term.
--
-- A counter is the sum over all rows of term_counter for its term and place. Who ends a claim waits for
-- nobody: where the rows are locked it adds one, and prune_terms merges them. The invariant: the counters of
-- a published term are the sum of the term_deltas of all claims (verify_invariants).

-- The terms that a claim of a class touches on a node: its own terms and those that select it. place is ''
-- where the node has no value of the term's domain. decides: the class decides by the term. counts: the claim
-- changes the counter. by_counters_alone: the term is counted, and selects leases by their class. Of the
-- terms that name a lease only those that name p_lease are returned; is_named: some term names a lease of the
-- class, this one or another.
create or replace function hwqueue.touched_terms(p_class hwqueue.placement_class, p_lease uuid,
  p_node hwqueue.node, out touched hwqueue.touched_term[], out is_named boolean)
language plpgsql stable
as $$ begin
  select coalesce(array_agg(
           row(t.term_id, t.use, t.domain,
               coalesce(hwqueue.term_place(t.spec, t.domain, p_node.node_id, p_node.rack, p_node.labels), ''),
               t.decides, t.counts,
               t.lease_id is null and (t.published_at is not null or not t.decides and not t.was_published)
             )::hwqueue.touched_term
           order by t.term_id) filter (where t.decides or coalesce(t.lease_id = p_lease, true)), '{}'),
         coalesce(bool_or(t.is_member and t.lease_id is not null), false)
  into touched, is_named
  from (
    select t.term_id, t.use, t.domain, t.spec, t.published_at, t.was_published,
           (t.spec #>> '{all,0,lease}')::uuid as lease_id,
           bool_or(u.decides) as decides, bool_or(u.counts) as counts, bool_or(u.is_member) as is_member
    from (
      select k.term_id, true as decides, (s.value -> 'self')::boolean as counts, false as is_member
      from jsonb_array_elements(p_class.terms) s
      join hwqueue.affinity_term k on k.digest = (s.value ->> 'digest')::bigint
      union all
      select m.term_id, false, true, true from hwqueue.class_term m
      where m.class_id = p_class.class_id and not m.is_own
    ) u
    join hwqueue.affinity_term t on t.term_id = u.term_id
    group by t.term_id) t;
end $$;

-- What a claim that touches these terms adds to the counters; null when that is nothing.
create or replace function hwqueue.counted_terms(p_touched hwqueue.touched_term[]) returns jsonb
language plpgsql immutable
as $$
declare
  v_term hwqueue.touched_term;
  v_deltas jsonb;
begin
  foreach v_term in array p_touched loop
    continue when not v_term.counts and v_term.use <> 'away';
    v_deltas := coalesce(v_deltas, '[]') || jsonb_build_object('t', v_term.term_id, 'd', v_term.place,
      'n', v_term.counts::int, 'h', (v_term.use = 'away' and v_term.decides)::int);
  end loop;
  return v_deltas;
end
$$;

-- Counts running leases again: those of a node whose labels or rack have changed, or those of a class
-- whose terms have changed (the other argument is null).
-- Locks: for a node the caller holds node_state; the claims by lease_id; term_counter, skip locked.
create or replace function hwqueue.recount_claims(p_node uuid, p_class_id bigint) returns void
language plpgsql volatile
as $$
declare
  v_claim record;
begin
  perform 1 from hwqueue.claim c
  where (c.node_id = p_node or c.class_id = p_class_id)
    and c.term_deltas is not null order by c.lease_id for update;
  for v_claim in
    select c.lease_id, c.term_deltas, hwqueue.counted_terms(
             (hwqueue.touched_terms(k, c.lease_id, n)).touched) as new_deltas
    from hwqueue.claim c
    join hwqueue.placement_class k on k.class_id = c.class_id
    join hwqueue.node n on n.node_id = c.node_id
    where (c.node_id = p_node or c.class_id = p_class_id) and c.term_deltas is not null loop
    if v_claim.term_deltas is distinct from v_claim.new_deltas then
      perform hwqueue.add_counts(v_claim.term_deltas, -1), hwqueue.add_counts(v_claim.new_deltas, 1);
      update hwqueue.claim c set term_deltas = v_claim.new_deltas where c.lease_id = v_claim.lease_id;
    end if;
  end loop;
end
$$;

-- Adds a claim's counts (p_sign 1) or subtracts them (-1), and returns p_deltas. A row is updated in
-- place 32 times and then written again, because under an old MVCC snapshot a reader must step over all
-- its versions. Counters of max_skew carry the transaction that last lowered them (spread_floor).
-- Locks: one row of term_counter per delta, skip locked. Not idempotent.
create or replace function hwqueue.add_counts(p_deltas jsonb, p_sign int) returns jsonb
language plpgsql volatile
as $$
declare
  v_term_id bigint;
  v_place text;
  v_leases int;
  v_holders int;
  v_row record;
begin
  for i in 0 .. coalesce(jsonb_array_length(p_deltas), 0) - 1 loop
    v_term_id := (p_deltas #> array[i::text, 't'])::bigint;
    v_place := p_deltas #>> array[i::text, 'd'];
    v_leases := p_sign * (p_deltas #> array[i::text, 'n'])::int;
    v_holders := p_sign * (p_deltas #> array[i::text, 'h'])::int;
    update hwqueue.term_counter k
    set leases = k.leases + v_leases, holders = k.holders + v_holders, updates = k.updates + 1,
        dropped_xid = case when p_sign < 0 and k.dropped_xid is not null then pg_current_xact_id()
          else k.dropped_xid end
    where k.updates < 32 and k.ctid = (
      select x.ctid from hwqueue.term_counter x
      where x.term_id = v_term_id and x.place = v_place
      limit 1 for no key update skip locked);
    if not found then  -- one row is replaced; if all are locked, or there are none, it is another one
      select k.ctid as row_ctid, k.leases, k.holders, k.dropped_xid into v_row
      from hwqueue.term_counter k
      where k.term_id = v_term_id and k.place = v_place
      limit 1 for no key update skip locked;
      delete from hwqueue.term_counter k where k.ctid = v_row.row_ctid;
      insert into hwqueue.term_counter (term_id, place, leases, holders, updates, dropped_xid)
      select v_term_id, v_place, v_leases + coalesce(v_row.leases, 0),
             v_holders + coalesce(v_row.holders, 0), 0,
             case when t.use <> 'skew' then null when p_sign < 0 then pg_current_xact_id()
               else coalesce(v_row.dropped_xid, '0') end
      -- no row if the term was pruned meanwhile: no claim reads its counters any more
      from hwqueue.affinity_term t where t.term_id = v_term_id;
    end if;
  end loop;
  return p_deltas;
end
$$;

-- What runs of a term in a place: leases that it selects, and holders that keep away from those.
create or replace function hwqueue.read_count(p_term_id bigint, p_place text,
  out leases bigint, out holders bigint)
language plpgsql stable
as $$ begin
  select coalesce(sum(k.leases), 0), coalesce(sum(k.holders), 0) into leases, holders
  from hwqueue.term_counter k
  where k.term_id = p_term_id and k.place = p_place;
end $$;

-- The leases that a term selects which are about to stop, {PLACE: leases}: asked to stop or, with p_expired,
-- expired and not reaped yet, or on one of these dead nodes. They still count for away, capacity, exclusivity
-- and limits of the whole fleet, but not for toward and other rules of spread.
create or replace function hwqueue.stopping_by_place(p_term_id bigint, p_expired boolean, p_dead uuid[],
  p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
  v_wanted jsonb := jsonb_build_array(jsonb_build_object('t', p_term_id, 'n', 1));
begin
  return (
    select coalesce(jsonb_object_agg(g.place, g.leases), '{}')
    from (
      select d.value ->> 'd' as place, count(distinct l.lease_id) as leases
      from (
        select c.lease_id, c.term_deltas from hwqueue.claim c
        where c.stop_requested_at <= p_now and c.term_deltas @> v_wanted
        union all
        select c.lease_id, c.term_deltas from hwqueue.claim c
        where p_expired and c.check_at between hwqueue.claims_scan_start() and p_now
          and c.expires_at <= p_now and c.term_deltas @> v_wanted
        union all
        select c.lease_id, c.term_deltas from hwqueue.claim c
        where c.node_id = any (p_dead) and c.term_deltas @> v_wanted
      ) l
      cross join lateral jsonb_array_elements(l.term_deltas) d
      where (d.value -> 't')::bigint = p_term_id
      group by 1
    ) g);
end
$$;

-- Where scans for expired claims start, by check_at: below it dead tuples may still be in the index.
create or replace function hwqueue.claims_scan_start() returns timestamptz
language plpgsql stable
as $$ begin return
  coalesce((
    select m.claims_from from hwqueue.reap_cursor m order by m.version desc limit 1), '-infinity');
end $$;

-- How many leases of a term stay, wherever they run, without those asked to stop and the expired. p_recount:
-- counts by place, see recount_terms; null: by what claims have counted.
create or replace function hwqueue.remaining_count(p_term_id bigint, p_recount jsonb, p_now timestamptz)
returns bigint
language plpgsql stable
as $$
declare
  v_held bigint;
begin
  if p_recount is not null then
    return (select coalesce(sum((r.value ->> 'here')::bigint), 0) from jsonb_each(p_recount) r);
  end if;
  v_held := (select coalesce(sum(k.leases), 0) from hwqueue.term_counter k where k.term_id = p_term_id);
  return case when v_held > 0 then v_held - (
    select coalesce(sum(s.value::bigint), 0)
    from jsonb_each(hwqueue.stopping_by_place(p_term_id, true, '{}', p_now)) s) else 0 end;
end
$$;
