-- What must hold at every instant, counted anew from leases and claims: a row for each rule that is broken, none when all is well.
-- Rules: one_entry, node_load, capacity, term_count, away, max_per_domain, claim_login. detail names what is broken, what was found and expected.
-- It reads everything and is for operators and tests; it is one statement after another, so call it in a repeatable read transaction while
-- others work. Capacity may be exceeded by adopted leases and by nodes that were registered with less than is in use.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.verify_invariants(p_shard int default 0) returns table (rule text, subject text, detail jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  return query select 'one_entry', v.lease_id::text, v.detail from hwqueue.broken_entries(p_shard) v;
  return query select v.rule, v.node_id::text, v.detail from hwqueue.broken_loads(p_shard) v;
  return query select 'term_count', v.term_id::text, v.detail from hwqueue.broken_counts(p_shard) v;
  return query select v.rule, v.lease_id::text, v.detail from hwqueue.broken_terms(p_shard) v;
  return query
    select 'claim_login', c.lease_id::text, jsonb_build_object('node_id', c.node_id, 'found', c.login, 'expected', s.login)
    from hwqueue.claim c join hwqueue.node_state s on s.shard_id = c.shard_id and s.node_id = c.node_id
    where c.shard_id = p_shard and c.login is distinct from s.login;
end
$$;

-- Leases that are not in exactly one of ready, scheduled, claim and, once they have ended, outcome; and rows there without a lease, but for
-- outcomes of leases that went when they completed (eligible_at).
create or replace function hwqueue.broken_entries(p_shard int) returns table (lease_id uuid, detail jsonb)
language sql stable
as $$
  with entry as (
    select r.lease_id, 'ready' as place, false as is_alone from hwqueue.ready r where r.shard_id = p_shard
    union all
    select s.lease_id, 'scheduled', false from hwqueue.scheduled s where s.shard_id = p_shard
    union all
    select c.lease_id, 'claim', false from hwqueue.claim c where c.shard_id = p_shard
    union all
    select o.lease_id, 'outcome', o.eligible_at is not null from hwqueue.outcome o where o.shard_id = p_shard
  )
  select coalesce(l.lease_id, e.lease_id),
         jsonb_build_object('is_known', l.lease_id is not null, 'places', coalesce(jsonb_agg(e.place) filter (where e.place is not null), '[]'))
  from (select l.lease_id from hwqueue.lease l where l.shard_id = p_shard) l
  full join entry e on e.lease_id = l.lease_id
  group by l.lease_id, e.lease_id
  having count(e.place) <> 1 or (l.lease_id is null) <> coalesce(bool_or(e.is_alone), false)
$$;

-- Nodes whose usage is not what their claims set aside, or is more than they have.
create or replace function hwqueue.broken_loads(p_shard int) returns table (rule text, node_id uuid, detail jsonb)
language sql stable
as $$
  select b.rule, n.node_id, b.detail
  from hwqueue.node n
  cross join lateral (
    select hwqueue.read_load(n.node_id, p_shard) as load, to_jsonb(u) as counted from hwqueue.node_usage_of_claims(n) u offset 0) w
  cross join lateral (
    select 'node_load' as rule, jsonb_build_object('written', to_jsonb(w.load) - array['shard_id', 'node_id', 'version', 'updates'],
                                                   'counted', w.counted) as detail
    where not to_jsonb(w.load) @> w.counted and (w.load).version > 0
       or (w.load).version = 0 and (w.counted ->> 'claim_count')::int > 0
    union all
    select 'capacity', jsonb_build_object('cpu_milli', n.cpu_milli, 'memory_mib', n.memory_mib, 'slots', n.slots, 'custom', n.custom,
                                          'used', w.counted)
    where (w.counted ->> 'cpu_used')::bigint > n.cpu_milli or (w.counted ->> 'memory_used')::bigint > n.memory_mib
       or (w.counted ->> 'claim_count')::int > n.slots
       or exists (select 1 from jsonb_array_elements(w.counted -> 'gpu_used') g where g.value::int > 1000)
       or exists (select 1 from jsonb_each(w.counted -> 'custom_used') c where c.value::bigint > coalesce((n.custom ->> c.key)::bigint, 0))
  ) b
  where n.shard_id = p_shard and n.deregistered_at is null
$$;
