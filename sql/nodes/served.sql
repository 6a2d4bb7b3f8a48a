-- Which queues a node's worker polls and which tasks it has handlers for, as it announced when it registered.
-- Only explanations read this: a claim names its queues and tasks itself. A node that announced nothing
-- (another client, an older release) is taken as serving anything.

-- The names in a list of a registration or of a match; null: any. Raises: QHA01.
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
    perform hwqueue.refuse('QHA01', format('%s must be a list of at most 10000 names', p_field),
      jsonb_build_object('field', p_field), 'for example ["renders", "mail"]; leave it out for any');
  end if;
  v_names := array(select distinct n from jsonb_array_elements_text(p_value) n order by n);
  perform hwqueue.check_name(n, p_field, p_max_length) from unnest(v_names) n;
  return v_names;
end
$$;

-- Keeps what a registration announces; writes nothing when the node announced the same before.
-- Locks: its row; node_state is held by the caller. Raises: QHA01.
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

-- What a worker that serves these queues and tasks (null: any) lacks for a queue and task: {"queue"} or
-- {"task"}; null: nothing. A draft of a class may have no queue and no task.
create or replace function hwqueue.unserved_part(p_queues text[], p_tasks text[], p_queue text, p_task text) returns jsonb
language sql immutable parallel safe
as $$
  select case when p_queue <> all (p_queues) then jsonb_build_object('queue', p_queue)
              when p_task <> all (p_tasks) then jsonb_build_object('task', p_task) end
$$;

-- The nodes whose workers cannot run leases of a class, with what they lack.
create or replace function hwqueue.unserving_nodes(p_class hwqueue.placement_class, p_shard int)
returns table (node_id uuid, predicate jsonb)
language sql stable
as $$
  select s.node_id, u.predicate
  from hwqueue.served s
  left join hwqueue.queue q on q.shard_id = p_shard and q.queue_id = p_class.queue_id
  cross join lateral (select hwqueue.unserved_part(s.queues, s.tasks, q.name, p_class.task_name) as predicate) u
  where s.shard_id = p_shard and u.predicate is not null
$$;
