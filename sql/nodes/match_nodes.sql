-- For every registered node: could it run such a lease now, how well does it suit, and why not? A dry run of the filter and
-- score that claim_task uses. p_options: {"labels", "tenant", "service_id", "task", "queue"}; with the queue, its weights and pause.
-- Locks: none. Raises: QHC03, QHC04, QHA01, QHA03, QHQ01. Idempotent: yes.
create or replace function hwqueue.match_nodes(p_placement jsonb, p_options jsonb default '{}', p_shard int default 0)
returns table (node_id uuid, node_name text, eligible boolean, score double precision, reasons jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue hwqueue.queue := hwqueue.default_policy();
  v_placement jsonb;
  v_class hwqueue.placement_class;
  v_reach double precision;
  v_recount jsonb;
  v_now timestamptz;
begin
  perform hwqueue.check_object(p_options, array['labels', 'tenant', 'service_id', 'task', 'queue'], 'options');
  if hwqueue.json_text(p_options -> 'queue', 'options.queue', 100) is not null then
    v_queue := hwqueue.find_queue(p_options ->> 'queue', p_shard);
  end if;
  v_placement := hwqueue.normalise_placement(p_placement, 'placement');
  v_class := hwqueue.draft_class(v_queue.queue_id, hwqueue.json_text(p_options -> 'task', 'options.task', 200),
    coalesce(hwqueue.json_text(p_options -> 'tenant', 'options.tenant', 100), ''),
    hwqueue.json_uuid(p_options -> 'service_id', 'options.service_id'), hwqueue.check_labels(p_options -> 'labels', 'options.labels'),
    v_placement, null, null,
    hwqueue.service_away_from(hwqueue.json_uuid(p_options -> 'service_id', 'options.service_id'), p_shard), p_shard);
  perform hwqueue.check_own_class(v_class, 'options', null, p_shard);
  select r.share into v_reach
  from hwqueue.placement_class c join hwqueue.class_fleet r on r.shard_id = c.shard_id and r.class_id = c.class_id
  where c.shard_id = p_shard and c.digest = v_class.digest order by c.class_id limit 1;
  v_now := hwqueue.clock();
  v_recount := hwqueue.recount_terms(v_class, null, v_now, p_shard);
  return query
    select n.node_id, n.name, w.reasons = '[]',
           hwqueue.lease_score(v_queue.weight_affinity, v_queue.weight_fit, v_queue.weight_spread,
             hwqueue.class_affinity(v_class, n.labels, n.rack, n.node_id, n.resources || n.gpu_ids, f.facts, hwqueue.node_taints(n)),
             hwqueue.fit_score(hwqueue.cpu_needed(v_class.cpu_milli,
               hwqueue.cpu_isolation_on(v_class.cpu_isolation, n.default_cpu_isolation)), v_class.memory_mib, v_class.gpu_count, v_class.gpu_milli, v_reach,
                               hwqueue.node_headroom(n, u.load)),
             hwqueue.spread_score(v_class, f.facts, v_recount -> 'terms', v_recount -> 'spread', v_now, p_shard)),
           w.reasons
    from hwqueue.node n
    join hwqueue.node_state s on s.shard_id = n.shard_id and s.node_id = n.node_id
    cross join lateral (select hwqueue.read_load(n.node_id, p_shard) as load offset 0) u
    -- most classes ask nothing about other leases, and nothing keeps them out
    cross join lateral (select case when v_class.terms = '[]' then '[]' else hwqueue.term_facts(v_class, n, v_recount, v_now, p_shard) end as facts offset 0) f
    cross join lateral (
      select coalesce(jsonb_agg(hwqueue.failure_reason(x.stage, x.code, x.permanent, x.message, x.predicate, x.lacks, v_class, n, u.load)), '[]')
        || case when hwqueue.is_live(n, s, v_now) then '[]' else jsonb_build_array(jsonb_build_object('code', 'node_not_live',
             'permanent', false, 'message', format('no sign of life since %s', s.seen_at))) end
        || case when v_queue.paused_at is null then '[]' else jsonb_build_array(jsonb_build_object('code', 'queue_paused',
             'permanent', false, 'message', format('queue %s is paused', v_queue.name))) end as reasons
      from (select case when v_recount -> 'kept_out' <> '[]' then hwqueue.kept_out_of(v_class, null, n, v_recount, p_shard) end as kept_out offset 0) k
      cross join lateral hwqueue.all_failures(v_class, n, u.load, f.facts, v_recount -> 'spread', k.kept_out, v_now, p_shard) x
      offset 0
    ) w
    where n.shard_id = p_shard and n.deregistered_at is null
    order by w.reasons = '[]' desc, 4 desc, n.name;
end
$$;
