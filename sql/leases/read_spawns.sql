-- What an element of a batch has in common with others: all but its params and own options. One that is no object stays as it is.
create or replace function hwqueue.spawn_kind(p_element jsonb) returns jsonb
language sql immutable
as $$
  select case
    when jsonb_typeof(p_element) <> 'object' then p_element
    when p_element -> 'options' ?| hwqueue.own_options()
      then jsonb_set(p_element - 'params', '{options}', hwqueue.class_options(p_element -> 'options'))
    else p_element - 'params' end
$$;

-- The class of a kind.
-- Locks: none beyond a new row. Raises: QHA01, QHC03, QHC04, QHW01, naming the field.
create or replace function hwqueue.kind_class(p_queue_id int, p_kind jsonb, p_shard int) returns bigint
language plpgsql volatile
as $$
declare
  v_kind jsonb := hwqueue.check_object(p_kind, array['task', 'params', 'options'], 'lease');
begin
  return hwqueue.spawn_class(p_queue_id, hwqueue.json_text(v_kind -> 'task', 'task', 200),
                             coalesce(nullif(v_kind -> 'options', 'null'), '{}'), p_shard);
end
$$;

-- A batch, read and checked, in its order. Most elements are of a few kinds: each kind is checked, and its class found, once.
-- Locks: none beyond new classes. Raises: QHA01, QHC03, QHC04, QHW01, naming the field, not the element.
create or replace function hwqueue.read_spawns(p_queue hwqueue.queue, p_leases jsonb, p_now timestamptz, p_shard int)
returns hwqueue.spawn_request[]
language plpgsql volatile
as $$
declare
  v_lease_ids uuid[] := hwqueue.new_ids(jsonb_array_length(p_leases));
  v_class_ids bigint[];
begin
  v_class_ids := array(
    select k.class_id
    from (select hwqueue.kind_class(p_queue.queue_id, e.kind, p_shard) as class_id, e.ordinals
          from (select hwqueue.spawn_kind(i.value) as kind, array_agg(i.ordinality) as ordinals
                from jsonb_array_elements(p_leases) with ordinality i group by 1 order by min(i.ordinality)) e) k,
         unnest(k.ordinals) o(ordinal)
    order by o.ordinal);
  return array(
    select hwqueue.read_spawn(e.ordinal, v_lease_ids[e.ordinal], nextval('hwqueue.ready_position_seq'), v_class_ids[e.ordinal],
                              e.task, e.params, e.options, p_queue.max_params_bytes, p_now)
    from (
      select i.ordinality::int as ordinal, i.value ->> 'task' as task, i.value -> 'params' as params,
             case when i.value -> 'options' ?| hwqueue.kept_options() then i.value -> 'options' end as options
      from jsonb_array_elements(p_leases) with ordinality i
      offset 0) e  -- so that each value is taken out once, not wherever it is used
    order by e.ordinal);
end
$$;
