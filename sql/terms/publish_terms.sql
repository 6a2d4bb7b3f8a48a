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
  v_term hwqueue.term;
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
  if hwqueue.terms_pending(p_shard) and not exists (select 1 from hwqueue.gate g where g.shard_id = p_shard) then
    insert into hwqueue.gate (shard_id, gate_id) select p_shard, g from generate_series(0, 16383) g;
  end if;
  for v_term in
    select t.* from hwqueue.term t where t.shard_id = p_shard and t.published_at is null order by t.term_id limit p_limit
  loop
    -- written by this very transaction: others cannot see it yet
    continue when v_term.written_xid = pg_current_xact_id();
    -- asked before the look: what ends later than that, the look may not see
    v_is_over := hwqueue.alone_below(coalesce(v_term.barrier, pg_snapshot_xmax(pg_current_snapshot())));
    v_changed := hwqueue.spread_term(v_term, p_shard);
    if v_changed then
      update hwqueue.term t set written_xid = pg_current_xact_id(), barrier = null where t.shard_id = p_shard and t.term_id = v_term.term_id;
    elsif not v_is_over then
      update hwqueue.term t set barrier = pg_snapshot_xmax(pg_current_snapshot())
      where t.shard_id = p_shard and t.term_id = v_term.term_id and v_term.barrier is null;
    elsif p_holds is not null and hwqueue.lock_classes(v_term.digest, p_shard)
      and hwqueue.count_running(v_term, p_holds or v_term.created_at + interval '10 seconds' <= p_now, p_shard) then
      update hwqueue.term t set published_at = p_now where t.shard_id = p_shard and t.term_id = v_term.term_id;
      perform hwqueue.admit_classes(v_term.digest, p_shard);
      perform hwqueue.note_event('term_published', format('term %s is in force: %s, by %s', v_term.term_id, v_term.use, v_term.domain), p_shard,
        jsonb_build_object('term_id', v_term.term_id, 'use', v_term.use, 'domain', v_term.domain));
      published := published + 1;
    end if;
  end loop;
  pending := hwqueue.terms_pending(p_shard);
end
$$;

-- Whether no other transaction below an id is open.
create or replace function hwqueue.alone_below(p_xid xid8) returns boolean
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
    insert into hwqueue.term (shard_id, digest, spec, use, domain, anchors, written_xid, created_at)
    select distinct on (s.value ->> 'digest') p_shard, (s.value ->> 'digest')::bigint, s.value -> 'spec', s.value #>> '{spec,use}',
           hwqueue.term_domain(s.value -> 'spec', p_shard), hwqueue.term_anchors(s.value -> 'spec'), '0'::xid8, p_now
    from hwqueue.placement_class c, jsonb_array_elements(c.terms) s
    where c.shard_id = p_shard and c.class_id = any (v_classes)
    on conflict do nothing;
    perform hwqueue.write_rules(v_classes, p_shard);
    update hwqueue.placement_class c
    set terms_written = true, is_woken = true, waits = hwqueue.waits_for_start(c, p_shard),
        -- for who judged it while a term of it was being published
        created_xid = case when hwqueue.in_force(c.terms, p_shard) then pg_current_xact_id() else c.created_xid end
    where c.shard_id = p_shard and c.class_id = any (v_classes);
  end if;
end
$$;
