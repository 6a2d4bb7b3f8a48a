-- The one sentence about leases that are pending, with its code.

-- What of a class's fleet comes first to mind; null code: nothing stands in the way but the node's asking. permanent: until nodes or the lease change.
-- p_fleet: see judge_fleet. Patience, deadlines and the lease's place in line are the caller's.
create or replace function hwqueue.pending_headline(p_class hwqueue.placement_class, p_queue hwqueue.queue, p_fleet jsonb, p_now timestamptz, p_shard int,
                                                    out headline text, out code text, out permanent boolean)
language plpgsql stable
as $$
declare
  v_live bigint := (p_fleet ->> 'live')::bigint;
  v_matching bigint := (p_fleet ->> 'matching')::bigint;
  v_sole jsonb;
  v_target record;
begin
  permanent := false;
  if p_queue.paused_at is not null then
    code := 'queue_paused';
    headline := format('queue %s is paused since %s UTC', p_queue.name,
                       to_char(p_queue.paused_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS'));
  elsif p_fleet ->> 'registered' = '0' then
    code := 'no_nodes';
    headline := 'no node is registered';
  elsif v_live = 0 then
    code := 'node_not_live';
    headline := format('%s silent: the last sign of life came %s ago', case p_fleet ->> 'registered' when '1' then 'the only node is'
                         else format('all %s nodes are', p_fleet ->> 'registered') end,
                       hwqueue.span_words(p_now - (p_fleet ->> 'last_seen')::timestamptz));
  elsif v_matching = 0 and p_fleet ->> 'serving' = '0' and not p_fleet @? 'strict $.sole[*] ? (@.stage == "live" || @.stage == "cordon")' then
    code := 'no_handler';
    permanent := true;
    headline := (select hwqueue.unserved_words(p_queue.name, p_class.task_name, s.queues, s.tasks, s.any_queue, true)
                 from hwqueue.served_names(p_now, p_shard) s);
  elsif v_matching = 0 then
    -- nodes that match in all but being there come first, then what keeps out the most alone, then where the last ones drop out
    select s.value into v_sole from jsonb_array_elements(p_fleet -> 'sole') with ordinality s
    where s.value ->> 'stage' in ('live', 'cordon', 'served', 'labels', 'taints', 'trust', 'isolation', 'capacity')
    order by s.value ->> 'stage' in ('live', 'cordon') desc, s.ordinality limit 1;
    if v_sole is null then
      v_sole := (select f.value from jsonb_array_elements(p_fleet -> 'first') with ordinality f
                 where f.value ->> 'stage' <> 'live' order by f.ordinality limit 1);
      headline := case when v_sole ->> 'stage' = 'cordon' then format('no live node is free of a cordon (%s are live)', v_live)
        else format('none of the %s live nodes can run it: the last ones lack %s', v_live, hwqueue.failure_words(v_sole, p_class)) end;
    elsif v_sole ->> 'stage' in ('live', 'cordon') then
      headline := format('%s %s', hwqueue.count_words((v_sole ->> 'nodes')::bigint, 'node matches, but it is', 'nodes match, but they are'),
        case when v_sole ->> 'stage' = 'cordon' then 'cordoned' else 'silent' end);
    else
      headline := format('no live node can run it: %s but for %s',
        hwqueue.count_words((v_sole ->> 'nodes')::bigint, 'node would match', 'nodes would match'),
        hwqueue.failure_words(v_sole, p_class));
    end if;
    code := v_sole ->> 'code';
    permanent := (v_sole ->> 'permanent')::boolean;
  elsif not hwqueue.terms_in_force(p_class, p_shard) then
    code := 'unpublished';
    headline := 'what it asks about other leases is not in force yet' || coalesce(': ' || hwqueue.term_wait(p_now), '');
  elsif p_fleet ->> 'free' = '0' then
    -- the first lease that it must be with and that neither runs nor has succeeded, though it still may
    select l.lease_id, hwqueue.lease_state(l.lease_id, p_shard) as state into v_target
    from jsonb_array_elements(p_class.required) with ordinality e
    join hwqueue.lease l on l.shard_id = p_shard and l.lease_id = (e.value ->> 'lease')::uuid
    where e.value ? 'lease' and not e.value ? 'away'
      and not exists (select 1 from hwqueue.outcome o where o.shard_id = p_shard and o.lease_id = l.lease_id)
      and not exists (select 1 from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = l.lease_id)
    order by e.ordinality limit 1;
    v_sole := (select f.value from jsonb_array_elements(p_fleet -> 'first') f
               where f.value ->> 'stage' in ('free', 'away', 'spread') order by (f.value ->> 'nodes')::bigint desc limit 1);
    code := case v_sole ->> 'code' when 'insufficient_capacity' then 'nodes_support_but_contended' else v_sole ->> 'code' end;
    if v_target.lease_id is not null and v_sole ->> 'stage' = 'away' then
      headline := format('waits for lease %s, which is %s itself', v_target.lease_id, v_target.state);
    else
      headline := format('%s, none is free: %s', hwqueue.count_words(v_matching, 'node matches', 'nodes match'), (
        select string_agg(case when f.value ->> 'stage' = 'free' then hwqueue.count_words((f.value ->> 'nodes')::bigint, 'lacks', 'lack') || ' ' || f.words
                 else hwqueue.count_words((f.value ->> 'nodes')::bigint, 'is', 'are') || format(' kept out by "%s"', f.words) end, ', ' order by f.ordinality)
        from (select x.value, hwqueue.failure_words(x.value, p_class) as words, row_number() over (order by (x.value ->> 'nodes')::bigint desc) as ordinality
              from jsonb_array_elements(p_fleet -> 'first') x
              where x.value ->> 'stage' in ('free', 'away', 'spread')) f
        where f.ordinality <= 3));
    end if;
  else
    headline := hwqueue.count_words((p_fleet ->> 'free')::bigint, 'node', 'nodes') || ' could take it now';
  end if;
end
$$;

-- What a group of judge_fleet failed, in words.
create or replace function hwqueue.failure_words(p_failure jsonb, p_class hwqueue.placement_class) returns text
language sql stable
as $$
  select hwqueue.blocker_words(p_failure ->> 'stage', p_failure ->> 'code', p_failure -> 'predicate', (p_failure ->> 'lacks')::int, p_class)
$$;
