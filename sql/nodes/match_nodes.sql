-- For every registered node: could it run such a lease now, how well does it suit, and why not? A dry run of
-- the filter and score that claim_task uses. p_options: {"labels", "tenant", "service_id", "task", "queue",
-- "nodes"}; with the queue, its weights and pause; nodes: names, of which alone is told.
-- Locks: none. Raises: QHC03, QHC04, QHA01, QHA03, QHQ01. Idempotent: yes.
create or replace function hwqueue.match_nodes(p_placement jsonb, p_options jsonb default '{}', p_shard int default 0)
returns table (node_id uuid, node_name text, eligible boolean, score double precision, reasons jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  return query
    select m.node_id, m.node_name, m.codes = '{}', m.score, m.reasons
    from hwqueue.match_fleet(p_placement, p_options, null, 0, p_shard) m order by m.place;
end
$$;
