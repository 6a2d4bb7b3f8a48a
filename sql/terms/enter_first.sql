-- Of locked entries that score alike: the first alone, if its class is to be checked, it may join what runs and waits for no better node;
-- else those before the next one that is to be checked. kept is empty when the first may not be claimed now; blocked: its class;
-- is_new: a term has to be published first; unlooked: a class for which the fleet should be looked at, since what is remembered of it does
-- not tell (look_around); is_open: so nothing is decided yet, unless p_exact. If the first waits for a better node, leases of its class behind
-- it may have waited long enough.
-- Locks: as enter_terms; an entry, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.enter_first(p_places tid[], p_checked bigint[], p_node uuid, p_exact boolean, p_now timestamptz, p_shard int)
returns hwqueue.first_entered
language plpgsql volatile
as $$
declare
  v_node hwqueue.node;
  v_class hwqueue.placement_class;
  v_entry hwqueue.ready;
  v_entered record;
  v_wait interval;
  v_place tid;
  v_first hwqueue.first_entered;
begin
  v_first.blocked := '{}';
  v_first.is_new := false;
  v_first.kept := '{}';
  for v_index in 1 .. cardinality(p_places) loop
    select r.* into v_entry from hwqueue.ready r where r.ctid = p_places[v_index];
    if cardinality(p_checked) > 200 or v_entry.class_id = any (p_checked) then
      exit when v_index > 1;
      v_node := hwqueue.read_node(p_node, p_shard);
      -- who asks is alive: where leases may spread to is a matter of live nodes
      update hwqueue.node_state s set seen_at = p_now, moved_xid = pg_current_xact_id()
      where s.shard_id = p_shard and s.node_id = p_node and s.seen_at + v_node.heartbeat_timeout <= p_now;
      select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_entry.class_id;
      v_place := p_places[1];
      select w.wait, case when not w.is_known then v_entry.class_id end into v_wait, v_first.unlooked
      from hwqueue.waits_for(v_class, v_node, v_entry.eligible_at, p_now, p_shard) w;
      if v_entry.eligible_at + v_wait > p_now then
        select w.place, w.lease_id into v_place, v_entry.lease_id
        from hwqueue.lock_patient(v_entry.class_id, v_entry.tier, v_entry.rank, p_now - v_wait, p_now, p_shard) w;
      end if;
      if v_place is not null then
        v_entered := hwqueue.enter_terms(v_class, v_entry.lease_id, v_node, p_exact, p_now, p_shard);
        v_first.counted := v_entered.counted;
        if v_entered.reason is null then
          v_first.kept := array[v_place];
          return v_first;
        end if;
        v_first.is_new := v_entered.reason = 'unpublished';
        v_first.is_open := v_entered.reason = 'unlooked';
        v_first.unlooked := case when v_first.is_open then v_entry.class_id else v_first.unlooked end;
      end if;
      v_first.blocked := array[v_entry.class_id];
      return v_first;
    end if;
    v_first.kept := v_first.kept || p_places[v_index];
  end loop;
  return v_first;
end
$$;

-- Locks the first entry of a class in the tiers and ranks behind a place that has been claimable since p_since; looks at the heads of 16
-- ranks: within one, the head is the oldest.
-- Locks: the entry, skip locked. Raises: nothing. Idempotent: no.
create or replace function hwqueue.lock_patient(p_class_id bigint, p_tier smallint, p_rank bigint, p_since timestamptz, p_now timestamptz, p_shard int,
                                                out place tid, out lease_id uuid)
language plpgsql volatile
as $$
declare
  v_head record;
  v_tier smallint := p_tier;
  v_rank bigint := p_rank;
begin
  for v_look in 1 .. 16 loop
    select r.tier, r.rank, r.eligible_at into v_head from hwqueue.ready r
    where r.shard_id = p_shard and r.class_id = p_class_id and (r.tier, r.rank) > (v_tier, v_rank)
      and (r.deadline is null or r.deadline > p_now)
    order by r.tier, r.rank, r.position limit 1;
    exit when not found;
    v_tier := v_head.tier;
    v_rank := v_head.rank;
    if v_head.eligible_at <= p_since then
      select r.ctid, r.lease_id into place, lease_id from hwqueue.ready r
      where r.shard_id = p_shard and r.class_id = p_class_id and r.tier = v_tier and r.rank = v_rank and r.eligible_at <= p_since
        and (r.deadline is null or r.deadline > p_now)
      order by r.position limit 1 for update skip locked;
      exit when place is not null;
    end if;
  end loop;
end
$$;

-- Undoes a try, and gives back the locks that it took; the caller catches it.
-- Locks: none. Raises: HWX01, never seen outside. Idempotent: yes.
create or replace function hwqueue.give_up() returns void
language plpgsql volatile
as $$
begin
  raise exception 'not this one' using errcode = 'HWX01', hint = 'caught by the caller';
end
$$;
