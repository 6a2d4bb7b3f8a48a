-- What a lease of a team waits for, in words: in a gang, in an everywhere task, or for another's place.
--
-- explain/explain calls team_words for a lease, explain/gangs gang_wait_words for a gang. Example: "waits for
-- gang ... of 4: no rack has room for all of them", "waits for node gpu-1, for everywhere task ...: leases
-- that come before it go first". What the last try of upkeep met is said in the same words for all of them
-- (try_words).

-- Says what a lease waits for that its gang, its everywhere task or its place holds; or, of one that is held
-- back, the lease that is to take its place. Null: none does.
create or replace function hwqueue.team_words(p_lease uuid, p_team uuid, p_now timestamptz) returns text
language plpgsql stable
as $$ begin return
  coalesce((
    select format(case when g.state = 'running' and g.missing > 0 then 'waits to join gang %s of %s: '
      else 'waits for gang %s of %s: ' end, g.gang_id, g.size) || hwqueue.gang_wait_words(g)
    from hwqueue.gang g where g.gang_id = p_team), (
    select format('waits for node %s, for everywhere task %s: ', coalesce(n.name, r.node_id::text),
        r.everywhere_id) || case
      when r.due_at > p_now and r.reason is null then
        format('it starts again in %s', hwqueue.span_words(r.due_at - p_now))
      when r.reason is null then coalesce(hwqueue.postponed_words(r.lease_id),
        'upkeep books its room about once a second')
      when r.reason = 'insufficient_capacity' then 'the node has no room for it yet' || case when exists (
          select from hwqueue.claim c where c.lease_id = r.lease_id and c.is_earmark)
        then '; what becomes free there goes to it' else '' end
      when r.reason = 'node_unavailable' then 'the node is silent or cordoned, or the queue is paused'
      else hwqueue.try_words(r.reason) end
    from hwqueue.everywhere_node r
    left join hwqueue.node n on n.node_id = r.node_id
    where r.lease_id = p_lease), (
    select case when r.old_lease = p_lease
        then format('held back: lease %s takes its place once it is claimed', r.lease_id)
      when r.old_lease is null and r.state = 'stopping' then coalesce(hwqueue.leaving_words(array(
          select c.node_id from hwqueue.claim c where c.lease_id = r.lease_id), p_now),
        'leases of later tiers were asked to stop for it')
      else format('waits for the place of %s: ', coalesce('lease ' || r.old_lease,
          'a lease of service ' || r.service_id)) || coalesce(hwqueue.postponed_words(r.lease_id), case
        when r.state = 'stopping' then 'that one is asked to stop'
        when r.reason is null then 'upkeep looks about once a second'
        when r.reason = 'old_waits' then 'that one waits for a place itself, or is being replaced'
        when r.reason = 'insufficient_capacity' then 'its node has no room for this one, even without it'
        when r.reason = 'does_not_suit' then 'its node is not live, is cordoned, or may not run this one'
        else hwqueue.try_words(r.reason) end) end
    from hwqueue.replacement r
    where (r.lease_id = p_lease or r.old_lease = p_lease and r.state = 'held')
    order by (r.lease_id = p_lease)::int limit 1));
end $$;

-- Says which claims of nodes a preemption has asked to stop. Null: none, or the caller is of one tenant.
create or replace function hwqueue.leaving_words(p_nodes uuid[], p_now timestamptz) returns text
language plpgsql stable
as $$ begin return (
  select format('%s in %s at the latest', hwqueue.count_words(count(*)::int,
      'lease of a later tier is asked to stop, and goes', 'leases of later tiers are asked to stop, and go'),
    hwqueue.span_words(max(c.stop_by + least(c.claim_timeout, q.claim_timeout)) - p_now))
  from hwqueue.claim c join hwqueue.queue q on q.queue_id = c.queue_id
  where c.lease_id = any (hwqueue.leaving_claims(p_nodes)) and hwqueue.my_tenants() is null
  having count(*) > 0
); end $$;

-- Says why upkeep could not book room at its last try, but for what is said of the room itself.
create or replace function hwqueue.try_words(p_reason text) returns text
language sql stable parallel safe
as $$
  select case when p_reason in ('busy', 'cache_miss') then 'other calls held what it needs'
    when p_reason = 'earlier_waits' then 'leases that come before it go first'
    when p_reason = 'unpublished' then 'an affinity term is not published yet'
    else format('it may not run there beside what runs now (%s)', p_reason) end
$$;

-- Says what a gang waits for, by its last try: "no rack has room for all of them".
create or replace function hwqueue.gang_wait_words(p_gang hwqueue.gang) returns text
language plpgsql stable
as $$ begin return
  case
    when p_gang.state = 'cancelling' then 'it is being cancelled'
    when p_gang.state = 'stopping' then 'the others are asked to stop, then all start together'
    when p_gang.state = 'earmarked' then (
      select format('room is kept for %s of them; of %s nodes %s have it free by now',
        coalesce(p_gang.min_size::text, 'all'), cardinality(e.node_ids), cardinality(e.node_ids) - (
          select count(*) from hwqueue.overbooked_nodes(e.node_ids)))
        || coalesce(to_char(hwqueue.earmark_start(p_gang, hwqueue.clock()) at time zone 'UTC',
          '", all at" YYYY-MM-DD HH24:MI:SS "UTC at the latest"'), '')
        || coalesce('; ' || hwqueue.leaving_words(e.node_ids, hwqueue.clock()), '')
      from (
        select array(
          select distinct c.node_id from hwqueue.claim c
          where c.lease_id = any (p_gang.members)) as node_ids) e)
    when p_gang.state = 'running' and p_gang.next_try_at = 'infinity' then
      'others have completed, so it joins no more'
    when p_gang.state = 'waiting' and not hwqueue.may_be_tried(p_gang, hwqueue.clock()) then
      'it may start at ' || to_char(p_gang.next_try_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
    when p_gang.reason = 'upkeep_postponed' then
      coalesce(hwqueue.postponed_words(p_gang.gang_id), 'upkeep had to leave it')
    when p_gang.state not in ('waiting', 'running') or p_gang.reason is null then
      'upkeep looks for room about once a second'
    when p_gang.reason = 'behind_earmark' then 'nodes that it could use are kept for another gang first'
    when p_gang.reason = 'kept_too_long' then format('room was kept for it, but too little of it became free;'
      ' none is kept until %s', to_char(p_gang.earmark_after at time zone 'UTC', 'HH24:MI:SS "UTC"'))
    when p_gang.reason = 'node_changed' then 'room was kept for it, until one of the nodes changed'
    when p_gang.reason = 'not_kept' then
      'room was kept for it, until its queue was paused or its policy changed'
    when p_gang.reason = 'insufficient_capacity' and p_gang.state = 'running' then
      coalesce(hwqueue.gang_place_words(nullif(p_gang.place, 'fleet')) || ', where the others run, has no',
        'no node has') || ' room for one more'
    when p_gang.reason = 'insufficient_capacity' then
      hwqueue.no_level_words(p_gang.together) || format(' room for %s of them',
        coalesce(p_gang.min_size::text, 'all'))
    when p_gang.reason = 'gang_incomplete' then 'another session holds one of its members'
    else hwqueue.try_words(p_gang.reason) end;
end $$;

-- Says that no level of together has: "no rack and no node has", "no rack, nor the fleet, has".
create or replace function hwqueue.no_level_words(p_together text[]) returns text
language sql stable
as $$
  select case when p_together = '{}' then 'no nodes have'
    else 'no ' || array_to_string(array_remove(p_together, 'fleet'), ' and no ')
      || case when 'fleet' = any (p_together) then ', nor the fleet, has' else ' has' end end
$$;

-- Says the place of a gang: "rack 2", "the fleet".
create or replace function hwqueue.gang_place_words(p_place text) returns text
language sql immutable
as $$
  select case when p_place = 'fleet' or p_place like 'fleet; %' then 'the ' || p_place else p_place end
$$;
