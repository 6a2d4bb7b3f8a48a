-- Whose turn it is to prune: one row a shard says when somebody last did, and who holds it is at it.

-- Whether somebody pruned less than p_unless_within ago. A mark of the future does not count: the clock was set back.
create or replace function hwqueue.pruned_within(p_unless_within interval, p_now timestamptz, p_shard int) returns boolean
language sql stable
as $$
  select exists (select 1 from hwqueue.prune_mark m
                 where m.shard_id = p_shard and m.pruned_at <= p_now and m.pruned_at > p_now - p_unless_within)
$$;

-- Whether the caller should prune, and the mark, if the caller holds it. It should not when somebody did less than p_unless_within
-- ago, nor when somebody is at it, unless that one's transaction has been open for long. Without a span it always should.
-- Locks: the mark, skip locked.
create or replace function hwqueue.take_prune_turn(p_unless_within interval, p_now timestamptz, p_shard int,
                                                   out goes boolean, out mark hwqueue.prune_mark)
language plpgsql volatile
as $$
begin
  if not exists (select 1 from hwqueue.prune_mark m where m.shard_id = p_shard) then  -- a new shard
    insert into hwqueue.prune_mark (shard_id) select s.shard_id from hwqueue.shard s where s.shard_id = p_shard on conflict do nothing;
  end if;
  select m.* into mark from hwqueue.prune_mark m where m.shard_id = p_shard for update skip locked;
  goes := p_unless_within = '0' or not hwqueue.pruned_within(
    case when found then p_unless_within else greatest(10 * p_unless_within, interval '1 minute') end, p_now, p_shard);
end
$$;
