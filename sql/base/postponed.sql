-- What upkeep could not finish: parts of reap and prune, and of their gangs, replacements, choices and
-- everywhere tasks those that were cut short.
--
-- upkeep/parts, upkeep/teams and everywhere/upkeep run each step in a savepoint and call postpone when it
-- fails.
-- Example: a gang takes three seconds to assemble, and statement_timeout is two. The timeout undoes the
-- savepoint of that gang; what the call did before is committed, and the gang is tried again in a second.
--
-- Invariant: a cancellation by somebody is passed on; only what ran out of time, or failed, is postponed.

-- Whether nine tenths of statement_timeout, or of transaction_timeout, are over: what takes long ends now, so
-- that the rest of the call is committed.
create or replace function hwqueue.is_time_up() returns boolean
language sql volatile
as $$
  select coalesce(clock_timestamp() >= least(
    statement_timestamp() + 0.9 * nullif(current_setting('statement_timeout'), '0')::interval,
    transaction_timestamp() + 0.9 * nullif(current_setting('transaction_timeout', true), '0')::interval),
    false)
$$;

-- What a call has done that begins. p_holds: it holds the cursor, so its notes are its own.
create or replace function hwqueue.nothing_done(p_holds boolean) returns hwqueue.upkeep_done
language sql stable
as $$ select jsonb_populate_record(null::hwqueue.upkeep_done, jsonb_build_object('holds', p_holds,
  'more', false, 'expired', 0, 'promoted', 0, 'deadlines', 0, 'reaches', 0, 'leases', 0, 'classes', 0,
  'nodes', 0)) $$;

-- How long upkeep waits after a try that has failed, and p_tries before it: 1, 2, 4, 8, then 15 seconds.
create or replace function hwqueue.back_off(p_tries int) returns interval
language sql immutable parallel safe
as $$ select least(interval '1 second' * 2 ^ least(p_tries, 4), interval '15 seconds') $$;

-- Notes that a step was cut short by p_state, and when it is tried next (back_off).
-- p_state null: it was not, but used up the time; it comes last from now on. p_item: a gang, a
-- lease, a choice or a node; null: the whole part. Returns the next try.
-- Raises: 57014, if somebody has cancelled the call; class 42, because a function that does not compile is no
-- matter of time. Not idempotent.
create or replace function hwqueue.postpone(p_part text, p_item uuid, p_state text, p_message text,
  p_now timestamptz) returns timestamptz
language plpgsql volatile
as $$
declare
  v_row hwqueue.postponed;
begin
  if p_state = '57014' and not hwqueue.is_time_up() or p_state like '42%' then
    perform hwqueue.refuse(p_state, p_message, null, 'nothing was done; call again');
  end if;
  insert into hwqueue.postponed as d (part, item, tries, at, next_try_at, sqlstate, message)
  values (p_part, coalesce(p_item, '00000000-0000-0000-0000-000000000000'), 1, p_now,
    p_now + case when p_state is null then interval '0' else hwqueue.back_off(0) end, p_state, p_message)
  on conflict (part, item) do update
  set tries = d.tries + 1, at = p_now, sqlstate = p_state, message = p_message,
      next_try_at = p_now + case when p_state is null then interval '0' else hwqueue.back_off(d.tries) end
  returning d.* into v_row;
  if v_row.tries = 1 and p_state is not null then
    perform hwqueue.note_event('upkeep_postponed', format('upkeep had to leave %s: %s',
        concat_ws(' ', p_part, p_item), p_message),
      jsonb_build_object('part', p_part, 'item', p_item, 'sqlstate', p_state));
  end if;
  return v_row.next_try_at;
end
$$;

-- Whether an item that was cut short is not to be tried yet. A next try in a far future does not count: the
-- clock was set back.
create or replace function hwqueue.is_put_off(p_part text, p_item uuid, p_now timestamptz) returns boolean
language plpgsql stable
as $$ begin return
  exists (
    select from hwqueue.postponed d
    where d.part = p_part and d.item = p_item and d.next_try_at > p_now
      and d.next_try_at <= p_now + interval '15 seconds');
end $$;

-- Returns those of some parts that are to run now: those that were cut short last. most: of p_limit, halved
-- each time that the part was cut short. A far future counts as in is_put_off.
create or replace function hwqueue.parts_due(p_kind text, p_parts text[], p_limit int, p_now timestamptz)
returns table (part text, most int)
language sql stable
as $$
  select u.part, greatest(1, p_limit >> least(coalesce(d.tries, 0), 30))
  from unnest(p_parts) with ordinality u(part, turn)
  left join hwqueue.postponed d on d.part = p_kind || ' ' || u.part
    and d.item = '00000000-0000-0000-0000-000000000000'
  where (d.next_try_at > p_now and d.next_try_at <= p_now + interval '15 seconds') is not true
  order by d.next_try_at nulls first, u.turn
$$;

-- Says that upkeep had to leave a gang, or a lease that replaces another one. Null: it had not.
create or replace function hwqueue.postponed_words(p_item uuid) returns text
language plpgsql stable
as $$ begin return (
  select format('upkeep had to leave it, %s in a row: %s; it tries again at %s UTC',
    case d.tries when 1 then 'once' else d.tries || ' times' end, left(d.message, 200),
    to_char(d.next_try_at at time zone 'UTC', 'HH24:MI:SS'))
  from hwqueue.postponed d
  where d.part in ('gang', 'replacement', 'everywhere') and d.item = p_item
); end $$;
