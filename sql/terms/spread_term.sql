-- Tells the classes that a term selects: class_term, and a mark wherever a profile or a node may run them, so that claims check. True when
-- there was something new to tell, or somebody could not be told yet.
-- Locks: the caller holds the shard's row; profile rows, skip locked.
create or replace function hwqueue.spread_term(p_term hwqueue.term, p_shard int) returns boolean
language plpgsql volatile
as $$
declare
  v_classes bigint[];
  v_new bigint[];
begin
  if p_term.spec #> '{all,0,lease}' is not null and not hwqueue.give_target((p_term.spec #>> '{all,0,lease}')::uuid, p_shard) then
    return true;
  end if;
  v_classes := hwqueue.selected_classes(p_term.spec, p_shard);
  v_new := array(
    select c from unnest(v_classes) c
    where not exists (select 1 from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = c and m.term_id = p_term.term_id));
  insert into hwqueue.class_term (shard_id, class_id, term_id) select p_shard, c, p_term.term_id from unnest(v_new) c;
  -- a class that is new and was judged by nobody makes no difference: whoever judges it knows the term. Who judged one before may not have
  -- known it; claims go by class_term then, and do not see these rows until this is committed
  return hwqueue.mark_checked(v_classes, p_shard) or hwqueue.is_judged(v_new, p_shard) or p_term.written_xid = '0';
end
$$;

-- Whether somebody remembers of one of these classes who may run it.
create or replace function hwqueue.is_judged(p_class_ids bigint[], p_shard int) returns boolean
language plpgsql volatile
as $$
begin
  return exists (select 1 from hwqueue.profile_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids))
      or exists (select 1 from hwqueue.node_eligibility e where e.shard_id = p_shard and e.class_id = any (p_class_ids));
end
$$;

-- The classes whose leases a term selects; of a term on one lease, its class, and the one that it runs as.
create or replace function hwqueue.selected_classes(p_spec jsonb, p_shard int) returns bigint[]
language plpgsql stable set enable_bitmapscan = on
as $$
declare
  v_lease uuid := (p_spec #>> '{all,0,lease}')::uuid;
  v_service uuid := (
    select (i.value ->> 'service')::uuid from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'service' limit 1);
  v_queue int := (select (i.value ->> 'queue')::int from jsonb_array_elements(p_spec -> 'all') i where i.value ? 'task' limit 1);
  v_equal jsonb := (
    select coalesce(jsonb_object_agg(e.value ->> 'label', e.value #>> '{values,0}'), '{}')
    from jsonb_array_elements(p_spec -> 'all') i, jsonb_array_elements(i.value -> 'exprs') e
    where e.value ->> 'op' = 'in' and jsonb_array_length(e.value -> 'values') = 1);
begin
  if v_lease is not null then
    return array(
      select l.class_id from hwqueue.lease l where l.shard_id = p_shard and l.lease_id = v_lease
      union
      select c.class_id from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = v_lease);
  end if;
  if v_service is not null then
    return array(
      select c.class_id from hwqueue.placement_class c
      where c.shard_id = p_shard and c.service_id = v_service and hwqueue.term_selects(p_spec, c));
  elsif v_queue is not null then
    return array(
      select c.class_id from hwqueue.placement_class c
      where c.shard_id = p_shard and c.queue_id = v_queue and hwqueue.term_selects(p_spec, c));
  end if;
  return array(
    select c.class_id from hwqueue.placement_class c
    where c.shard_id = p_shard and c.labels @> v_equal and hwqueue.term_selects(p_spec, c));
end
$$;
