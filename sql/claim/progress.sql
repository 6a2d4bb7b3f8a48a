-- How far claims have come: what handlers report while they run.
--
-- api/claims.report_progress and api/leases.get_lease call this module. An example: the handler of
-- frame 7 says that 40 of 100 tiles are drawn. Its worker sends that at most once a second;
-- write_progress puts it into the row of the claim's token. When the claim ends the row stays, and
-- get_lease shows it with the attempt.
--
-- Invariant: only who holds a claim writes its row, fenced by the token. A row lives no longer than its
-- lease: a report holds the lease's row, so that prune (delete_leases) waits for it and sees what it
-- wrote.
--
-- Read write_progress first, then progress_of.

-- Writes what claims report: {"lease_id", "claim_token", "fraction", "done", "total", "message"}, checked
-- by check_progress. Claims that have ended or are another login's are left out. Returns how many were
-- written.
-- Locks: the rows of the leases, for key share, skip locked.
create or replace function hwqueue.write_progress(p_reports jsonb) returns int
language plpgsql volatile
as $$
declare
  v_count int;
begin
  with told as (
    -- of several reports of one claim the last
    select distinct on (r.lease_id, r.claim_token) r.*
    from rows from (jsonb_to_recordset(p_reports) as (
        lease_id uuid, claim_token numeric, fraction numeric, done numeric, total numeric, message text))
      with ordinality r(lease_id, claim_token, fraction, done, total, message, ordinal)
    order by r.lease_id, r.claim_token, r.ordinal desc
  ), held as (
    select t.* from told t
    cross join lateral (
      select 1 from hwqueue.claim c
      where c.lease_id = t.lease_id and c.claim_token = t.claim_token
        and hwqueue.is_own(c.login) offset 0) own
    join hwqueue.lease l on l.lease_id = t.lease_id
    order by l.lease_id for key share of l skip locked
  )
  insert into hwqueue.progress as p (lease_id, claim_token, reported_at, fraction, done, total, message)
  select h.lease_id, h.claim_token::bigint, hwqueue.clock(),
         -- to six places, as check_progress read it: a smaller fraction may be none of a double
         coalesce(round(h.fraction, 6), h.done / nullif(h.total, 0))::double precision, h.done::bigint,
         h.total::bigint, h.message
  from held h
  on conflict (lease_id, claim_token) do update
  set reported_at = excluded.reported_at, fraction = excluded.fraction, done = excluded.done,
      total = excluded.total, message = excluded.message;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Checks reports of progress, at most 1000, one by one. Raises QHA01, naming the element.
create or replace function hwqueue.check_progress(p_reports jsonb) returns void
language plpgsql immutable
as $$
declare
  v_item jsonb;
  v_field text;
  v_done bigint;
  v_total bigint;
begin
  if jsonb_typeof(p_reports) is distinct from 'array' or jsonb_array_length(p_reports) > 1000 then
    perform hwqueue.refuse('QHA01', 'p_reports must be a JSON array of at most 1000 reports',
      jsonb_build_object('field', 'p_reports'),
      'for example [{"lease_id": "...", "claim_token": 1, "fraction": 0.4, "message": "frame 40"}]');
  end if;
  for v_item, v_field in
    select e.value, format('p_reports[%s]', e.ordinality - 1)
    from jsonb_array_elements(p_reports) with ordinality e
  loop
    perform hwqueue.check_object(v_item,
        array['lease_id', 'claim_token', 'fraction', 'done', 'total', 'message'], v_field),
      hwqueue.json_number(v_item -> 'fraction', v_field || '.fraction', 0, 1),
      hwqueue.json_text(v_item -> 'message', v_field || '.message', 200);
    perform hwqueue.check_claim(v_item, v_field);
    v_done := hwqueue.json_integer(v_item -> 'done', v_field || '.done', 0, 9223372036854775807);
    v_total := hwqueue.json_integer(v_item -> 'total', v_field || '.total', 1, 9223372036854775807);
    if v_total is not null and (v_done <= v_total) is not true then
      perform hwqueue.refuse('QHA01',
        format('%s.done must be from 0 to total, which is %s', v_field, v_total),
        jsonb_build_object('field', v_field || '.done'), 'give how many of the total are done');
    end if;
  end loop;
end
$$;

-- What a claim has reported last, as get_lease returns it; null: nothing.
create or replace function hwqueue.progress_of(p_lease uuid, p_token bigint) returns jsonb
language sql stable
as $$
  select jsonb_build_object('fraction', p.fraction, 'done', p.done, 'total', p.total, 'message', p.message,
    'reported_at', p.reported_at)
  from hwqueue.progress p where p.lease_id = p_lease and p.claim_token = p_token
$$;
