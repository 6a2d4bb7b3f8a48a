-- What match_nodes says without the words, for callers that count, colour or sort all nodes: in a fleet of thousands, most of what match_nodes
-- sends is words. codes: those of its reasons, in their order; permanent: whether one of them holds until the node or the lease changes.
-- Locks: none. Raises: as match_nodes. Idempotent: yes.
create or replace function hwqueue.match_codes(p_placement jsonb, p_options jsonb default '{}', p_shard int default 0)
returns table (node_id uuid, node_name text, eligible boolean, score double precision, codes text[], permanent boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  return query
    select m.node_id, m.node_name, m.codes = '{}', m.score, m.codes, true = any (m.permanents)
    from hwqueue.match_fleet(p_placement, p_options, 0, 0, p_shard) m order by m.place;
end
$$;
