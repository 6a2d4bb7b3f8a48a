-- Estimates the reach of classes that have no estimate yet (of what claims judge they make it themselves), and with p_again of those
-- whose estimate is the oldest, over a minute old: at most 50 a call, and what judge_budget allows; a class that costs more than that is left to
-- the claims. Looks at p_limit classes after p_after, in turn over the calls.
-- Gives the number of estimates, and where to go on.
-- Locks: the shard's row, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.reap_reaches(p_after bigint, p_limit int, p_again boolean, p_now timestamptz, p_shard int,
                                                out reaches int, out next_after bigint)
language plpgsql volatile
as $$
declare
  -- null: the rest of them
  v_last bigint := (
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after order by c.class_id offset p_limit - 1 limit 1);
  v_taken bigint[];
  v_new bigint[];
  v_new_costs int[];
  v_old bigint[] := '{}';
  v_old_costs int[] := '{}';
begin
  select coalesce(array_agg(n.class_id order by n.class_id), '{}'), coalesce(array_agg(n.cost order by n.class_id), '{}') into v_new, v_new_costs
  from (
    select c.class_id, c.cost from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after and c.class_id <= coalesce(v_last, 9223372036854775807) and c.retired_at is null
      and not exists (select 1 from hwqueue.class_reach r where r.shard_id = p_shard and r.class_id = c.class_id)
      and c.cost <= hwqueue.judge_budget()
    order by c.class_id limit 50) n;
  if p_again then
    select coalesce(array_agg(o.class_id order by o.refreshed_at), '{}'), coalesce(array_agg(o.cost order by o.refreshed_at), '{}')
    into v_old, v_old_costs
    from (
      select r.class_id, r.refreshed_at, c.cost from hwqueue.class_reach r
      join hwqueue.placement_class c on c.shard_id = p_shard and c.class_id = r.class_id
      where r.shard_id = p_shard and r.refreshed_at < p_now - interval '1 minute' and c.cost <= hwqueue.judge_budget()
      order by r.refreshed_at limit 50 - cardinality(v_new)) o;
  end if;
  v_taken := hwqueue.within_budget(v_new || v_old, v_new_costs || v_old_costs);
  reaches := coalesce(hwqueue.refresh_reach(v_taken, p_shard), 0);
  next_after := case when cardinality(v_new) = 50 or cardinality(v_taken) < cardinality(v_new)
                then v_new[least(cardinality(v_taken), cardinality(v_new))] else coalesce(v_last, 0) end;
end
$$;
