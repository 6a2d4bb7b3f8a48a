-- Sets of nodes as bit strings: one bit a node, numbered by numbered_nodes.
--
-- Example: do 10,000 classes suit 10,000 nodes? Classes share what they ask and nodes share what they are.
-- "The nodes that meet this requirement" is one bit string, what suits a class is then a few ANDs, and how
-- many nodes that are is bit_count (docs/run/why_pending.md). The invariant: all bit strings of one statement
-- have the same numbering (node_numbers). p_none is one with a zero for each node.

-- Returns, for each class and part, the nodes whose isolation, capacity and devices suffice: what
-- has_isolation_conflict and class_shortage decide, for many classes and nodes at once. p_idle: all
-- nodes, as if nothing ran; otherwise the nodes in p_open as they are now, by capacity and devices
-- alone. A part that every node meets may be left out. Each operation on these strings counts.
create or replace function hwqueue.capacity_parts(
  p_class_ids bigint[], p_idle boolean, p_open bit varying, p_none bit varying, p_now timestamptz)
returns table (class_id bigint, part text, mask bit varying)
language sql stable
as $$
  with ask as materialized (
    select c.class_id, c as class from hwqueue.placement_class c where c.class_id = any (p_class_ids)
  ), manner as materialized (  -- nodes that are alike in what isolation they honour
    select row_number() over () as manner_id, m.*, ~m.mask as others
    from (select case when p_idle then n.cpu_isolation end as cpu_isolation,
                 case when p_idle then n.gpu_exclusivity end as gpu_exclusivity,
                 n.default_cpu_isolation, n.gpu_share_mode,
                 bit_or(set_bit(p_none, k.number, 1)) as mask
          from hwqueue.node_numbers() k
          join hwqueue.node n on n.node_id = k.node_id
          group by 1, 2, 3, 4) m
  ), need as materialized (
    select a.class_id, m.manner_id, d.name, d.amount
    from ask a cross join manner m
    cross join lateral hwqueue.needed_amounts(a.class, m.default_cpu_isolation, m.gpu_share_mode) d
  ), amount as materialized (
    select array_agg(d.name) as names, array_agg(d.amount) as amounts
    from (select distinct x.name, x.amount from need x) d
  ), enough as materialized (
    select t.name, t.amount, t.mask
    from amount l
    cross join lateral hwqueue.amount_masks(l.names, l.amounts, p_idle, p_open, p_none, p_now) t
  ), wanted as (  -- classes that name devices: only nodes that have those count, each judged by itself
    select a.class_id, a.class, u.id from ask a cross join lateral unnest((a.class).gpu_wanted) u(id)
  ), device as (
    select w.class_id, coalesce(bit_or(set_bit(p_none, n.number, 1)) filter (
             where hwqueue.class_shortage(w.class, n.node,
                     case when p_idle then hwqueue.idle_load(n.node)
                       else hwqueue.read_load((n.node).node_id) end) = 0
               and not (p_idle and hwqueue.has_isolation_conflict(
                 w.class, (n.node).cpu_isolation, (n.node).gpu_exclusivity, (n.node).gpu_share_mode,
                 (n.node).gpu_ids, (n.node).gpu_parents))), p_none) as mask
    from wanted w
    join (
      select i.id, x.number, x.node
      from hwqueue.numbered_nodes(p_now) x
      cross join lateral unnest((x.node).resources || (x.node).gpu_ids) i(id)
      where exists (select 1 from wanted)) n on n.id = w.id
    group by w.class_id
  )
  select a.class_id, 'isolation', ~bit_or(m.mask)
  from ask a cross join manner m
  -- judged only where there may be a conflict: most classes and nodes ask no isolation
  where p_idle and ((a.class).cpu_isolation is not null or (a.class).gpu_exclusivity is not null
      or m.gpu_share_mode <> 'fractional')
    and hwqueue.has_isolation_conflict(a.class, m.cpu_isolation, m.gpu_exclusivity, m.gpu_share_mode, '{}',
        '{}')
  group by a.class_id
  union all
  -- every node has enough of what is needed on nodes of its manner
  select d.class_id, 'capacity', bit_and(e.mask | m.others)
  from need d
  join enough e on e.name = d.name and e.amount = d.amount
  join manner m on m.manner_id = d.manner_id
  group by d.class_id
  union all
  select a.class_id, 'device', coalesce(d.mask, p_none)
  from ask a left join device d on d.class_id = a.class_id
  where (a.class).gpu_wanted <> '{}'
$$;

-- Returns the nodes that have at least an amount left, for each pair of p_names and p_amounts; no row
-- where all of them have. p_idle, p_open: as above. Each node goes to the largest of the requested amounts
-- that it still has (a step). The nodes of all steps below an amount have not enough of it.
create or replace function hwqueue.amount_masks(
  p_names text[], p_amounts bigint[], p_idle boolean, p_open bit varying, p_none bit varying,
  p_now timestamptz)
returns table (name text, amount bigint, mask bit varying)
language sql stable
as $$
  with asked as materialized (
    select a.name, array_agg(distinct a.amount) as steps from unnest(p_names, p_amounts) a(name, amount)
    group by a.name
  ), node as materialized (
    select n.number, n.node from hwqueue.numbered_nodes(p_now) n where p_idle
  ), plain as materialized (
    -- what amount_left says, but from columns, without reading whole rows; null: read the headroom
    select a.name, k.number, k.node_id, case
        when a.name = 'cpu_milli'
          then greatest(0, coalesce(n.cpu_milli - u.cpu_used, 9223372036854775807))
        when a.name = 'memory_mib'
          then greatest(0, coalesce(n.memory_mib - u.memory_used, 9223372036854775807))
        when a.name = 'slots'
          then greatest(0, coalesce((n.slots - u.claim_count)::bigint, 9223372036854775807))
        when a.name like 'core%' and n.core_ids = '{}' then 9223372036854775807
        when a.name like 'gpu%' and n.gpu_ids = '{}' then 0
        when a.name = 'gpu_whole' and n.gpu_parents = '{}' then cardinality(array_positions(u.gpu_used, 0))
      end as amount
    from hwqueue.node_numbers() k
    join hwqueue.node n on n.node_id = k.node_id
    join hwqueue.newest_loads() u on u.node_id = k.node_id
    cross join asked a
    where not p_idle
  ), short as materialized (
    select t.name, t.step, bit_or(coalesce(t.mask, set_bit(p_none, t.number, 1))) as mask
    from (
      select a.name, width_bucket(hwqueue.amount_left(r.room, a.name), a.steps) as step,
             cardinality(a.steps) as steps, r.mask, null::int as number
      from asked a
      cross join (  -- once for all nodes with the same capacity
        select hwqueue.node_headroom(n.node, hwqueue.idle_load(n.node)) as room, k.mask
        from (
          select min(x.number) as number, bit_or(set_bit(p_none, x.number, 1)) as mask
          from node x
          group by (x.node).cpu_milli, (x.node).memory_mib, (x.node).slots, (x.node).custom,
            cardinality((x.node).gpu_ids), cardinality(array_remove((x.node).gpu_parents, null)),
            (x.node).core_numa) k
        join node n on n.number = k.number) r
      where p_idle
      union all
      select p.name, width_bucket(p.amount, a.steps), cardinality(a.steps), null, p.number
      from plain p join asked a on a.name = p.name
      where p.amount is not null
      union all
      select p.name, width_bucket(hwqueue.amount_left(hwqueue.node_headroom(n, u), p.name), a.steps),
             cardinality(a.steps), null, p.number
      from plain p
      join asked a on a.name = p.name
      join hwqueue.node n on n.node_id = p.node_id
      join hwqueue.newest_loads() u on u.node_id = p.node_id
      where p.amount is null
    ) t
    where t.step < t.steps
    group by t.name, t.step
  )
  select a.name, s.amount, case when p_idle then ~p_none else p_open end & ~bit_or(t.mask)
  from asked a
  cross join lateral unnest(a.steps) with ordinality s(amount, step)
  join short t on t.name = a.name and t.step < s.step
  group by a.name, s.amount
$$;

-- Returns the nodes that meet each of these requirements; terms about other leases count as met. expr_reason
-- judges once for all nodes that a requirement cannot tell apart, a required equality only where its value
-- occurs (anchors), and nodes that a requirement names one by one. Makes at most p_most judgements, the
-- cheapest requirements first (one takes its placement_cost, and one for each kind of nodes that it tells
-- apart); beyond that mask is null: not known.
create or replace function hwqueue.expr_masks(p_exprs jsonb[], p_most int, p_none bit varying,
  p_now timestamptz)
returns table (expr jsonb, mask bit varying)
language sql stable
as $$
  with site as materialized (  -- nodes with the same labels, rack and attestations
    select p.labels, p.rack, s.attested, s.mask
    from (
      select n.profile_id, case when n.attested = '{}' then n.attested
             else hwqueue.still_attested(n.attested, n.attested_until, p_now) end as attested,
             bit_or(set_bit(p_none, k.number, 1)) as mask
      from hwqueue.node_numbers() k
      join hwqueue.node n on n.node_id = k.node_id
      group by 1, 2) s
    join hwqueue.profile p on p.profile_id = s.profile_id
  ), asked as materialized (
    select e.ordinality as id, e.expr, hwqueue.class_anchors(jsonb_build_array(e.expr)) as anchors, s.keys,
           s.sees_rack, s.trusts, s.ids,
           hwqueue.placement_cost(jsonb_build_object('require', jsonb_build_array(e.expr))) as cost
    from unnest(p_exprs) with ordinality e(expr, ordinality)
    cross join lateral hwqueue.expr_inputs(e.expr) s
  ), sight as materialized (
    select row_number() over () as sight_id, s.keys, s.sees_rack, s.trusts
    from (select distinct a.keys, a.sees_rack, a.trusts from asked a) s
  ), kind as materialized (  -- nodes that requirements of one sight cannot tell apart
    select row_number() over () as kind_id, k.*
    from (
      select g.sight_id, hwqueue.labels_read(t.labels, g.keys) as labels, case when g.sees_rack
             then t.rack end as rack,
             case when g.trusts = '{}' then '{}' else array(select d from unnest(g.trusts) d
                 where d = any (t.attested)) end as attested,
             bit_or(t.mask) as mask
      from sight g cross join site t
      group by 1, 2, 3, 4) k
  ), anchored as materialized (
    select k.sight_id, a.anchor, k.kind_id from kind k
    cross join lateral hwqueue.anchors_of(k.labels, k.rack) a(anchor)
  ), work as materialized (
    select a.*, g.sight_id, sum(case when a.anchors = '{*}' then k.kinds
           else cardinality(a.anchors) end + a.cost) over (order by k.kinds + a.cost, a.id) as so_far
    from asked a
    join sight g on g.keys = a.keys and g.sees_rack = a.sees_rack and g.trusts = a.trusts
    join (select x.sight_id, count(*) as kinds from kind x group by 1) k on k.sight_id = g.sight_id
  ), sought as materialized (
    select w.id, w.sight_id, a.anchor from work w cross join lateral unnest(w.anchors) a(anchor)
    where w.so_far <= p_most
  ), met as (
    select w.id, bit_or(k.mask) as mask
    from sought s
    join anchored c on c.sight_id = s.sight_id and c.anchor = s.anchor
    join kind k on k.kind_id = c.kind_id
    join work w on w.id = s.id
    where hwqueue.expr_reason(w.expr, k.labels, k.rack, null, '{}', null, k.attested) is null
    group by w.id
  ), known as materialized (  -- by id, if any is named
    select n.number, n.node, n.attested, i.id
    from hwqueue.numbered_nodes(p_now) n
    cross join lateral unnest((n.node).node_id || (n.node).resources || (n.node).gpu_ids) i(id)
    where exists (select 1 from work w where w.ids <> '{}')
  ), named as (
    select w.id, bit_or(set_bit(p_none, n.number, 1)) as mask,
           bit_or(set_bit(p_none, n.number, 1)) filter (where hwqueue.expr_reason(w.expr, (n.node).labels,
               (n.node).rack, (n.node).node_id,
             (n.node).resources || (n.node).gpu_ids, null, n.attested) is null) as met
    from work w
    join (select x.id as expr_id, i.id from work x cross join lateral unnest(x.ids) i(id)) i
      on i.expr_id = w.id
    join known n on n.id = i.id
    group by w.id
  )
  select w.expr, case when w.so_far <= p_most then
           coalesce(m.mask, p_none) & ~coalesce(n.mask, p_none) | coalesce(n.met, p_none) end
  from work w
  left join met m on m.id = w.id
  left join named n on n.id = w.id
$$;

-- Returns which facts of a node a requirement reads: nodes that are alike in them are alike to it. Naming too
-- many facts is harmless, naming too few is a bug: a new kind of expression must be added here.
-- keys: labels; trusts: trust domains; ids: nodes and resources that it names. A node that has none of
-- the named ids is like any other.
create or replace function hwqueue.expr_inputs(p_expr jsonb, out keys text[], out sees_rack boolean,
  out trusts text[], out ids uuid[])
language plpgsql immutable parallel safe
as $$
begin
  sees_rack := false;
  trusts := '{}';
  ids := '{}';
  if p_expr ? 'domain' and not p_expr ? 'term' then  -- of domains_needed
    sees_rack := p_expr ->> 'domain' = 'rack';
    keys := case when sees_rack then '{}' else array[substr(p_expr ->> 'domain', 7)] end;
    return;
  elsif p_expr ? 'label' then  -- most have one: no path query is needed
    keys := case when p_expr ? 'other_label' then array[p_expr ->> 'label', p_expr ->> 'other_label']
      else array[p_expr ->> 'label'] end;
    return;
  end if;
  keys := array(
    select k.key from (
      select t.key #>> '{}' as key from jsonb_path_query(p_expr,
             'strict $.**.label ? (@.type() == "string")', '{}', true) t(key)
      union select t.key #>> '{}' from jsonb_path_query(p_expr,
          'strict $.**.other_label ? (@.type() == "string")', '{}', true) t(key)
      union select jsonb_object_keys(t.tags)
        from jsonb_path_query(p_expr, 'strict $.**.tags ? (@.type() == "object")', '{}', true) t(tags)) k
    order by 1);
  sees_rack := jsonb_path_exists(p_expr, 'strict $.** ? (exists(@.rack))', '{}', true);
  trusts := array(
    select distinct t #>> '{}' from jsonb_path_query(p_expr, 'strict $.**.trust ? (@.type() == "string")',
           '{}', true) t order by 1);
  ids := array(
    select distinct (t.id #>> '{}')::uuid
    from (select jsonb_path_query(p_expr, 'lax $.**.node[*]') as id
          union select jsonb_path_query(p_expr, 'lax $.**.resource[*]')) t
    where jsonb_typeof(t.id) = 'string' and t.id #>> '{}' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$');
end
$$;

-- Returns those of a node's labels that have these keys.
create or replace function hwqueue.labels_among(p_labels jsonb, p_keys text[]) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return (
  select coalesce(jsonb_object_agg(k, p_labels -> k), '{}') from unnest(p_keys) k where p_labels ? k
); end $$;

-- The same, without a subquery, so that the planner inlines it: most requirements read one label of
-- every kind of node.
create or replace function hwqueue.labels_read(p_labels jsonb, p_keys text[]) returns jsonb
language sql stable parallel safe
as $$
  select case cardinality(p_keys)
    when 0 then '{}'
    when 1 then case when p_labels ? p_keys[1] then jsonb_build_object(p_keys[1], p_labels -> p_keys[1])
      else '{}' end
    else hwqueue.labels_among(p_labels, p_keys) end
$$;

-- Numbers the registered nodes from 0: the same in every statement of a stable function.
create or replace function hwqueue.node_numbers() returns table (number int, node_id uuid)
language sql stable
as $$
  select (row_number() over (order by n.node_id))::int - 1, n.node_id
  from hwqueue.node n where n.deregistered_at is null
$$;

-- Returns the nodes with their numbers. attested: trust domains that they are attested for now.
create or replace function hwqueue.numbered_nodes(p_now timestamptz)
returns table (number int, node hwqueue.node, attested text[], is_live boolean)
language sql stable
as $$
  select k.number, n, case when n.attested = '{}' then n.attested else hwqueue.attested_at(n, p_now) end,
         hwqueue.is_live(n, s, p_now)
  from hwqueue.node_numbers() k
  join hwqueue.node n on n.node_id = k.node_id
  join hwqueue.node_state s on s.node_id = k.node_id
$$;

-- Returns the registered nodes as bit strings.
--   none: a zero for each; live: those that are live; open: those of them that are not cordoned.
--   digest: a hash of all that decides which nodes suit a class: what each registered as, its operator's
--     taints, what it serves, what it is attested for now. An answer holds wherever the digest is the same.
--     Which nodes are live or cordoned is not in it; each read counts that (count_fit).
--   seen_at: the last sign of life of any of them.
create or replace function hwqueue.scan_nodes(p_now timestamptz) returns hwqueue.fleet_snapshot
language plpgsql stable
  -- all nodes: by hash, whatever the statistics say
  set plan_cache_mode = force_custom_plan
  set enable_nestloop = off set enable_hashjoin = on set enable_seqscan = on set jit = off
as $$
declare
  v_snapshot hwqueue.fleet_snapshot;
begin
  with node as (
    select k.node_id, s.seen_at, l.is_live, l.is_live and n.cordoned_at is null as is_open,
           hash_record_extended(row(
             n.node_id, n.profile_id, n.labels, n.rack, n.taints, n.operator_taints, n.resources,
               n.cpu_milli, n.memory_mib, n.custom,
             n.slots, n.gpu_ids, n.gpu_parents, n.core_ids, n.core_numa, n.cpu_isolation, n.gpu_exclusivity,
               n.default_cpu_isolation,
             n.gpu_share_mode, n.queues, n.tasks,
             case when n.attested <> '{}' then hwqueue.still_attested(n.attested, n.attested_until, p_now)
               end), 0) as hash
    from hwqueue.node_numbers() k
    join hwqueue.node n on n.node_id = k.node_id
    join hwqueue.node_state s on s.node_id = k.node_id
    cross join lateral (select hwqueue.is_live(n, s, p_now) as is_live) l
    order by k.number
  )
  select count(*), coalesce(array_agg(k.node_id), '{}'), repeat('0', count(*)::int),
         coalesce(string_agg(case when k.is_live then '1' else '0' end, ''), ''),
         coalesce(string_agg(case when k.is_open then '1' else '0' end, ''), ''),
         coalesce(bit_xor(k.hash), 0), max(k.seen_at)
  into v_snapshot.registered, v_snapshot.node_ids, v_snapshot.none, v_snapshot.live, v_snapshot.open,
    v_snapshot.digest, v_snapshot.seen_at
  from node k;
  return v_snapshot;
end
$$;

-- Returns what is in use on each node now: the newest version of each load.
create or replace function hwqueue.newest_loads() returns setof hwqueue.node_load
language sql stable
as $$
  select distinct on (u.node_id) u.* from hwqueue.node_load u
  order by u.node_id, u.version desc
$$;
