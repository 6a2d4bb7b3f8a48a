-- What match_nodes says of all nodes, counted, and p_limit of its rows after the first p_skip: callers that show a page need not be sent all.
-- One row. nodes: registered; eligible: that could run it now; reasons: by code, how many nodes it keeps out (one with two codes counts for
-- both); items: [{"node_id", "node_name", "eligible", "score", "reasons"}], the best first. Every page judges all nodes anew.
-- Locks: none. Raises: as match_nodes. Idempotent: yes.
create or replace function hwqueue.match_page(p_placement jsonb, p_options jsonb default '{}', p_limit int default 100, p_skip int default 0,
                                              p_shard int default 0)
returns table (nodes int, eligible int, reasons jsonb, items jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if (p_limit between 1 and 10000 and p_skip between 0 and 1000000) is not true then
    perform hwqueue.refuse('QHA01', 'p_limit must be from 1 to 10000 and p_skip from 0 to 1000000',
      jsonb_build_object('field', case when (p_limit between 1 and 10000) is true then 'p_skip' else 'p_limit' end),
      'page with p_skip');
  end if;
  return query
    with judged as materialized (
      select m.*, m.codes = '{}' as is_eligible
      from hwqueue.match_fleet(p_placement, p_options, p_limit, p_skip, p_shard) m
    )
    select count(*)::int, (count(*) filter (where j.is_eligible))::int,
           (select coalesce(jsonb_object_agg(c.code, c.kept_out), '{}')
            from (select e.code, sum(i.nodes) as kept_out
                  from (select d.codes, count(*) as nodes from judged d group by d.codes) i
                  cross join lateral (select distinct x as code from unnest(i.codes) x) e
                  group by e.code) c),
           coalesce(jsonb_agg(jsonb_build_object('node_id', j.node_id, 'node_name', j.node_name,
                                                 'eligible', j.is_eligible, 'score', j.score,
                                                 'reasons', j.reasons) order by j.place)
                      filter (where j.reasons is not null), '[]')
    from judged j;
end
$$;
