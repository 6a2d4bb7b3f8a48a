-- Placement classes: the equivalence classes of leases. Leases that ask for the same share one row,
-- found by digest, and nodes are judged for classes, never for single leases.
-- The content of a class never changes: an update moves the lease to another class. Only its terms follow the
-- policy of its service. Two sessions may write twins of one class, because no spawn waits for another: later
-- spawns find the older one, and the other runs out of leases.
-- Anchors preselect the classes that may suit a node: a class has the alternatives of one required positive
-- equality (the rarest kind it has), or '*', and a node looks up everything that it is.

-- Returns which of a queue and a task a worker does not serve, as {"queue"} or {"task"}; null: it serves
-- both. A null list means any. Stable, as jsonb_build_object is: Postgres would not inline an immutable one.
create or replace function hwqueue.unserved_part(p_queues text[], p_tasks text[], p_queue text, p_task text)
returns jsonb
language sql stable parallel safe
as $$
  select case when p_queue <> all (p_queues) then jsonb_build_object('queue', p_queue)
    when p_task <> all (p_tasks) then jsonb_build_object('task', p_task) end
$$;

-- Returns the digest that classes of equal content share.
create or replace function hwqueue.class_digest(p_content hwqueue.class_content) returns bytea
language sql stable
as $$
  select sha256(convert_to(jsonb_build_array(p_content.queue_id, p_content.task_name, p_content.tenant,
    p_content.service_id, p_content.labels, p_content.placement, extract(epoch from p_content.patience),
    p_content.target, extract(epoch from p_content.max_run), coalesce(p_content.is_choice, false))::text,
    'UTF8'))
$$;

-- Returns the class of this content without writing it. p_away_from: the services that the policy of its own
-- service keeps it away from, which are no part of the content: a policy may change.
create or replace function hwqueue.draft_class(p_content hwqueue.class_content, p_away_from uuid[])
returns hwqueue.placement_class
language plpgsql immutable
as $$
declare
  v_class hwqueue.placement_class;
  v_placement jsonb := p_content.placement;
  v_resources jsonb := coalesce(v_placement -> 'resources', '{}');
begin
  v_class.digest := hwqueue.class_digest(p_content);
  v_class.queue_id := p_content.queue_id;
  v_class.task_name := p_content.task_name;
  v_class.tenant := p_content.tenant;
  v_class.service_id := p_content.service_id;
  v_class.labels := p_content.labels;
  v_class.placement := v_placement;
  v_class.cost := hwqueue.placement_cost(v_placement);
  v_class.patience := p_content.patience;
  v_class.max_run := p_content.max_run;
  v_class.target := p_content.target;
  v_class.is_choice := coalesce(p_content.is_choice, false);
  v_class.terms_written := false;
  v_class.waits := false;
  v_class.is_woken := false;
  v_class.away_from := p_away_from;
  v_class.required := coalesce(v_placement -> 'require', '[]');
  v_class.preferred := coalesce(v_placement -> 'prefer', '[]');
  v_class.anchors := hwqueue.class_anchors(v_class.required);
  v_class.tolerate := coalesce(v_placement -> 'tolerate', '[]');
  -- a tag with such a key also matches: then the class is judged per node, which is only slower
  v_class.is_pinned := jsonb_path_exists(jsonb_build_array(v_class.required, v_class.preferred),
    'strict $.** ? (exists(@.node) || exists(@.resource) || exists(@.trust))', '{}', true);
  v_class.trusts := array(
    select distinct t #>> '{}'
    from jsonb_path_query(v_class.required, 'strict $.**.trust ? (@.type() == "string")', '{}', true) t
    order by 1);
  v_class.cpu_milli := coalesce((v_resources ->> 'cpu_milli')::bigint, 0);
  v_class.memory_mib := coalesce((v_resources ->> 'memory_mib')::bigint, 0);
  v_class.gpu_milli := coalesce((v_resources ->> 'gpu_milli')::int, 0);
  v_class.gpu_count := coalesce((v_resources ->> 'gpu')::int,
    case when v_class.gpu_milli > 0 then 1 else 0 end);
  v_class.gpu_wanted := case when v_class.gpu_count > 0 then array(
    select (e.value #>> '{resource,0}')::uuid from jsonb_array_elements(v_class.required) e
    where e.value ? 'resource' and not e.value ? 'away') else '{}' end;
  v_class.cpu_isolation := v_placement #>> '{isolation,cpu}';
  v_class.gpu_exclusivity := v_placement #>> '{isolation,gpu}';
  v_class := hwqueue.bind_terms(v_class);
  v_class.custom := nullif(v_resources - array['cpu_milli', 'memory_mib', 'gpu', 'gpu_milli'], '{}');
  return v_class;
end
$$;

-- Returns the id of the class with this content: a committed one, or one of this transaction, else one that
-- it writes. p_asked: the digest of a spawn's words; without content the class that has it, or null.
-- Locks: the new row. Above read committed also the class found, for key share. Raises: 40001 there.
create or replace function hwqueue.find_class(p_content hwqueue.class_content, p_asked bytea default null)
returns bigint
language plpgsql volatile
  set enable_seqscan = off  -- the plan may be kept until there are many classes
as $$
declare
  -- assigned before the lookup: prune_classes waits for transactions that may have found a class
  v_xid xid8 := pg_current_xact_id();
  v_is_asked boolean := p_content is null;
  v_digest bytea := case when not v_is_asked then hwqueue.class_digest(p_content) end;
  v_class_id bigint;
  v_class hwqueue.placement_class;
begin
  if v_is_asked then  -- by a digest, never by going through the ids
    select c.class_id into v_class_id from hwqueue.placement_class c
    where c.asked = p_asked and c.retired_at is null order by c.class_id + 0 limit 1;
  else
    select c.class_id into v_class_id from hwqueue.placement_class c
    where c.digest = v_digest and c.retired_at is null order by c.class_id + 0 limit 1;
  end if;
  if v_class_id is null and not v_is_asked then
    v_class := hwqueue.draft_class(p_content, hwqueue.service_away_from(p_content.service_id));
    v_class_id := nextval('hwqueue.placement_class_class_id_seq');
    v_class.class_id := v_class_id;
    v_class.created_xid := v_xid;
    v_class.created_at := hwqueue.clock();
    v_class.asked := p_asked;
    insert into hwqueue.placement_class overriding system value select v_class.*;
  elsif v_class_id is not null
    and current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    -- an older snapshot may show a class that is retired by now: lock it, or fail with 40001
    perform 1 from hwqueue.placement_class c where c.class_id = v_class_id for key share;
  end if;
  return v_class_id;
end
$$;

-- Whether a class has requirements that must hold during execution, as long as its leases run.
create or replace function hwqueue.binds_during_execution(p_class hwqueue.placement_class) returns boolean
language sql immutable parallel safe
as $$ select p_class.required @> '[{"during": "execution"}]' $$;

-- Returns the anchors of a class.
create or replace function hwqueue.class_anchors(p_required jsonb) returns text[]
language plpgsql immutable parallel safe
as $$ begin
  return coalesce(
    (select array_agg(k.kind || ':' || (t.value #>> '{}') order by t.ordinality)
     from (values (1, 'node'), (2, 'resource'), (4, 'rack')) k(rarity, kind),
          lateral (select e.value from jsonb_array_elements(p_required) e
                   where e.value ? k.kind and not e.value ? 'away'
                     and not (e.value ->> 'unknown') is not distinct from 'pass' limit 1) e,
          lateral jsonb_array_elements(e.value -> k.kind) with ordinality t
     group by k.rarity order by k.rarity limit 1),
    (select array_agg('label:' || (e.value ->> 'label') || '=' || t.value::text order by t.ordinality)
     from (select e.value from jsonb_array_elements(p_required) e
           where e.value ->> 'op' = 'in' and not e.value ? 'other_label'
             and not exists (  -- the size of an index entry is limited
               select 1 from jsonb_array_elements(e.value -> 'values') v where length(v.value::text) > 200)
           order by jsonb_array_length(e.value -> 'values') limit 1) e,
          lateral jsonb_array_elements(e.value -> 'values') with ordinality t),
    array['*']);
end $$;

-- Returns the anchors that nodes of a profile look up, as a set: the planner inlines it.
create or replace function hwqueue.anchors_of(p_labels jsonb, p_rack bigint) returns setof text
language sql immutable parallel safe
as $$
  select '*'
  union all select 'rack:' || p_rack::text where p_rack is not null
  union all select 'label:' || l.key || '=' || hwqueue.normal_value(l.value)::text
  from jsonb_each(p_labels) l where jsonb_typeof(l.value) in ('string', 'number', 'boolean')
$$;

-- Returns the anchors that one node looks up besides those of its profile.
create or replace function hwqueue.node_anchors(p_node uuid, p_resources uuid[]) returns text[]
language plpgsql immutable parallel safe
as $$ begin return
  array['node:' || p_node] || array(select 'resource:' || r from unnest(p_resources) r);
end $$;

-- Returns the services that a service keeps away from by its policy.
create or replace function hwqueue.service_away_from(p_service uuid) returns uuid[]
language plpgsql stable
as $$ begin
  return coalesce((select s.away_from from hwqueue.service s where s.service_id = p_service), '{}');
end $$;
