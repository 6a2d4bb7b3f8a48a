-- What a node is in a domain: nodes of one value are in the same place; null when the node lacks the label, or has a list there.
-- own:rack: that of a failure domain, where a node without a rack is alone.
-- One expression without subqueries, so that the planner inlines it.
create or replace function hwqueue.domain_value(p_domain text, p_node uuid, p_rack bigint, p_labels jsonb) returns text
language sql immutable parallel safe
as $$
  select case p_domain
    when 'node' then p_node::text
    when 'own:node' then p_node::text
    when 'rack' then p_rack::text
    when 'own:rack' then coalesce(p_rack::text, p_node::text)
    else case when jsonb_typeof(p_labels -> substr(p_domain, strpos(p_domain, 'label:') + 6)) in ('string', 'number', 'boolean')
              then (p_labels -> substr(p_domain, strpos(p_domain, 'label:') + 6))::text
              when p_domain like 'own:%' then p_node::text end
  end
$$;

-- Whether a node with that rack and those labels is one of {"require": [EXPR, ...], "domains": [DOMAIN, ...]}: it meets all of those and
-- has a value for each of these.
create or replace function hwqueue.speaks_of(p_nodes jsonb, p_rack bigint, p_labels jsonb) returns boolean
language sql immutable parallel safe
as $$
  select hwqueue.exprs_hold(coalesce(p_nodes -> 'require', '[]'), p_labels, p_rack, null, '{}', null)
    and not exists (
      select 1 from jsonb_array_elements_text(p_nodes -> 'domains') d where hwqueue.domain_value(d, null, p_rack, p_labels) is null)
$$;

-- Where a term counts what runs on a node; null: nowhere, since the node has no value for it or is none of those that it speaks of (nodes, see
-- term_specs).
create or replace function hwqueue.term_place(p_spec jsonb, p_domain text, p_node uuid, p_rack bigint, p_labels jsonb) returns text
language sql immutable parallel safe
as $$
  select case when not p_spec ? 'nodes' or hwqueue.speaks_of(p_spec -> 'nodes', p_rack, p_labels)
              then hwqueue.domain_value(p_domain, p_node, p_rack, p_labels) end
$$;

-- The domain that a term speaks of: as written, or, of a service without one, its failure domain, else that of the lease's queue.
create or replace function hwqueue.term_domain(p_spec jsonb, p_shard int) returns text
language sql stable
as $$
  select case when p_spec ->> 'domain' <> 'failure' then p_spec ->> 'domain' else 'own:' || coalesce(
    (select s.failure_domain from hwqueue.service s where s.shard_id = p_shard and s.service_id = (p_spec #>> '{all,0,service}')::uuid),
    (select q.failure_domain from hwqueue.queue q where q.shard_id = p_shard and q.queue_id = (p_spec ->> 'queue')::int), 'rack') end
$$;
