-- Reservations: claims that a node has not fetched yet.
--
-- reserve writes them. gangs/assemble books the room of all members of a gang in one transaction, on several
-- nodes, and the next claim of each node fetches its members; everywhere/nodes that of the lease that an
-- everywhere task has on a node, gangs/replace of leases that take the place of others, upkeep/planner of
-- leases that a planner assigns to a node. claim_general (claim/claim) calls claim_reserved before it looks
-- for other work. Example: member 3 of a gang is reserved on gpu-1 until 10:00:30. gpu-1 asks for work at
-- 10:00:01 and gets it, with its devices and the token that the reservation has. One that a crash may have
-- brought back gets another: a fetch that is lost may have told this one.
--
-- An earmark is a reservation whose room is still in use by others (capacity/overbook). It is not fetched and
-- does not expire. Once its node has room for it, upkeep backs it (back_earmarks), and its time begins. A
-- lease of the same rank that needs none of that room runs beside it; one that does waits, unless its tier or
-- rank is earlier (claim_reserved).
--
-- Invariant: a reservation is a claim in all other respects. It counts for capacity and affinity terms, it
-- expires, and its end puts the lease back (end_claim), but uses up no attempt. One of a single lease may be
-- fetched as long as nobody has ended it.

-- Books room for a lease on a node, as only this does: writes the claim of its entry, reserved, with what it
-- allocates and counts there, and deletes the entry. Returns null, or why the node cannot have it: then
-- nothing is written. The checks are those of a claim, read after the node was locked.
-- p_hold: how long the node has for fetching it; null: it is an earmark, fetched only when it is backed.
-- p_waits: the room may be in use until then by what does not stay: others than its gang, on a node of an
-- everywhere task others than these.
-- p_without: claims that are asked to stop for it; then these alone do not stay, and terms do not count them.
-- A member of a gang gets no room where others have earmarks.
-- Locks: the caller holds node_state and the entry; as decide_class. Not idempotent.
create or replace function hwqueue.reserve(p_entry hwqueue.scheduled, p_node uuid, p_hold interval,
  p_waits boolean, p_without uuid[], p_now timestamptz) returns text
language plpgsql volatile
as $$
declare
  v_lease hwqueue.lease;
  v_node hwqueue.node;
  v_class hwqueue.placement_class;
  v_load hwqueue.node_load;
  v_is_met boolean;  -- by the earmark of another gang
  v_staying uuid[];
  v_claims bigint;
  v_entered record;
  v_deltas jsonb;
  v_taken record;
  v_until timestamptz := coalesce(p_now + p_hold, 'infinity');
begin
  select n.* into v_node from hwqueue.node n
  join hwqueue.node_state s on s.node_id = n.node_id
  where n.node_id = p_node and n.deregistered_at is null
    and (n.cordoned_at is null or hwqueue.runs_on_cordoned(p_entry.lease_id))
    and hwqueue.is_live(n, s, p_now);
  if not found or not hwqueue.node_suits(p_entry.class_id, v_node, p_now) then
    return 'does_not_suit';
  end if;
  select l.* into v_lease from hwqueue.lease l where l.lease_id = p_entry.lease_id;
  select c.* into v_class from hwqueue.placement_class c where c.class_id = p_entry.class_id;
  v_load := hwqueue.read_load(p_node);
  select coalesce(bool_or(c.is_earmark and c.team_id is distinct from v_lease.team_id), false),
         coalesce(array_agg(c.lease_id) filter (where case when p_without is not null
           then c.lease_id <> all (p_without) when hwqueue.is_everywhere(v_lease.lease_id, v_lease.team_id)
           then hwqueue.is_everywhere(c.lease_id, c.team_id) else c.team_id = v_lease.team_id end), '{}'),
         count(*)
  into v_is_met, v_staying, v_claims
  from hwqueue.claim c where c.node_id = p_node;
  if p_waits then
    v_claims := cardinality(v_staying);
  end if;
  if p_hold is null and v_is_met and (p_without is null or v_lease.team_id is not null)
    or v_claims >= v_node.concurrency
    or not p_waits and hwqueue.class_shortage(v_class, v_node, v_load) > 0 then
    return 'insufficient_capacity';
  elsif not p_waits then
    v_taken := hwqueue.allocate_for_class(v_class, v_node,
      hwqueue.node_headroom(v_node, v_load), v_load);
  else
    v_taken := hwqueue.earmark_room(v_class, v_node, hwqueue.add_uses(hwqueue.idle_load(v_node), v_node,
      hwqueue.booked_on(p_node, v_staying), 1), v_load);
    if not v_taken.fits then
      return 'insufficient_capacity';
    end if;
  end if;
  if hwqueue.reservation_must_be_checked(v_class) then
    if p_without is null then
      v_entered := hwqueue.admit_class(v_class, p_entry.lease_id, v_node, true, p_now);
    else
      begin
        perform hwqueue.remove_claim(w) from unnest(p_without) w;
        v_entered := hwqueue.admit_class(v_class, p_entry.lease_id, v_node, true, p_now);
        perform hwqueue.abort_subtransaction();
      exception when sqlstate 'HWX01' then  -- the claims are there again
      end;
    end if;
    if v_entered.reason is not null then
      return v_entered.reason;
    end if;
    v_deltas := hwqueue.add_counts(v_entered.term_deltas, 1);
    if v_entered.is_named then
      perform hwqueue.wake_classes_of_lease(p_entry.lease_id);
    end if;
  end if;
  if hwqueue.binds_during_execution(v_class) then
    perform hwqueue.note_placement_check(p_entry.lease_id, p_entry.claim_count);
  end if;
  if v_taken.assignment is not null then
    perform hwqueue.write_load(v_taken.p_load);
  end if;
  delete from hwqueue.scheduled s
  where (s.queue_id, s.available_at, s.lease_id) = (p_entry.queue_id, p_entry.available_at, p_entry.lease_id);
  insert into hwqueue.claim (lease_id, queue_id, class_id, node_id, node_epoch, claim_token,
    attempt, claim_timeout, claimed_at, expires_at, check_at, assignment, term_deltas, login, team_id,
    eligible_at, is_reserved, is_earmark, is_step)
  select p_entry.lease_id, p_entry.queue_id, p_entry.class_id, p_node, s.node_epoch,
         hwqueue.next_token(hwqueue.current_generation(), p_entry.claim_count),
         p_entry.attempt_count + 1, q.claim_timeout, p_now, v_until, v_until, v_taken.assignment, v_deltas,
         s.login, v_lease.team_id, case when p_entry.held_by = 'time' and q.retain_completed = '0'
           and v_lease.idempotency_key is null and v_lease.run_id is null  -- as grant_entries
           then greatest(v_lease.available_at, v_lease.created_at) end,
         true, case when p_hold is null then true end,
         case when v_lease.run_id is not null then v_lease.item_no is null end
  from hwqueue.queue q
  join hwqueue.node_state s on s.node_id = p_node
  where q.queue_id = p_entry.queue_id;
  update hwqueue.node_state s set has_reserved = true where s.node_id = p_node and not s.has_reserved;
  return null;
end
$$;

-- Returns reservations of a node as claims that begin now, up to the number that is asked for, of the queues
-- and tasks that are asked for. One that the node may not run any more is released: its gang is placed again.
-- Locks: the caller holds node_state; as current_generation, end_claim; claims, skip locked. Not idempotent.
create or replace function hwqueue.fetch_reserved(p_request hwqueue.claim_request)
returns table (lease_id uuid, claim_token bigint, attempt smallint, queue text, task_name text, params jsonb,
  headers jsonb, score double precision, expires_at timestamptz, assignment jsonb)
language plpgsql volatile
as $$
declare
  v_now timestamptz;
  v_node hwqueue.node := hwqueue.read_node(p_request.node_id);
  v_claims hwqueue.claim[];
  v_claim hwqueue.claim;
  v_lease hwqueue.lease;
  v_generation bigint := hwqueue.current_generation();
begin
  lock table hwqueue.claim in row share mode;  -- before the clock (oldest_open_settlement)
  v_now := hwqueue.clock();
  score := 0;
  v_claims := array(
    select c from hwqueue.claim c
    join hwqueue.queue q on q.queue_id = c.queue_id
    join hwqueue.lease l on l.lease_id = c.lease_id
    where c.node_id = p_request.node_id and c.is_reserved
      and c.is_earmark is null and (c.expires_at > v_now or c.team_id is null)
      and q.name = any (p_request.queues) and q.dropped_at is null and q.paused_at is null
      and (p_request.tasks is null or l.task_name = any (p_request.tasks))
    order by c.lease_id limit p_request.qty for update of c skip locked);
  foreach v_claim in array v_claims loop
    select l.* into v_lease from hwqueue.lease l where l.lease_id = v_claim.lease_id;
    select q.name into queue from hwqueue.queue q where q.queue_id = v_claim.queue_id;
    if v_claim.stop_requested_at <= v_now or v_lease.deadline <= v_now
      or v_node.cordoned_at is not null and not hwqueue.runs_on_cordoned(v_claim.lease_id)
      or not hwqueue.node_suits(v_claim.class_id, v_node, v_now) then
      perform hwqueue.end_claim(v_claim, 'released', null, v_now, v_now);
      continue;
    end if;
    claim_token := v_claim.claim_token;
    if claim_token < v_generation then
      claim_token := hwqueue.next_token(v_generation, 1);
      perform hwqueue.note_placement_check(v_claim.lease_id, 1) from hwqueue.placement_class k
      where k.class_id = v_claim.class_id and hwqueue.binds_during_execution(k);
    end if;
    update hwqueue.claim c
    set is_reserved = null, claim_token = fetch_reserved.claim_token, claimed_at = v_now,
        claim_timeout = t.span, expires_at = v_now + t.span, check_at = v_now + t.span,
        lanes = hwqueue.slot_lanes(v_lease.lanes)
    from (select coalesce(v_lease.claim_timeout, p_request.claim_timeout, v_claim.claim_timeout) as span) t
    where c.lease_id = v_claim.lease_id returning c.lease_id, c.attempt, c.expires_at, c.assignment
    into lease_id, attempt, expires_at, assignment;
    task_name := v_lease.task_name;
    params := v_lease.params;
    headers := v_lease.headers;
    if (v_lease.lanes[cardinality(v_lease.lanes)]).lane_id & 3 > 0 then
      perform hwqueue.hand_over(array[(v_lease.lanes[cardinality(v_lease.lanes)]).lane_id], v_now, true);
    end if;
    return next;
  end loop;
  insert into hwqueue.team_change (team_id, kind)
  select distinct c.team_id, case when c.team_id = c.lease_id then 'everywhere' else 'gang' end
  from unnest(v_claims) c where c.team_id is not null;
  update hwqueue.node_state s set has_reserved = false
  where s.node_id = p_request.node_id and s.expands_until is null
    and not exists (
      select from hwqueue.claim c where c.node_id = p_request.node_id and c.is_reserved);
end
$$;

-- The leases that are earmarked on a node and are of this tier and rank, or come later.
create or replace function hwqueue.later_earmarks(p_node uuid, p_tier smallint, p_rank bigint) returns uuid[]
language plpgsql stable
as $$ begin return
  array(
    select c.lease_id from hwqueue.claim c
    cross join lateral hwqueue.earmark_order(c.lease_id) o
  where c.node_id = p_node and c.is_earmark and (o.tier, o.rank) >= (p_tier, p_rank));
end $$;

-- The tier and rank that an earmark of a lease has: its own, or those of the lease whose place it takes, if
-- these come before. One that others were stopped for comes before all of its tier: who was stopped for less
-- could be stopped again.
create or replace function hwqueue.earmark_order(p_lease uuid, out tier smallint, out rank bigint)
language plpgsql stable
as $$ begin
  select l.tier, case when exists (
      select from hwqueue.replacement r where r.lease_id = p_lease and r.old_lease is null)
    or exists (
      select from hwqueue.gang g where g.gang_id = l.team_id and g.reason = 'waits_for_preemption')
    then -9223372036854775808 else l.rank end into tier, rank
  from hwqueue.lease l
  where l.lease_id = any (array(
    select p_lease
    union all
    select r.old_lease from hwqueue.replacement r where r.lease_id = p_lease))
  order by 1, 2 limit 1;
end $$;

-- Whether a node could run a ready lease that comes before this one by tier and rank, if neither this one nor
-- earmarks that come later were there. It looks at the first hundred of each queue that the node says it
-- serves (of its own, if the node says nothing), and at rules about single nodes: what other leases forbid it
-- does not see.
create or replace function hwqueue.earlier_waits(p_lease uuid, p_node uuid, p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_queue_id int := (select l.queue_id from hwqueue.lease l where l.lease_id = p_lease);
  v_own record := hwqueue.earmark_order(p_lease);
  v_node hwqueue.node := hwqueue.read_node(p_node);
  v_from hwqueue.scan_starts;
  v_load hwqueue.node_load;
begin
  v_from := hwqueue.queue_scan_starts(array(
    select q.queue_id from hwqueue.queue q
    where q.dropped_at is null and q.paused_at is null
      and coalesce(q.name = any (v_node.queues), q.queue_id = v_queue_id)), 100);
  v_load := hwqueue.add_uses(hwqueue.read_load(p_node), v_node, hwqueue.booked_on(p_node,
    hwqueue.later_earmarks(p_node, v_own.tier, v_own.rank)), -1);
  return exists (
    select from (
      select distinct r.class_id
      from unnest(v_from.queue_ids, v_from.tiers, v_from.ranks, v_from.positions)
           q(queue_id, tier, rank, position)
      cross join lateral (
        select e.class_id, e.deadline from hwqueue.ready e
        where e.queue_id = q.queue_id and (e.tier, e.rank, e.position) >= (q.tier, q.rank, q.position)
          and (e.tier, e.rank) < (v_own.tier, v_own.rank)
        order by e.tier, e.rank, e.position limit 100) r
      where r.deadline is null or r.deadline > p_now) f
    join hwqueue.placement_class c on c.class_id = f.class_id
    where (c.task_name = any (v_node.tasks)) is not false and hwqueue.node_suits(c.class_id, v_node, p_now)
      and hwqueue.class_shortage(c, v_node, v_load) = 0);
end
$$;

-- Returns which of these nodes have no room yet for all that is booked there: what runs, what is reserved and
-- what is earmarked.
create or replace function hwqueue.overbooked_nodes(p_node_ids uuid[]) returns setof uuid
language sql stable
as $$
  select n.node_id
  from hwqueue.node n
  cross join lateral hwqueue.read_load(n.node_id) u
  where n.node_id = any (p_node_ids)
    and (not hwqueue.load_fits(n, u) or n.concurrency < (
      select count(*) from hwqueue.claim c where c.node_id = n.node_id))
$$;

-- Backs the earmarks of these leases, all or none, for p_hold from now on: their nodes may fetch them.
-- Returns null when it has, else why not:
-- insufficient_capacity: a node has no room for them yet.
-- earlier_waits: a lease that comes before them waits for the room of one. Ten seconds are enough for its
-- node to claim that; then they are backed all the same, for a minute.
-- busy: another session holds one of them; also cache_miss and unpublished, of admit_class.
-- Any other reason is of a term: it may not run beside what runs now, which is decided again, without its own
-- counts.
-- No node is locked, but for terms: room that is free for an earmark stays free for it, unless a claim passes
-- it (claim_reserved). That claim holds it, so room is looked for once more when all are locked.
-- Locks: claims by lease_id; for those with terms, then node_state; all skip locked; those of admit_class.
-- Wakes: waiting workers.
create or replace function hwqueue.back_earmarks(p_leases uuid[], p_hold interval, p_now timestamptz)
returns text
language plpgsql volatile
as $$
declare
  v_nodes uuid[] := array(select c.node_id from hwqueue.claim c where c.lease_id = any (p_leases));
  v_claims hwqueue.claim[];
  v_claim hwqueue.claim;
  v_class hwqueue.placement_class;
  v_node hwqueue.node;
  v_entered record;
  v_deltas jsonb;
  v_reason text;
  v_since timestamptz := (select max(c.yields_at) from hwqueue.claim c where c.lease_id = any (p_leases));
begin
  if exists (select from hwqueue.overbooked_nodes(v_nodes)) then
    return 'insufficient_capacity';
  elsif (p_now between v_since + interval '10 seconds' and v_since + interval '70 seconds') is not true
    and exists (
      select from (
        select distinct on (c.node_id) c.lease_id, c.node_id from hwqueue.claim c
        where c.lease_id = any (p_leases)) e
      where hwqueue.earlier_waits(e.lease_id, e.node_id, p_now)) then
    update hwqueue.claim c set yields_at = p_now
    where p_now between v_since and v_since + interval '70 seconds' is not true
      and c.lease_id = any (array(
        select x.lease_id from hwqueue.claim x
        where x.lease_id = any (p_leases) and x.is_earmark order by x.lease_id for update skip locked));
    return 'earlier_waits';
  end if;
  begin
    v_claims := array(
      select c from hwqueue.claim c where c.lease_id = any (p_leases) and c.is_earmark
      order by c.lease_id for update skip locked);
    v_reason := case when cardinality(v_claims) < cardinality(p_leases) then 'busy'
      when exists (select from hwqueue.overbooked_nodes(v_nodes)) then 'insufficient_capacity' end;
    if v_reason is not null then
      perform hwqueue.abort_subtransaction();
    end if;
    foreach v_claim in array v_claims loop
      v_deltas := null;
      select c.* into v_class from hwqueue.placement_class c where c.class_id = v_claim.class_id;
      if v_claim.term_deltas is not null or hwqueue.reservation_must_be_checked(v_class) then
        v_reason := 'busy';
        if not hwqueue.lock_free_node(v_claim.node_id) then
          perform hwqueue.abort_subtransaction();
        end if;
        select n.* into v_node from hwqueue.node n where n.node_id = v_claim.node_id;
        perform hwqueue.add_counts(v_claim.term_deltas, -1);
        v_entered := hwqueue.admit_class(v_class, v_claim.lease_id, v_node, true, p_now);
        v_reason := v_entered.reason;
        if v_reason is not null then
          perform hwqueue.abort_subtransaction();
        end if;
        v_deltas := hwqueue.add_counts(v_entered.term_deltas, 1);
      end if;
      update hwqueue.claim c
      set is_earmark = null, claimed_at = p_now, expires_at = p_now + p_hold, check_at = p_now + p_hold,
          term_deltas = v_deltas
      where c.lease_id = v_claim.lease_id;
    end loop;
    perform hwqueue.wake_workers(q) from hwqueue.queue q where q.queue_id = v_claim.queue_id;
    return null;
  exception when sqlstate 'HWX01' then  -- what it has written is undone, and its locks are released
    return v_reason;
  end;
end
$$;

-- Whether a lease runs on its node although that is cordoned: an everywhere task asks for it, and the node is
-- not drained.
create or replace function hwqueue.runs_on_cordoned(p_lease uuid) returns boolean
language plpgsql stable
as $$ begin return
  exists (
    select from hwqueue.everywhere_node r
    join hwqueue.everywhere e on e.everywhere_id = r.everywhere_id
    join hwqueue.node n on n.node_id = r.node_id
    where r.lease_id = p_lease and e.on_cordoned and n.drain_by is null);
end $$;

-- Whether a node may run leases of a class, by the static rules as they are now.
create or replace function hwqueue.node_suits(p_class_id bigint, p_node hwqueue.node, p_now timestamptz)
returns boolean
language plpgsql stable
as $$ begin return (
  select hwqueue.suits(c, p, p_node.node_id, p_node.resources || p_node.gpu_ids,
    hwqueue.attested_at(p_node, p_now), p_node.gpu_ids, p_node.gpu_parents)
  from hwqueue.placement_class c
  join hwqueue.profile p on p.profile_id = p_node.profile_id
  where c.class_id = p_class_id
); end $$;
