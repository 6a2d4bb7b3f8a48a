-- How many leases of a term run in a domain: the sum over all its rows in term_count, each written under its own lock. So nobody who
-- ends a claim waits for anybody: if the row is held, another one is added. counted, in a claim, says what it has added:
--   [{"t": term_id, "d": domain value, "n": 1 if the term selects it, "h": 1 if it keeps away from the term's leases}]

-- Adds a claim's counts (p_sign 1) or takes them away (-1). Gives what it was given. A row is updated in place 32 times, then written anew: under an old
-- snapshot every version must be passed. Counts of max_skew say when they were last lowered (spread_fleet).
-- Locks: one row of term_count for each count, skip locked. Idempotent: no.
create or replace function hwqueue.add_counts(p_counted jsonb, p_sign int, p_shard int) returns jsonb
language plpgsql volatile
as $$
declare
  v_term_id bigint;
  v_domain text;
  v_leases int;
  v_holders int;
begin
  for i in 0 .. coalesce(jsonb_array_length(p_counted), 0) - 1 loop
    v_term_id := (p_counted #> array[i::text, 't'])::bigint;
    v_domain := p_counted #>> array[i::text, 'd'];
    v_leases := p_sign * (p_counted #> array[i::text, 'n'])::int;
    v_holders := p_sign * (p_counted #> array[i::text, 'h'])::int;
    update hwqueue.term_count k
    set leases = k.leases + v_leases, holders = k.holders + v_holders, updates = k.updates + 1,
        dropped_xid = case when p_sign < 0 and k.dropped_xid is not null then pg_current_xact_id() else k.dropped_xid end
    where k.updates < 32 and k.ctid = (
      select x.ctid from hwqueue.term_count x
      where x.shard_id = p_shard and x.term_id = v_term_id and x.domain = v_domain limit 1 for no key update skip locked);
    if not found then
      perform hwqueue.write_count(v_term_id, v_domain, v_leases, v_holders, p_sign < 0, p_shard);
    end if;
  end loop;
  return p_counted;
end
$$;

-- Writes one of the rows of a count anew, with so much more; another one, if all of them are held or there are none.
-- Locks: one row of term_count, skip locked. Idempotent: no.
create or replace function hwqueue.write_count(p_term_id bigint, p_domain text, p_leases int, p_holders int, p_is_less boolean, p_shard int)
returns void
language plpgsql volatile
as $$
declare
  v_row record;
begin
  select k.ctid as place, k.leases, k.holders, k.dropped_xid into v_row
  from hwqueue.term_count k
  where k.shard_id = p_shard and k.term_id = p_term_id and k.domain = p_domain
  limit 1 for no key update skip locked;
  delete from hwqueue.term_count k where k.ctid = v_row.place;
  insert into hwqueue.term_count (shard_id, term_id, domain, leases, holders, updates, dropped_xid)
  select p_shard, p_term_id, p_domain, p_leases + coalesce(v_row.leases, 0), p_holders + coalesce(v_row.holders, 0), 0,
         case when t.use <> 'skew' then null when p_is_less then pg_current_xact_id() else coalesce(v_row.dropped_xid, '0') end
  from hwqueue.term t where t.shard_id = p_shard and t.term_id = p_term_id;  -- pruned meanwhile: nobody asks any more
end
$$;

-- What runs of a term in a domain: leases selected, and leases that keep away from those.
create or replace function hwqueue.read_count(p_term_id bigint, p_domain text, p_shard int, out leases bigint, out holders bigint)
language plpgsql stable
as $$
begin
  select coalesce(sum(k.leases), 0), coalesce(sum(k.holders), 0) into leases, holders
  from hwqueue.term_count k
  where k.shard_id = p_shard and k.term_id = p_term_id and k.domain = p_domain;
end
$$;

-- What runs of a term in all.
create or replace function hwqueue.read_total(p_term_id bigint, p_shard int) returns bigint
language plpgsql stable
as $$
begin
  return (select coalesce(sum(k.leases), 0) from hwqueue.term_count k where k.shard_id = p_shard and k.term_id = p_term_id);
end
$$;

-- How many of those are asked to stop, or, with p_expired, have expired and are not reaped: they count for away, capacity and exclusivity, no
-- longer for toward and spread. With a null domain those of all domains.
create or replace function hwqueue.leaving(p_term_id bigint, p_domain text, p_expired boolean, p_now timestamptz, p_shard int) returns bigint
language plpgsql stable
as $$
declare
  v_wanted jsonb := jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('t', p_term_id, 'd', p_domain, 'n', 1)));
begin
  return (
    select count(*) from (
      select c.lease_id from hwqueue.claim c
      where c.shard_id = p_shard and c.stop_requested_at <= p_now and c.counted @> v_wanted
      union
      select c.lease_id from hwqueue.claim c
      where p_expired and c.shard_id = p_shard and c.check_at between hwqueue.claims_from(p_shard) and p_now
        and c.expires_at <= p_now and c.counted @> v_wanted) l);
end
$$;

-- Where looks for expired claims start, by check_at: what has been reaped or settled below it may still be in the index (take_reap_turn).
create or replace function hwqueue.claims_from(p_shard int) returns timestamptz
language sql stable
as $$
  select coalesce((select m.claims_from from hwqueue.reap_mark m where m.shard_id = p_shard order by m.version desc limit 1), '-infinity')
$$;

-- How many stay, in a place or, with null, in all: without those asked to stop and, with p_expired, the expired. p_recount: by place, see
-- recount_term; null: by what claims have counted.
create or replace function hwqueue.staying(p_term_id bigint, p_recount jsonb, p_place text, p_expired boolean, p_now timestamptz, p_shard int)
returns bigint
language plpgsql stable
as $$
declare
  v_held bigint;
begin
  if p_recount is not null then
    return coalesce((select sum((r.value ->> case when p_expired then 'here' else 'bound' end)::bigint)
                     from jsonb_each(p_recount) r where r.key = coalesce(p_place, r.key)), 0);
  elsif p_place is null then
    v_held := hwqueue.read_total(p_term_id, p_shard);
  else
    v_held := (hwqueue.read_count(p_term_id, p_place, p_shard)).leases;
  end if;
  return case when v_held > 0 then v_held - hwqueue.leaving(p_term_id, p_place, p_expired, p_now, p_shard) else 0 end;
end
$$;
