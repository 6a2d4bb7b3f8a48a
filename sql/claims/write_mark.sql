-- The mark of a tier and rank; 0: there is none.
create or replace function hwqueue.mark_at(p_marks hwqueue.low_water, p_tier smallint, p_rank bigint) returns bigint
language plpgsql immutable
as $$
begin
  return coalesce((
    select m.position from unnest(p_marks.tiers, p_marks.ranks, p_marks.positions) m(tier, rank, position)
    where m.tier = p_tier and m.rank = p_rank), 0);
end
$$;

-- Writes marks anew, that of one tier and rank moved on from p_old to p_new, if that is further. Keeps 16; the oldest go, and of a queue those that
-- 256 versions did not move, so that it comes back to one; one at 0, as the first is, says nothing. p_stands: for the next 256 versions claims shall look for marks of classes.
-- Locks: the caller holds the newest row of the queue's marks. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.write_mark(p_marks hwqueue.low_water, p_tier smallint, p_rank bigint, p_old bigint, p_new bigint,
                                              p_stands boolean) returns void
language plpgsql volatile
as $$
declare
  v_version bigint := p_marks.version + 1;
begin
  if p_new <= p_old and (not p_stands or p_marks.stands_until > v_version + 128) then
    return;
  end if;
  delete from hwqueue.low_water w
  where w.shard_id = p_marks.shard_id and w.queue_id = p_marks.queue_id and w.class_id = p_marks.class_id and w.version = p_marks.version;
  insert into hwqueue.low_water (shard_id, queue_id, class_id, version, stands_until, tiers, ranks, positions, moved)
  select p_marks.shard_id, p_marks.queue_id, p_marks.class_id, v_version,
         case when p_stands then v_version + 256 else p_marks.stands_until end,
         array_agg(k.tier order by k.tier, k.rank), array_agg(k.rank order by k.tier, k.rank),
         array_agg(k.position order by k.tier, k.rank), array_agg(k.moved order by k.tier, k.rank)
  from (
    select m.* from (
      select o.tier, o.rank, o.position, o.moved
      from unnest(p_marks.tiers, p_marks.ranks, p_marks.positions, p_marks.moved) o(tier, rank, position, moved)
      where (o.tier, o.rank) <> (p_tier, p_rank) and o.position > 0 and (p_marks.class_id <> 0 or o.moved > v_version - 257)
      union all
      select p_tier, p_rank, greatest(p_old, p_new), v_version
    ) m order by m.moved desc limit 16
  ) k;
end
$$;

-- Writes marks as they are at first: of a queue (p_class_id 0) that of the tier and rank that most leases have, so that the first claims find
-- its head as later ones do; of a class none.
-- Locks: new rows. Raises: nothing. Idempotent: no.
create or replace function hwqueue.write_first_mark(p_queue_id int, p_class_id bigint, p_version bigint, p_shard int) returns void
language sql volatile
as $$
  insert into hwqueue.low_water (shard_id, queue_id, class_id, version, tiers, ranks, positions, moved)
  select p_shard, p_queue_id, p_class_id, p_version, m.zero::smallint[], m.zero::bigint[], m.zero::bigint[], case when p_class_id = 0 then array[p_version] else '{}' end
  from (select case when p_class_id = 0 then '{0}' else '{}' end::int[] as zero) m
$$;
