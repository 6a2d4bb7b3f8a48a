-- Removes terms that no class asks any more, with their counts, and counts that have come to nothing. Gives the number of terms.
-- Locks: the shard's row, skip locked: new terms wait for it, too; then only what it deletes, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.prune_terms(p_limit int, p_shard int) returns int
language plpgsql volatile
as $$
declare
  v_terms bigint[];
begin
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
  if not found then
    return 0;
  end if;
  v_terms := array(
    select t.term_id from hwqueue.term t
    where t.shard_id = p_shard and not exists (
      select 1 from hwqueue.placement_class c
      where c.shard_id = p_shard and c.terms <> '[]' and c.terms @> jsonb_build_array(jsonb_build_object('digest', t.digest)))
    order by t.term_id limit p_limit);
  delete from hwqueue.class_term m where m.shard_id = p_shard and m.term_id = any (v_terms);
  delete from hwqueue.term_count k where k.shard_id = p_shard and k.term_id = any (v_terms);
  delete from hwqueue.term t where t.shard_id = p_shard and t.term_id = any (v_terms);
  delete from hwqueue.term_count k where k.ctid = any (array(
    select o.ctid from hwqueue.term_count o
    where o.shard_id = p_shard and (o.leases = 0 and o.holders = 0 or not exists (
      select 1 from hwqueue.term t where t.shard_id = p_shard and t.term_id = o.term_id)) limit p_limit for update skip locked));
  return cardinality(v_terms);
end
$$;
