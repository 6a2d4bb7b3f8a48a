-- Why a lease is where it is; of a pending one, why it is not running: by the rules that claims decide with. One row. headline: one sentence; code: a
-- reason code, ready when a node could take it now, or what the lease is; permanent: until nodes or the lease change; waits_until: when it becomes
-- claimable, stops waiting for a better node, or its claim ends; position: how many ready leases of its queue come before it, at most 10,001.
-- Of pending ones: funnel [{"stage", "nodes"}]: nodes left after each stage; sole_blockers [{"stage", "code", "permanent", "predicate", "words",
-- "nodes", "samples"}]: what alone keeps nodes from matching (of stages free, away and spread: from taking it now); nearest: the 20 nodes that fail
-- the least, [{"node_id", "node", "rack", "state", "seen_at", "reasons": [as in match_nodes, and "wanted", "has", "place", "holders"]}]; help:
-- what would let it run, [{"action", "words", "nodes", "leases", "predicate", "samples", "lease_id"}].
-- Locks: none. Raises: QHL04, QHA03. Idempotent: yes.
create or replace function hwqueue.explain_lease(p_lease uuid, p_shard int default 0)
returns table (lease_id uuid, shard_id int, state text, queue text, class_id bigint, headline text, code text, permanent boolean, waits_until timestamptz,
               "position" bigint, as_of timestamptz, funnel jsonb, sole_blockers jsonb, nearest jsonb, help jsonb, words text, pending bigint,
               nodes_registered bigint, nodes_live bigint, nodes_matching bigint, nodes_free bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
  v_lease hwqueue.lease := hwqueue.find_lease(p_lease, p_shard);
  v_class hwqueue.placement_class;
  v_claim hwqueue.claim;
  v_end hwqueue.outcome;
  v_entry hwqueue.ready;
  v_found record;
begin
  perform hwqueue.require_all_tenants();
  select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_lease.class_id;
  -- one statement, one snapshot
  select hwqueue.lease_state(p_lease, p_shard) as state, hwqueue.lease_end(p_lease, p_shard) as ended into v_found;
  state := v_found.state;
  v_end := v_found.ended;
  select c.* into v_claim from hwqueue.claim c where c.shard_id = p_shard and c.lease_id = p_lease;
  as_of := hwqueue.clock();
  lease_id := p_lease;
  shard_id := p_shard;
  queue := hwqueue.queue_name(v_lease.queue_id, p_shard);
  class_id := v_lease.class_id;
  words := hwqueue.class_words(v_class);
  permanent := v_end.state is not null;
  if state = 'claimed' and v_claim.lease_id is not null then
    select s.headline, s.code into headline, code from hwqueue.claimed_story(v_claim, v_lease, as_of, p_shard) s;
    waits_until := v_claim.expires_at;
  elsif state <> 'pending' then
    code := state;
    headline := hwqueue.resting_story(v_lease, v_end, state, as_of, p_shard);
    waits_until := case when state = 'scheduled' then v_lease.available_at end;
  else
    select r.* into v_entry from hwqueue.ready r
    where r.shard_id = p_shard and r.queue_id = v_lease.queue_id and r.tier = v_lease.tier and r.rank = v_lease.rank
      and r.position = v_lease.position and r.lease_id = p_lease;
    "position" := hwqueue.place_in_line(v_lease, p_shard);
    select f.headline, f.code, f.permanent, f.waits_until, f.funnel, f.sole_blockers, f.nearest, f.help, f.pending,
           f.nodes_registered, f.nodes_live, f.nodes_matching, f.nodes_free
    into headline, code, permanent, waits_until, funnel, sole_blockers, nearest, help, pending,
         nodes_registered, nodes_live, nodes_matching, nodes_free
    from hwqueue.explain_waiting(
      v_class, p_lease, coalesce(v_entry.eligible_at, v_lease.available_at), v_lease.deadline, as_of, p_shard) f;
    headline := headline || case when code is not null then ''
      when "position" = 0 then '; it is the first in line'
      when "position" > 10000 then '; more than 10000 leases of the queue come before it'
      else '; ' || hwqueue.count_words("position", 'lease of the queue comes', 'leases of the queue come') || ' before it' end
      || case when v_lease.deadline > as_of then format('; unless it is claimed in %s, it fails', hwqueue.span_words(v_lease.deadline - as_of)) else '' end;
    code := coalesce(code, 'ready');
  end if;
  return next;
end
$$;

-- How many ready leases of its queue come before one, by tier, rank and position, at most 10,001; between leases of one tier and rank a node's liking
-- decides first, so this is the place of a lease that all nodes like alike.
-- Column by column: before Postgres 18 a scan does not stop at the upper end of a row comparison. From the low-water mark of its tier and rank on: what
-- was claimed before it may still be in the index.
create or replace function hwqueue.place_in_line(p_lease hwqueue.lease, p_shard int) returns bigint
language plpgsql stable
as $$
declare
  v_mark bigint := coalesce((
    select m.position
    from (select w.* from hwqueue.low_water w
          where w.shard_id = p_shard and w.queue_id = p_lease.queue_id and w.class_id = 0 order by w.version desc limit 1) w
    cross join lateral unnest(w.tiers, w.ranks, w.positions) m(tier, rank, "position")
    where m.tier = p_lease.tier and m.rank = p_lease.rank), 0);
begin
  return (select count(*) from (
    (select 1 from hwqueue.ready r where r.shard_id = p_shard and r.queue_id = p_lease.queue_id and r.tier < p_lease.tier limit 10001)
    union all
    (select 1 from hwqueue.ready r
     where r.shard_id = p_shard and r.queue_id = p_lease.queue_id and r.tier = p_lease.tier and r.rank < p_lease.rank limit 10001)
    union all
    (select 1 from hwqueue.ready r
     where r.shard_id = p_shard and r.queue_id = p_lease.queue_id and r.tier = p_lease.tier and r.rank = p_lease.rank
       and r.position >= v_mark and r.position < p_lease.position limit 10001)
    limit 10001) b);
end
$$;
