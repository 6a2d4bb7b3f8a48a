-- Tells once when leases of a class wait that no live node may run, by what the nodes are and have in all, and when that is over. Looks at
-- p_limit classes after p_after, in turn over the calls, for up to 50 ms (of the real clock), at one at least: what a claim has found a node for
-- costs a look at one node, the others are held against the fleet. Gives where to go on.
-- Locks: the caller holds the mark of reap. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.watch_classes(p_after bigint, p_limit int, p_now timestamptz, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_began_at timestamptz := clock_timestamp();
  -- null: the rest of them
  v_last bigint := (
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after order by c.class_id offset p_limit - 1 limit 1);
  v_class hwqueue.placement_class;
  v_is_told boolean;
  v_matches boolean;
  v_over text;
begin
  for v_class in
    select c.* from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id > p_after and c.class_id <= coalesce(v_last, 9223372036854775807) order by c.class_id
  loop
    v_is_told := exists (select 1 from hwqueue.unmatched_class t where t.shard_id = p_shard and t.class_id = v_class.class_id);
    if hwqueue.is_known_match(v_class, p_now, p_shard) then
      v_over := 'a live node matches';
    -- after the look at nodes: of a class that is claimed from, many entries may be dead and not removed yet
    elsif not exists (
        select 1 from hwqueue.ready r
        join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = r.queue_id
        where r.shard_id = p_shard and r.class_id = v_class.class_id and q.dropped_at is null) then
      v_over := 'none is waiting any more';
    else
      v_matches := hwqueue.has_match(v_class, p_now, p_shard);
      v_over := case when v_matches then 'a live node matches' end;
    end if;
    if v_over is null and not v_matches and not v_is_told then  -- null: not known yet
      insert into hwqueue.unmatched_class (shard_id, class_id, told_at) values (p_shard, v_class.class_id, p_now);
      perform hwqueue.note_unmatched(v_class, p_now, p_shard);
    elsif v_over is not null and v_is_told then
      delete from hwqueue.unmatched_class t where t.shard_id = p_shard and t.class_id = v_class.class_id;
      perform hwqueue.note_event('class_unmatched_over', format('leases of task %s: %s', v_class.task_name, v_over), p_shard,
        p_queue => hwqueue.queue_name(v_class.queue_id, p_shard), p_class => v_class.class_id);
    end if;
    if clock_timestamp() - v_began_at > interval '50 milliseconds' then
      return v_class.class_id;
    end if;
  end loop;
  return coalesce(v_last, 0);
end
$$;

-- The name of a queue, dropped or not.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.queue_name(p_queue_id int, p_shard int) returns text
language sql stable
as $$ select q.name from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = p_queue_id $$;

-- Writes the event, with the commonest permanent reason among twenty live nodes, fewer of a class that costs much to judge.
-- Locks: none. Raises: nothing. Idempotent: no.
create or replace function hwqueue.note_unmatched(p_class hwqueue.placement_class, p_now timestamptz, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_nodes int;
  v_reasons jsonb;
  v_first record;
begin
  with sample as (
    select n.node_id, hwqueue.class_reasons(p_class, n, hwqueue.idle_load(n), null, p_now, p_shard) as reasons
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
    order by n.node_id limit greatest(1, least(20, 20 * hwqueue.judge_budget() / p_class.cost))
  ), counted as (
    select r.value ->> 'code' as code, min(r.value ->> 'message') as message, count(distinct s.node_id) as nodes
    from sample s, jsonb_array_elements(s.reasons) r
    where (r.value ->> 'permanent')::boolean group by 1
  )
  select (select count(*) from sample), (select jsonb_object_agg(c.code, c.nodes) from counted c) into v_nodes, v_reasons;
  select c.key as code, c.value::int as nodes into v_first from jsonb_each_text(v_reasons) c order by c.value::int desc, c.key limit 1;
  perform hwqueue.note_event('class_unmatched', format('no live node matches leases of task %s that wait: %s', p_class.task_name,
      case when v_nodes = 0 then 'no node is live' else format('%s on %s of %s', v_first.code, v_first.nodes, v_nodes) end),
    p_shard, jsonb_build_object('reason', case when v_nodes = 0 then 'node_not_live' else v_first.code end, 'reasons', v_reasons),
    p_queue => hwqueue.queue_name(p_class.queue_id, p_shard), p_class => p_class.class_id);
end
$$;
