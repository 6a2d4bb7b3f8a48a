-- Which classes a term selects, and how the two find each other without reading all of either.

-- Whether the leases of a class are selected. A term on one lease selects the class made for that lease (target); the others of
-- its class, if it has one in common with others, are told apart at the claim.
create or replace function hwqueue.term_selects(p_spec jsonb, p_class hwqueue.placement_class) returns boolean
language plpgsql immutable
as $$
declare
  v_item jsonb;
begin
  for v_item in select i.value from jsonb_array_elements(p_spec -> 'all') i loop
    if not (case
      when v_item ? 'lease' then coalesce(v_item ->> 'lease' = p_class.target::text, false)
      when jsonb_typeof(v_item -> 'tenants') = 'array' and not v_item -> 'tenants' ? p_class.tenant then false
      when v_item ? 'service' then coalesce(v_item ->> 'service' = p_class.service_id::text, false)
      when v_item ? 'task' then v_item ->> 'task' = p_class.task_name and (v_item ->> 'queue')::int = p_class.queue_id
      else not exists (
        select 1 from jsonb_array_elements(v_item -> 'exprs') e
        where not hwqueue.label_holds(e.value ->> 'op', p_class.labels -> (e.value ->> 'label'), e.value -> 'values'))
      end) then
      return false;
    end if;
  end loop;
  return true;
end
$$;

-- What a term hangs on: one thing that every lease it selects has, or '*'.
create or replace function hwqueue.term_anchors(p_spec jsonb) returns text[]
language sql immutable
as $$
  select coalesce(
    (select array['lease:' || (i.value ->> 'lease')] from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'lease' limit 1),
    (select array['service:' || (i.value ->> 'service')] from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'service' limit 1),
    (select array['task:' || (i.value ->> 'task')] from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'task' limit 1),
    (select array(select 'label:' || (e.value ->> 'label') || '=' || left(v.value, 200) from jsonb_array_elements_text(e.value -> 'values') v)
     from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
     where e.value ->> 'op' = 'in' order by jsonb_array_length(e.value -> 'values') limit 1),
    array['*'])
$$;

-- What a class looks up.
create or replace function hwqueue.selected_anchors(p_class hwqueue.placement_class) returns text[]
language sql immutable
as $$
  select array['*', 'task:' || p_class.task_name]
    || case when p_class.service_id is null then '{}' else array['service:' || p_class.service_id] end
    || case when p_class.target is null then '{}' else array['lease:' || p_class.target] end
    || array(select 'label:' || l.key || '=' || left(l.value, 200) from jsonb_each_text(p_class.labels) l)
$$;
