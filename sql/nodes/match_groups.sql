-- What match_nodes says of all nodes without the words, for callers that count or colour them: a row for each
-- group of nodes of which the same codes are told, those that could run it first, then the largest. codes: of
-- the reasons, in their order; permanent: whether one of them holds until the node or the lease changes;
-- node_names: the best node first. In a fleet of thousands, nearly all that match_nodes sends is words.
-- Locks: none. Raises: as match_nodes. Idempotent: yes.
create or replace function hwqueue.match_groups(p_placement jsonb, p_options jsonb default '{}',
    p_shard int default 0)
returns table (eligible boolean, codes text[], permanent boolean, nodes bigint, node_names jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  return query
    select m.codes = '{}', m.codes, p.permanent, count(*), jsonb_agg(m.node_name order by m.place)
    from hwqueue.match_fleet(p_placement, p_options, 0, 0, p_shard) m
    cross join lateral (select true = any (m.permanents) as permanent) p
    group by m.codes, p.permanent
    order by m.codes = '{}' desc, count(*) desc, m.codes, p.permanent;
end
$$;
