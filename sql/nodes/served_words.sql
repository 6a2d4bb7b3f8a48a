-- What is said of queues and tasks that nodes do not serve.

-- What a node lacks of it, of one node: "its worker has no handler for task "mail"".
create or replace function hwqueue.unserving_words(p_predicate jsonb) returns text
language sql immutable parallel safe
as $$
  select case when p_predicate ? 'queue' then format('its worker does not poll queue %s', p_predicate -> 'queue')
              else format('its worker has no handler for task %s', p_predicate -> 'task') end
$$;

-- What live nodes serve together; any_queue: one of them polls whatever there is.
create or replace function hwqueue.served_names(p_now timestamptz, p_shard int,
  out queues text[], out tasks text[], out any_queue boolean)
language sql stable
as $$
  with live as materialized (
    select distinct v.queues, v.tasks
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    left join hwqueue.served v on v.shard_id = p_shard and v.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
  )
  select array(select distinct q from live l, unnest(l.queues) q order by q),
         array(select distinct t from live l, unnest(l.tasks) t order by t),
         exists (select from live l where l.queues is null)
$$;

-- The pairs of letters of a name, its ends included.
create or replace function hwqueue.letter_pairs(p_name text) returns text[]
language sql immutable parallel safe
as $$ select array(select distinct substr(' ' || lower(p_name) || ' ', i, 2) from generate_series(1, length(p_name) + 1) i) $$;

-- The name of the first 200 that is most like another one (by the pairs of letters that they share); null:
-- none is.
create or replace function hwqueue.nearest_name(p_name text, p_names text[]) returns text
language sql immutable parallel safe
as $$
  with wanted as materialized (
    select hwqueue.letter_pairs(p_name) as pairs
  )
  select k.name
  from (
    select n.name, 2.0 * (select count(*) from unnest(o.pairs) p where p = any (w.pairs))
                   / (cardinality(o.pairs) + cardinality(w.pairs)) as alike
    from wanted w
    cross join unnest(p_names[1:200]) n(name)
    cross join lateral (select hwqueue.letter_pairs(n.name) as pairs offset 0) o) k
  where k.alike >= 0.5
  order by k.alike desc, k.name limit 1
$$;

-- What is to be said when no live node serves a queue and task; the lists are those of served_names.
-- p_tells_nearest: it takes milliseconds.
create or replace function hwqueue.unserved_words(p_queue text, p_task text, p_queues text[], p_tasks text[],
  p_any_queue boolean, p_tells_nearest boolean) returns text
language sql immutable parallel safe
as $$
  select case
    when w.is_unpolled then format('no live node polls queue %s', to_json(p_queue))
    when p_task = any (p_tasks) then
      format('no live node that polls queue %s has a handler for task %s', to_json(p_queue), to_json(p_task))
    else format('no live node has a handler for task %s', to_json(p_task)) end
    || case when p_tells_nearest and (w.is_unpolled or p_task <> all (p_tasks)) then
         coalesce('; nearest: ' || to_json(case when w.is_unpolled then hwqueue.nearest_name(p_queue, p_queues)
                                                else hwqueue.nearest_name(p_task, p_tasks) end), '')
       else '' end
  from (select not p_any_queue and p_queue <> all (p_queues) as is_unpolled) w
$$;
