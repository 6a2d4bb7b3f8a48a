-- New terms come into force here. A spawn writes a class with its terms and tells nobody; until every claim knows of a term and
-- counts for it, leases that decide by it wait. In steps, each in whatever transaction comes by (a claim that wants such a lease, reap):
--   1. The term gets its row; classes that it selects get class_term rows and are marked in what nodes may run. Claims that see this count.
--   2. When every transaction that was open then has ended, the same is done again: it finds what those could not see. If it
--      finds nothing, every claim from now on knows the term.
--   3. What runs and has not been counted is counted, and the term is published.
-- With nobody else at work steps 2 and 3 are one call: two calls in all.

-- Brings on up to p_limit terms that are not published. pending: some are left.
-- Locks: the shard's row, skip locked; profile rows and claims, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.publish_terms(p_limit int, p_now timestamptz, p_shard int, out published int, out pending boolean)
language plpgsql volatile
as $$
declare
  v_term hwqueue.term;
  v_alone boolean;
  v_changed boolean;
begin
  published := 0;
  pending := true;
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if not found then
    return;
  end if;
  pending := hwqueue.write_terms(p_limit, p_shard) > 0;
  for v_term in
    select t.* from hwqueue.term t where t.shard_id = p_shard and t.published_at is null order by t.term_id limit p_limit
  loop
    -- written by this very transaction: others cannot see it yet
    continue when v_term.written_xid = pg_current_xact_id();
    -- before the look: who ends after it may have brought what it did not see
    v_alone := hwqueue.alone_below(coalesce(v_term.barrier, pg_snapshot_xmax(pg_current_snapshot())));
    v_changed := hwqueue.spread_term(v_term, p_shard);
    if v_changed then
      update hwqueue.term t set written_xid = pg_current_xact_id(), barrier = null where t.shard_id = p_shard and t.term_id = v_term.term_id;
    elsif v_term.barrier is null and not v_alone then
      update hwqueue.term t set barrier = pg_snapshot_xmax(pg_current_snapshot())
      where t.shard_id = p_shard and t.term_id = v_term.term_id;
    elsif v_alone and hwqueue.count_running(v_term, p_shard) then
      update hwqueue.term t set published_at = p_now where t.shard_id = p_shard and t.term_id = v_term.term_id;
      published := published + 1;
    end if;
  end loop;
  pending := pending or exists (select 1 from hwqueue.term t where t.shard_id = p_shard and t.published_at is null);
end
$$;

-- Whether no other transaction below an id is open.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.alone_below(p_xid xid8) returns boolean
language sql volatile
as $$
  select not exists (
    select 1 from pg_snapshot_xip(pg_current_snapshot()) x where x < p_xid and x is distinct from pg_current_xact_id_if_assigned())
$$;

-- Gives the terms of up to p_limit classes that are new their rows. Gives the number of such classes.
-- Locks: the caller holds the shard's row. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.write_terms(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_classes bigint[] := array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.terms <> '[]' and not c.terms_written order by c.class_id limit p_limit);
begin
  if v_classes <> '{}' then
    insert into hwqueue.term (shard_id, digest, spec, use, domain, anchors, written_xid)
    select distinct on (s.value ->> 'digest') p_shard, (s.value ->> 'digest')::bigint, s.value -> 'spec', s.value #>> '{spec,use}',
           hwqueue.term_domain(s.value -> 'spec', p_shard), hwqueue.term_anchors(s.value -> 'spec'), '0'::xid8
    from hwqueue.placement_class c, jsonb_array_elements(c.terms) s
    where c.shard_id = p_shard and c.class_id = any (v_classes)
    on conflict do nothing;
    update hwqueue.placement_class c set terms_written = true where c.shard_id = p_shard and c.class_id = any (v_classes);
  end if;
  return cardinality(v_classes);
end
$$;

-- Tells the classes that a term selects: class_term, and a mark wherever a profile or a node may run them, so that claims check. True when
-- there was something new to tell, or somebody could not be told yet.
-- Locks: the caller holds the shard's row; profile rows, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.spread_term(p_term hwqueue.term, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_classes bigint[] := hwqueue.selected_classes(p_term.spec, p_shard);
  v_new bigint[];
begin
  v_new := array(
    select c from unnest(v_classes) c
    where not exists (select 1 from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = c and m.term_id = p_term.term_id));
  insert into hwqueue.class_term (shard_id, class_id, term_id) select p_shard, c, p_term.term_id from unnest(v_new) c;
  return hwqueue.mark_checked(v_classes, p_shard) or v_new <> '{}' or p_term.written_xid = '0'::xid8;
end
$$;

-- The classes whose leases a term selects; of a term on one lease, its class.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.selected_classes(p_spec jsonb, p_shard int) returns bigint[]
language plpgsql stable
as $$
declare
  v_lease uuid := (p_spec #>> '{all,0,lease}')::uuid;
  v_equal jsonb := (
    select coalesce(jsonb_object_agg(e.value ->> 'label', e.value #>> '{values,0}'), '{}')
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
    where e.value ->> 'op' = 'in' and jsonb_array_length(e.value -> 'values') = 1);
begin
  if v_lease is not null then
    return array(select l.class_id from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = v_lease);
  end if;
  return array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.labels @> v_equal and hwqueue.term_selects(p_spec, c));
end
$$;
