-- What monitoring wants to know, as Prometheus samples: name, labels, value. docs/reference/metrics.md says what each one means.
-- A histogram has a row for each bucket (label le) and one each for its sum and count. The number of rows grows with queues alone: nodes are
-- summed up, and of placement classes only the 50 with most leases waiting are named.
-- Plans are made for the call (class_fits has arrays of any length), on one processor: claims need the others.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.metrics(p_shard int default 0)
returns table (name text, labels jsonb, value double precision)
language sql volatile security definer set search_path = pg_catalog, pg_temp
  set max_parallel_workers_per_gather = 0 set work_mem = '64MB' set jit = off set plan_cache_mode = force_custom_plan
as $$
  select hwqueue.require_all_tenants();
  select m.name, m.labels, m.value
  from (select hwqueue.clock() as now) t
  cross join lateral (
    select * from hwqueue.queue_metrics(t.now, p_shard)
    union all select * from hwqueue.total_metrics(p_shard)
    union all select * from hwqueue.demand_metrics(t.now, p_shard)
    union all select * from hwqueue.node_metrics(t.now, p_shard)
    union all select * from hwqueue.upkeep_metrics(t.now, p_shard)
  ) m
$$;
