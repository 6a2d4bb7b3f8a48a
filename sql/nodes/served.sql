-- Which queues a node's worker polls and which tasks it has handlers for, as it announced when it registered. Only explanations read this: a claim
-- names its queues and tasks itself. A node that announced nothing (another client, an older release) is taken as serving anything.

-- The names in a list of a registration; null: any.
-- Locks: none. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.json_names(p_value jsonb, p_field text, p_max_length int) returns text[]
language plpgsql immutable
as $$
declare
  v_names text[];
begin
  if p_value is null or p_value = 'null' then
    return null;
  end if;
  if (case when jsonb_typeof(p_value) <> 'array' then true
           else jsonb_array_length(p_value) > 10000 or p_value @? 'strict $[*] ? (@.type() != "string")' end) then
    perform hwqueue.refuse('QHA01', format('%s must be a list of at most 10000 names', p_field), jsonb_build_object('field', p_field),
      'for example ["renders", "mail"]; leave it out when the node serves any');
  end if;
  v_names := array(select distinct n from jsonb_array_elements_text(p_value) n order by n);
  perform hwqueue.check_name(n, p_field, p_max_length) from unnest(v_names) n;
  return v_names;
end
$$;

-- Keeps what a registration announces; writes nothing when the node announced the same before.
-- Locks: its row; node_state is held by the caller. Raises: QHA01. Idempotent: yes.
create or replace function hwqueue.note_served(p_node uuid, p_spec jsonb, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_queues text[] := hwqueue.json_names(p_spec -> 'queues', 'spec.queues', 100);
  v_tasks text[] := hwqueue.json_names(p_spec -> 'tasks', 'spec.tasks', 200);
begin
  if v_queues is null and v_tasks is null then
    delete from hwqueue.served s where s.shard_id = p_shard and s.node_id = p_node;
  else
    insert into hwqueue.served as s (shard_id, node_id, queues, tasks) values (p_shard, p_node, v_queues, v_tasks)
    on conflict (shard_id, node_id) do update set queues = excluded.queues, tasks = excluded.tasks
    where (s.queues, s.tasks) is distinct from (excluded.queues, excluded.tasks);
  end if;
end
$$;

-- The nodes whose workers cannot run leases of a class, p_node or all, with what they lack: {"queue"} or {"task"}. A draft of a class may have
-- no queue and no task.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.unserving_nodes(p_class hwqueue.placement_class, p_node uuid, p_shard int)
returns table (node_id uuid, predicate jsonb)
language sql stable
as $$
  select s.node_id, case when q.name = any (s.queues) is not false then jsonb_build_object('task', p_class.task_name)
                         else jsonb_build_object('queue', q.name) end
  from hwqueue.served s
  left join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = p_class.queue_id
  where s.shard_id = p_shard and (p_node is null or s.node_id = p_node)
    and (q.name <> all (s.queues) or p_class.task_name <> all (s.tasks))
$$;

-- What a node lacks of it, of one node: "its worker has no handler for task "mail"".
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.unserving_words(p_predicate jsonb) returns text
language sql immutable parallel safe
as $$
  select case when p_predicate ? 'queue' then format('its worker does not poll queue %s', p_predicate -> 'queue')
              else format('its worker has no handler for task %s', p_predicate -> 'task') end
$$;

-- What live nodes serve together, up to 200 names each; any_queue: one of them polls whatever there is.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.served_names(p_now timestamptz, p_shard int, out queues text[], out tasks text[], out any_queue boolean)
language sql stable
as $$
  with live as materialized (
    select distinct v.queues, v.tasks
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = p_shard and s.node_id = n.node_id
    left join hwqueue.served v on v.shard_id = p_shard and v.node_id = n.node_id
    where n.shard_id = p_shard and n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
  )
  select array(select distinct q from live l, unnest(l.queues) q order by q limit 200),
         array(select distinct t from live l, unnest(l.tasks) t order by t limit 200),
         exists (select from live l where l.queues is null)
$$;

-- The name that is most like another one (by the pairs of letters that they share); null: none is.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.nearest_name(p_name text, p_names text[]) returns text
language sql immutable parallel safe
as $$
  with pair as (
    select n.name, substr(n.text, i, 2) as pair
    from (select x as name, ' ' || lower(x) || ' ' as text from unnest(p_names || p_name) x) n, generate_series(1, length(n.text) - 1) i
    group by 1, 2
  ), size as (
    select p.name, count(*) as pairs from pair p group by p.name
  )
  select s.name
  from size s
  join size o on o.name = p_name
  cross join lateral (
    select 2.0 * count(*) / (s.pairs + o.pairs) as alike from pair p join pair m on m.name = p_name and m.pair = p.pair where p.name = s.name) a
  where s.name <> p_name and a.alike >= 0.5
  order by a.alike desc, s.name limit 1
$$;

-- What is to be said when no live node serves a queue and task; the lists are those of served_names.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.unserved_words(p_queue text, p_task text, p_queues text[], p_tasks text[], p_any_queue boolean) returns text
language sql immutable parallel safe
as $$
  select case
    when not p_any_queue and p_queue <> all (p_queues)
      then format('no live node polls queue %s', to_json(p_queue)) || coalesce('; nearest: ' || to_json(hwqueue.nearest_name(p_queue, p_queues)), '')
    when p_task = any (p_tasks) then format('no live node that polls queue %s has a handler for task %s', to_json(p_queue), to_json(p_task))
    else format('no live node has a handler for task %s', to_json(p_task)) || coalesce('; nearest: ' || to_json(hwqueue.nearest_name(p_task, p_tasks)), '')
  end
$$;
