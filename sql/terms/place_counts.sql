-- spread_counts where a term's own places tell which nodes count: by a walk over all places. p_spec: of the term.
create or replace function hwqueue.place_counts(p_spread jsonb, p_spec jsonb, p_digest bigint, p_recount jsonb, p_now timestamptz, p_shard int)
returns jsonb
language plpgsql stable set enable_seqscan = on set enable_hashjoin = on set enable_sort = on
as $$
declare
  v_fleet hwqueue.spread_fleet := hwqueue.look_at_fleet(p_spec, p_spread ->> 'domain', p_now, p_shard);
  v_term_id bigint;
  v_gone jsonb;
  v_counts jsonb;
begin
  if p_recount is null then
    v_term_id := (select t.term_id from hwqueue.term t where t.shard_id = p_shard and t.digest = p_digest);
    v_gone := hwqueue.gone_leases(v_term_id, v_fleet.dead, p_now, p_shard);
  end if;
  select jsonb_build_object('places', count(*), 'least', coalesce(min(l.leases), 0),
                            'here', coalesce(jsonb_object_agg(l.place, l.leases) filter (where l.leases > 0), '{}'))
  into v_counts
  from (
    select p.place, coalesce(r.leases, 0) as leases
    from unnest(v_fleet.places) p(place)
    left join (
      select c.key as place, (c.value ->> 'here')::bigint as leases from jsonb_each(p_recount) c
      union all
      select k.domain, sum(k.leases) - coalesce((v_gone ->> k.domain)::bigint, 0)
      from hwqueue.term_count k where k.shard_id = p_shard and k.term_id = v_term_id group by k.domain
    ) r on r.place = p.place
  ) l;
  return v_counts;
end
$$;
