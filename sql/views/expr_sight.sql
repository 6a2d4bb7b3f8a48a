-- What of a node a requirement looks at: two nodes that are alike in that are alike to it, and one answer does for both. Too much does no
-- harm, too little would: a new kind of expression must be told of here (a test compares with match_nodes).
-- keys: labels; trusts: trust domains; ids: nodes and resources that it names, for a node that has none of them is as good as another.
create or replace function hwqueue.expr_sight(p_expr jsonb, out keys text[], out sees_rack boolean, out trusts text[], out ids uuid[])
language plpgsql immutable parallel safe
as $$
begin
  sees_rack := false;
  trusts := '{}';
  ids := '{}';
  if p_expr ? 'label' then  -- most are: no path needs to be walked
    keys := case when p_expr ? 'other_label' then array[p_expr ->> 'label', p_expr ->> 'other_label'] else array[p_expr ->> 'label'] end;
    return;
  end if;
  keys := array(
    select k.key from (
      select t.key #>> '{}' as key from jsonb_path_query(p_expr, 'strict $.**.label ? (@.type() == "string")', '{}', true) t(key)
      union select t.key #>> '{}' from jsonb_path_query(p_expr, 'strict $.**.other_label ? (@.type() == "string")', '{}', true) t(key)
      union select jsonb_object_keys(t.tags) from jsonb_path_query(p_expr, 'strict $.**.tags ? (@.type() == "object")', '{}', true) t(tags)) k
    order by 1);
  sees_rack := jsonb_path_exists(p_expr, 'strict $.** ? (exists(@.rack))', '{}', true);
  trusts := array(
    select distinct t #>> '{}' from jsonb_path_query(p_expr, 'strict $.**.trust ? (@.type() == "string")', '{}', true) t order by 1);
  ids := array(
    select distinct (t.id #>> '{}')::uuid
    from (select jsonb_path_query(p_expr, 'lax $.**.node[*]') as id
          union select jsonb_path_query(p_expr, 'lax $.**.resource[*]')) t
    where jsonb_typeof(t.id) = 'string' and t.id #>> '{}' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
end
$$;

-- Of a node's labels those of these keys.
create or replace function hwqueue.labels_among(p_labels jsonb, p_keys text[]) returns jsonb
language sql immutable parallel safe
as $$
  select coalesce(jsonb_object_agg(k, p_labels -> k), '{}') from unnest(p_keys) k where p_labels ? k
$$;

-- The same. Without a subquery, so that the planner inlines it: most requirements look at one label, of every kind of nodes.
create or replace function hwqueue.labels_seen(p_labels jsonb, p_keys text[]) returns jsonb
language sql stable parallel safe
as $$
  select case cardinality(p_keys)
    when 0 then '{}'
    when 1 then case when p_labels ? p_keys[1] then jsonb_build_object(p_keys[1], p_labels -> p_keys[1]) else '{}' end
    else hwqueue.labels_among(p_labels, p_keys) end
$$;
