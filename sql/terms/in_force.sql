-- Which classes are candidates of claims, as far as their terms decide that: those whose terms are all in force (publish_terms), and that do not wait
-- for a lease which has not started yet. The others are not judged, and so are in nobody's list of what may run.

-- Whether all of a class's terms are in force.
create or replace function hwqueue.in_force(p_terms jsonb, p_shard int) returns boolean
language sql stable
as $$
  select not exists (
    select 1 from jsonb_array_elements(p_terms) s
    where not exists (
      select 1 from hwqueue.term t
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
    and hwqueue.in_force(c.terms, p_shard);
end
$$;

-- Whether terms wait to be in force.
create or replace function hwqueue.terms_pending(p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.terms <> '[]' and not c.terms_written order by c.class_id limit 1)
    or exists (
      select 1 from hwqueue.term t where t.shard_id = p_shard and t.published_at is null order by t.term_id limit 1);
end
$$;

-- Takes a step for new terms, if a step is due: a claim does so first, on a node that has met one (node_state.awaits_terms). It is not due
-- while the oldest of them wait for transactions that are open. Returns whether any term is left.
-- Locks: node_state is held by the caller; as publish_terms.
create or replace function hwqueue.bring_terms(p_node uuid, p_now timestamptz, p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  if not hwqueue.terms_pending(p_shard) then
    update hwqueue.node_state s set awaits_terms = false where s.shard_id = p_shard and s.node_id = p_node;
    return false;
  end if;
  if exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.terms <> '[]' and not c.terms_written order by c.class_id limit 1)
    or exists (
      select 1 from (
        select t.barrier from hwqueue.term t where t.shard_id = p_shard and t.published_at is null order by t.term_id limit 2) t
      where t.barrier is null or hwqueue.alone_below(t.barrier)) then
    perform hwqueue.publish_terms(2, false, p_now, p_shard);
  end if;
  return true;
end
$$;
