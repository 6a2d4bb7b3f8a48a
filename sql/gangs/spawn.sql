-- Spawning gangs: the options of a gang, its members, and their roster.
--
-- Example: {"task": "train", "count": 4} becomes four leases of one class, scheduled, and held by their team.
-- Nothing claims them one by one.

-- Reads a gang. gang: its row, but for its queue, its rank and its size. elements: its members as
-- spawn_leases takes them, one element for each: those with a count are repeated. They have the options of
-- the gang where they say nothing themselves, and in their headers gang_id, gang_rank and gang_size.
-- Raises: QHA01 for fewer than 2 members or more than 1,000, for members of several tenants, for options that
-- a member cannot have, and for a min_size that they do not have, or with which they would end their gang.
create or replace function hwqueue.read_gang(p_members jsonb, p_options jsonb, p_now timestamptz,
  out gang hwqueue.gang, out elements jsonb)
language plpgsql volatile
as $$
declare
  v_own text[] := hwqueue.keys_of('gang');
  v_member jsonb;
  v_options jsonb;
  v_field text;
  v_size int;
begin
  v_options := hwqueue.with_tenant(null);
  p_options := hwqueue.with_defaults(p_options, v_options);
  perform hwqueue.check_object(p_options, v_own || array['priority', 'tenant', 'labels', 'headers',
    'max_attempts', 'retry', 'claim_timeout', 'max_run', 'deadline'], 'options');
  gang := hwqueue.gang_asked(p_options, 'options');
  gang.gang_id := coalesce(gang.gang_id, hwqueue.new_id());
  gang.choice_id := (p_options ->> 'one_of')::uuid;
  gang.next_try_at := p_now;
  gang.created_at := p_now;
  elements := '[]';
  for v_member, v_field in
    select m.value, format('members[%s]', m.ordinality - 1)
    from jsonb_array_elements(hwqueue.json_list(p_members, 'members', 1000, 'a list of 1 to 1000 members',
      'for example [{"task": "train", "count": 4}]')) with ordinality m
  loop
    perform hwqueue.check_object(v_member, array['task', 'params', 'options', 'count'], v_field);
    v_options := hwqueue.check_object(coalesce(nullif(v_member -> 'options', 'null'), '{}'),
      array['placement', 'affinity_tags', 'affinity_with', 'anti_affinity_with', 'wire', 'priority', 'tenant',
      'service_id', 'labels', 'headers', 'max_attempts', 'retry', 'claim_timeout', 'max_run', 'deadline',
      'lease_id'], v_field || '.options');
    elements := elements || (
      select jsonb_agg(v_member - 'count' || jsonb_build_object('options', p_options - v_own || v_options))
      from generate_series(1, coalesce(hwqueue.json_integer(v_member -> 'count', v_field || '.count', 1,
        1000), 1)));
  end loop;
  v_size := jsonb_array_length(elements);
  gang.tenant := coalesce(elements #>> '{0,options,tenant}', '');
  if v_size not between 2 and 1000 then
    perform hwqueue.refuse('QHA01', format('a gang has 2 to 1000 members, this one has %s', v_size),
      jsonb_build_object('field', 'members'), 'spawn a single lease with spawn_lease');
  elsif (select count(distinct coalesce(e #>> '{options,tenant}', ''))
         from jsonb_array_elements(elements) e) > 1 then
    perform hwqueue.refuse('QHA01', 'the members of a gang must be of one tenant',
      jsonb_build_object('field', 'options.tenant'), 'give tenant once, for the gang');
  elsif gang.min_size > v_size then
    perform hwqueue.refuse('QHA01',
      format('min_size %s is more than the %s members of the gang', gang.min_size, v_size),
      jsonb_build_object('field', 'options.min_size'),
      'give at most as many as there are members, or leave min_size out: then all start together');
  elsif gang.min_size < v_size and jsonb_path_exists(elements, '$[*].options.deadline ? (@ != null)') then
    perform hwqueue.refuse('QHA01',
      'min_size goes with no deadline: a member that has not joined by then would fail, and end its gang',
      jsonb_build_object('field', 'options.min_size'), 'leave the deadline out, or min_size');
  end if;
  elements := (
    select jsonb_agg(jsonb_set(e.value, '{options,headers}',
      coalesce(nullif(e.value #> '{options,headers}', 'null'), '{}') || jsonb_build_object(
        'gang_id', gang.gang_id, 'gang_rank', e.ordinality - 1, 'gang_size', v_size)) order by e.ordinality)
    from jsonb_array_elements(elements) with ordinality e);
end
$$;

-- Returns a gang. For a caller limited to other tenants it does not exist.
-- Raises: QHG01.
create or replace function hwqueue.find_gang(p_gang uuid) returns hwqueue.gang
language plpgsql volatile
as $$
declare
  v_gang hwqueue.gang;
begin
  select g.* into v_gang from hwqueue.gang g where g.gang_id = p_gang;
  if not found or hwqueue.my_tenants() is not null and v_gang.tenant <> all (hwqueue.my_tenants()) then
    perform hwqueue.refuse('QHG01', format('gang %s does not exist', coalesce(p_gang::text, 'null')),
      jsonb_build_object('gang_id', p_gang),
      'check the id; a gang goes when the last of its leases has gone');
  end if;
  return v_gang;
end
$$;

-- Writes the event of a gang's new state. p_gang: as it was before.
create or replace function hwqueue.note_gang(p_gang hwqueue.gang, p_state text) returns void
language plpgsql volatile
as $$ begin
  perform hwqueue.note_event('gang_' || p_state, format('gang %s is %s', p_gang.gang_id, p_state),
    jsonb_build_object('gang_id', p_gang.gang_id, 'from', p_gang.state, 'size', p_gang.size)
      || hwqueue.present('min_size', to_jsonb(p_gang.min_size)),
    p_queue => hwqueue.queue_name(p_gang.queue_id));
end $$;

-- Returns the members of a gang: [{"ordinal", "lease_id", "state", "node_id", "node", "labels",
-- "reserved_until", "earmarked"}]. reserved_until: the node has not fetched it yet. earmarked: true while its
-- room is still in use by others. node: where it runs, or ran last.
create or replace function hwqueue.gang_roster(p_gang uuid) returns jsonb
language plpgsql stable
as $$ begin return (
  select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('ordinal', m.ordinality - 1,
           'lease_id', m.lease_id, 'state', hwqueue.lease_state(m.lease_id),
           'node_id', n.node_id, 'node', n.name, 'labels', n.labels,
           'reserved_until', case when c.is_reserved and c.is_earmark is null then c.expires_at end,
           'earmarked', c.is_earmark)) order by m.ordinality), '[]')
  from hwqueue.gang g
  cross join unnest(g.members) with ordinality m(lease_id, ordinality)
  left join hwqueue.claim c on c.lease_id = m.lease_id
  left join hwqueue.outcome o on o.lease_id = m.lease_id
  left join hwqueue.node n on n.node_id = coalesce(c.node_id, o.node_id)
  where g.gang_id = p_gang
); end $$;

-- Whether a gang that waits may start by now: its run may have been submitted for later. One that was to
-- start when it was spawned may, though the clock was set back since.
create or replace function hwqueue.may_be_tried(p_gang hwqueue.gang, p_now timestamptz) returns boolean
language sql immutable
as $$
  select p_gang.tries + p_gang.losses > 0 or p_gang.next_try_at <= greatest(p_now, p_gang.created_at)
$$;

-- How many of the members of a gang that wait must get room, at least, when any of them does: as many as it
-- lacks of those with which it may run, of a gang without min_size all.
create or replace function hwqueue.members_needed(p_gang hwqueue.gang, p_waiting int) returns int
language sql immutable
as $$
  select greatest(1, p_waiting - hwqueue.may_be_missing(p_gang))
$$;

-- How many members of a gang may wait while the others run. One that goes on without those that are lost
-- waits for none that was requeued.
create or replace function hwqueue.may_be_missing(p_gang hwqueue.gang) returns int
language sql immutable
as $$
  select p_gang.size - coalesce(p_gang.min_size,
    case when p_gang.on_lost = 'continue' and p_gang.state = 'running' then 1 else p_gang.size end)
$$;

-- Returns the states that a gang can be in. The last three are ends.
create or replace function hwqueue.gang_states() returns text[]
language sql immutable parallel safe
as $$
  select array['waiting', 'earmarked', 'reserved', 'running', 'stopping', 'cancelling', 'completed', 'failed',
    'cancelled']
$$;
