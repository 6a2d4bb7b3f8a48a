-- Rows of class_failures in words for people.

-- What a failed rule asks: "gpu_model in A100", "2 GPU free", "a toleration of dedicated=film:no_schedule".
create or replace function hwqueue.blocker_words(p_stage text, p_code text, p_predicate jsonb, p_lacks int, p_class hwqueue.placement_class) returns text
language sql stable
as $$
  select regexp_replace(left(case p_stage
    when 'live' then 'a sign of life'
    when 'cordon' then 'not being cordoned'
    when 'served' then case when p_predicate ? 'queue' then format('polling queue %s', p_predicate -> 'queue')
                            else format('a handler for task %s', p_predicate -> 'task') end
    when 'taints' then 'a toleration of ' || hwqueue.taint_text(p_predicate)
    when 'isolation' then case
      when p_code = 'class_conflicts_with_daemon_mode' then 'sharing a GPU'
      when p_predicate ? 'resource' then format('device %s for GPU %s', p_predicate ->> 'resource', coalesce(p_predicate ->> 'gpu', 'shared'))
      when p_predicate ? 'cpu' then 'CPU isolation ' || (p_predicate ->> 'cpu')
      else 'GPU exclusivity ' || (p_predicate ->> 'gpu') end
    when 'capacity' then hwqueue.resource_words(hwqueue.needs_of(p_class, p_lacks, null))
    when 'free' then hwqueue.resource_words(hwqueue.needs_of(p_class, p_lacks, null)) || ' free'
    when 'spread' then hwqueue.spread_words(p_predicate)
    else coalesce(hwqueue.expr_words(p_predicate, p_class.shard_id), 'no lease that keeps away from it') end, 300), '[[:cntrl:]]+', ' ', 'g')
$$;

-- What a node has of it, as far as that can be said in a few words; null: nothing to say.
create or replace function hwqueue.node_has(p_stage text, p_predicate jsonb, p_lacks int, p_fact jsonb, p_domain text, p_class hwqueue.placement_class,
                                            p_node hwqueue.node, p_load hwqueue.node_load, p_now timestamptz) returns text
language plpgsql stable
as $$
begin
  return left(case
    when p_stage = 'capacity' then hwqueue.resource_words(hwqueue.room_for(p_class, p_lacks, p_node,
                                     hwqueue.node_headroom(p_node, hwqueue.idle_load(p_node))))
    when p_stage = 'free' then hwqueue.resource_words(hwqueue.room_for(p_class, p_lacks, p_node, hwqueue.node_headroom(p_node, p_load))) || ' free'
    when p_stage = 'taints' then hwqueue.taint_text(p_predicate)
    when p_stage = 'trust' then coalesce(hwqueue.suspended_words(p_node.node_id, p_predicate ->> 'trust', p_node.shard_id), 'trusted for ' || coalesce(nullif(array_to_string(hwqueue.attested_at(p_node, p_now), ', '), ''), 'nothing'))
    when p_stage = 'isolation' then case when p_predicate ? 'cpu' then array_to_string(p_node.cpu_isolation, ', ')
                                         else array_to_string(p_node.gpu_exclusivity, ', ') end
    when p_fact is not null then case
      when p_fact ->> 'value' is null then 'no ' || regexp_replace(p_domain, '^(own:)?(label:)?', '')
      else format('%s in %s', case when (p_fact ->> 'held')::bigint = 0 then 'none' else p_fact ->> 'held' end,
                  hwqueue.place_words(p_domain, p_fact ->> 'value', p_node.shard_id)) end
    when p_predicate ? 'label' then (p_node.labels -> (p_predicate ->> 'label'))::text
    when p_predicate ? 'tags' then (
      select jsonb_object_agg(k, p_node.labels -> k)::text from jsonb_object_keys(p_predicate -> 'tags') k where p_node.labels ? k)
    when p_predicate ? 'rack' then coalesce('rack ' || p_node.rack, 'no rack')
    when p_predicate ? 'node' then 'node ' || p_node.name end, 200);
end
$$;
