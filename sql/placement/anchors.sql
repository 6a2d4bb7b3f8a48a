-- Anchors: how a node finds the classes that may suit it without reading the rest.
-- A class hangs on the alternatives of one required positive equality (the rarest kind it has), or on '*';
-- a node looks up everything it is. Neither decides: expr_reason does.

-- What a class hangs on.
create or replace function hwqueue.class_anchors(p_required jsonb) returns text[]
language plpgsql immutable parallel safe
as $$
begin
  return coalesce(
    (select array_agg(k.kind || ':' || (t.value #>> '{}') order by t.ordinality)
     from (values (1, 'node'), (2, 'resource'), (4, 'rack')) k(rarity, kind),
          lateral (select e.value from jsonb_array_elements(p_required) e
                   where e.value ? k.kind and not e.value ? 'away' and not (e.value ->> 'unknown') is not distinct from 'pass' limit 1) e,
          lateral jsonb_array_elements(e.value -> k.kind) with ordinality t
     group by k.rarity order by k.rarity limit 1),
    (select array_agg('label:' || (e.value ->> 'label') || '=' || t.value::text order by t.ordinality)
     from (select e.value from jsonb_array_elements(p_required) e
           where e.value ->> 'op' = 'in' and not e.value ? 'other_label'
             and not exists (  -- an index entry has a limit
               select 1 from jsonb_array_elements(e.value -> 'values') v where length(v.value::text) > 200)
           order by jsonb_array_length(e.value -> 'values') limit 1) e,
          lateral jsonb_array_elements(e.value -> 'values') with ordinality t),
    array['*']);
end
$$;

-- What nodes of a profile look up, as rows: the planner inlines it, which it does not do with an array.
create or replace function hwqueue.anchors_of(p_labels jsonb, p_rack bigint) returns setof text
language sql immutable parallel safe
as $$
  select '*'
  union all select 'rack:' || p_rack::text where p_rack is not null
  union all select 'label:' || l.key || '=' || hwqueue.normal_value(l.value)::text
  from jsonb_each(p_labels) l where jsonb_typeof(l.value) in ('string', 'number', 'boolean')
$$;

-- The same.
create or replace function hwqueue.profile_anchors(p_labels jsonb, p_rack bigint) returns text[]
language sql immutable parallel safe
as $$ select array(select a from hwqueue.anchors_of(p_labels, p_rack) a) $$;

-- What one node looks up besides.
create or replace function hwqueue.node_anchors(p_node uuid, p_resources uuid[]) returns text[]
language sql immutable parallel safe
as $$ select array['node:' || p_node] || array(select 'resource:' || r from unnest(p_resources) r) $$;
