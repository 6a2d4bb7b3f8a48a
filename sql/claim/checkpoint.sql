-- Durable steps: what handlers save, what they wait for, and the signals that leases are sent.
--
-- api/checkpoints and claim/settle call this module. An example: a handler charges a card and saves the
-- result as checkpoint "charge", then waits for the signal "packed". Its claim ends, and the lease goes into
-- scheduled with an open wait. signal_lease makes it pending. The next claim reads "charge", takes the
-- signal, and goes on.
--
-- Invariants: only who holds a claim writes checkpoints, fenced by the token: the writer holds the claim's
-- row, so nobody can end the claim before the writer commits. A row lives no longer than its lease:
-- remove_leases deletes it after the claim has ended.
--
-- No wake-up is lost. A suspension holds the claim, for update, before it reads the signals. A signal holds
-- the row that says where the lease is (hold_state) before it is written, so the state cannot change until
-- it commits. Whichever of the two comes second sees what the other one wrote.
--
-- The callers have held the claim (claim/heartbeat).

-- Refuses what cannot be the name of a checkpoint or a signal.
-- Raises: QHA01.
create or replace function hwqueue.check_step_name(p_name text, p_field text) returns void
language plpgsql immutable
as $$
begin
  if (length(p_name) between 1 and 200) is not true then
    perform hwqueue.refuse('QHA01', format('%s must be text of 1 to 200 characters', p_field),
      jsonb_build_object('field', p_field), 'such as charge-card');
  end if;
end
$$;

-- Writes a checkpoint over the one of its name; a new one gets the next number. A lease has at most 10,000,
-- about: sessions that save at once do not count each other's.
-- Locks: the caller holds the claim; the checkpoint. Raises: QHA01.
create or replace function hwqueue.write_checkpoint(p_row hwqueue.checkpoint) returns void
language plpgsql volatile
as $$
begin
  p_row.number := 1 + coalesce((
    select c.number from hwqueue.checkpoint c
    where c.lease_id = p_row.lease_id and c.number > 0
    order by c.number desc limit 1), 0);
  insert into hwqueue.checkpoint as c values (p_row.*)
  on conflict (lease_id, name) do update
  set claim_token = excluded.claim_token, saved_at = excluded.saved_at, is_open = excluded.is_open,
      state = excluded.state, signal = excluded.signal, waits_until = excluded.waits_until
  returning c.number into p_row.number;
  if p_row.number > 10000 then
    perform hwqueue.refuse('QHA01',
      format('lease %s has 10000 checkpoints, no more are kept', p_row.lease_id),
      jsonb_build_object('field', 'p_name', 'lease_id', p_row.lease_id, 'name', p_row.name),
      'save larger steps, or one checkpoint that is written over; or spawn a lease for each part');
  end if;
end
$$;

-- Writes a signal, unless the lease was sent one of its name and key before: false. A unique index finds that
-- one: the planner, which expects few signals of a lease, may read all of them.
-- Locks: the caller holds the lease (hold_state). Raises: QHA01.
create or replace function hwqueue.store_signal(p_lease uuid, p_name text, p_key text, p_payload jsonb,
  p_now timestamptz) returns boolean
language plpgsql volatile
as $$
declare
  v_number int := 1 + coalesce((
    select s.number from hwqueue.lease_signal s
    where s.lease_id = p_lease order by s.number desc limit 1), 0);
begin
  insert into hwqueue.lease_signal (lease_id, number, name, key, sent_at, payload)
  values (p_lease, v_number, p_name, p_key, p_now, p_payload)
  on conflict (lease_id, name, key) where key is not null do nothing;
  if not found then
    return false;
  elsif v_number > 10000 then
    perform hwqueue.refuse('QHA01', format('lease %s was sent 10000 signals, no more are kept', p_lease),
      jsonb_build_object('field', 'p_name', 'lease_id', p_lease), 'spawn a lease for each of them instead');
  end if;
  return true;
end
$$;

-- Ends the wait p_name with the oldest signal of a name that nobody has taken, or as timed out. verdict is
-- taken, timed_out, or none: it goes on. A wait that has ended already returns the same again.
-- Locks: the caller holds the claim; the signal, the checkpoint. Raises: QHA01.
create or replace function hwqueue.take_next_signal(p_lease uuid, p_token bigint, p_signal text, p_name text,
  out verdict text, out payload jsonb)
language plpgsql volatile
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_wait hwqueue.checkpoint;
  v_number int;
begin
  select c.* into v_wait from hwqueue.checkpoint c where c.lease_id = p_lease and c.name = p_name;
  if not v_wait.is_open then
    payload := v_wait.state;
    verdict := case when payload is null then 'timed_out' else 'taken' end;
    return;
  end if;
  select s.number, s.payload into v_number, payload from hwqueue.lease_signal s
  where s.lease_id = p_lease and s.name = p_signal and s.taken_as is null
  order by s.number limit 1 for update;
  verdict := case when v_number is not null then 'taken' when v_wait.waits_until <= v_now then 'timed_out'
    else 'none' end;
  if verdict = 'none' then
    return;
  end if;
  update hwqueue.lease_signal s set taken_as = p_name, payload = null
  where s.lease_id = p_lease and s.number = v_number;
  perform hwqueue.write_checkpoint(row(p_lease, p_name, p_token, v_now, false, payload, p_signal,
    v_wait.waits_until, null)::hwqueue.checkpoint);
end
$$;

-- Opens the wait with which a claim ends, or opens it again with the time that it had, and returns when the
-- lease is to be claimable: {"name", "signal", "delay", "available_at"}. That is now if the signal is there
-- already; without a timeout infinity.
-- Locks: the caller holds the claim, for update; the checkpoint. Raises: QHA01.
create or replace function hwqueue.open_wait(p_claim hwqueue.claim, p_wait jsonb, p_now timestamptz)
returns timestamptz
language plpgsql volatile
as $$
declare
  v_signal text := p_wait ->> 'signal';
  v_name text := coalesce(p_wait ->> 'name', v_signal, 'sleep');
  v_until timestamptz := coalesce((p_wait ->> 'available_at')::timestamptz,
      p_now + hwqueue.json_interval(p_wait -> 'delay', 'delay'));
  v_before hwqueue.checkpoint;
begin
  select c.* into v_before from hwqueue.checkpoint c where c.lease_id = p_claim.lease_id and c.name = v_name;
  if v_before.is_open and v_before.signal is not distinct from v_signal then
    v_until := coalesce(v_before.waits_until, v_until);
  end if;
  perform hwqueue.write_checkpoint(row(p_claim.lease_id, v_name, p_claim.claim_token, p_now, true,
    null, v_signal, v_until, null)::hwqueue.checkpoint);
  if exists (select from hwqueue.lease_signal s
             where s.lease_id = p_claim.lease_id and s.name = v_signal and s.taken_as is null) then
    return p_now;
  end if;
  return greatest(p_now, coalesce(v_until, 'infinity'));
end
$$;

-- The open wait with which the last claim of a lease ended: it suspends the lease while that is scheduled.
-- Null: there is none.
create or replace function hwqueue.suspension_of(p_lease hwqueue.lease) returns hwqueue.checkpoint
language plpgsql stable
as $$ begin return (
  select c from hwqueue.checkpoint c
  where c.lease_id = p_lease.lease_id and c.claim_token = p_lease.claim_token and c.is_open
  order by c.saved_at desc, c.name limit 1
); end $$;

-- Checkpoints and signals whose lease is gone: neither it nor its outcome is there.
create or replace function hwqueue.broken_checkpoints() returns table (rule text, lease_id uuid, detail jsonb)
language sql stable
as $$
  select 'checkpoint_lease', x.lease_id, jsonb_build_object('table', x.kind, 'rows', count(*))
  from (
    select 'checkpoint' as kind, c.lease_id from hwqueue.checkpoint c
    union all
    select 'lease_signal', s.lease_id from hwqueue.lease_signal s) x
  where not exists (select from hwqueue.lease l where l.lease_id = x.lease_id)
    and not exists (select from hwqueue.outcome o where o.lease_id = x.lease_id)
  group by x.kind, x.lease_id
$$;
