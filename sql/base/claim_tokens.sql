-- Claim tokens: what leads them, and which claim of its lease one is.
--
-- A token is generation x 2^40, plus a number of that generation, plus the lease's own counter. The
-- generation belongs to one life of one server and one database; a life begins with a start, or with a
-- recovery. When it is another one than the installation's row says, the generation rises, to the ten minutes
-- in which the life began or to one more than the row's. So tokens rise though the last commits are lost (a
-- crash, a failover). And none is given twice by two histories that begin with the same row (a disk that was
-- rolled back, a copy, a dump that is restored twice), though both may get the same generation: its number
-- is made of that identity. installation.generation holds both, the token of a first claim. Example: the
-- first claim of a lease gets that, its second claim that and 3.
--
-- Invariants: the tokens of a lease only rise. The generation follows from the row and the server alone, so
-- a session that cannot lock the row computes the one that another session writes. The token of a lease's
-- first claim is even, the others are odd.

-- The generation of this life of the server, with its number: the recorded one, or a higher one if what is
-- recorded is of another server, database or life. It is the ten minutes in which the life began, counted
-- since 1970 (4 million are reached in 2049, and 2^23 in 2129), or one more than the recorded one. Its
-- number is that time (a recovery resets statistics) in tenths of a second, which leads where two lives of
-- the same ten minutes know nothing of each other, and a hash. A row without a path has not seen a claim
-- yet, nor has its copy.
create or replace function hwqueue.next_generation(p_row hwqueue.installation, p_timeline int,
  p_system bigint)
returns bigint
language plpgsql volatile
as $$ begin return (
  select case when (p_row.timeline, p_row.system_identifier) = (p_timeline, p_system)
      and hwqueue.is_this_life(p_row.server_started_at, p_row.recovered_to, p_row.storage_path)
    then p_row.generation
    else (g.generation << 40)
      + (greatest(floor(t.seconds * 10)::bigint - 6000 * (g.generation - 40), 0) << 22)
      + (hashtextextended(concat_ws(' ', p_system, p_timeline, extract(epoch from pg_postmaster_start_time()),
          pg_last_wal_replay_lsn(), pg_relation_filepath('hwqueue.installation'::regclass)), 0) & 4194302) end
  from (select extract(epoch from greatest(pg_postmaster_start_time(), case when pg_last_wal_replay_lsn()
          is not null then pg_stat_get_bgwriter_stat_reset_time() end)) as seconds) t,
    greatest((p_row.generation >> 40) + 1, floor(t.seconds / 600)::bigint) g (generation)
); end $$;

-- Whether this is the life of the server of which a row says when it was started, up to where it recovered
-- (null: it had no need to; a killed backend makes it recover without a start), and the file of the table
-- `installation`, which is another one in a copy and after a restore. It costs a microsecond, and reads no
-- page. Inlined.
create or replace function hwqueue.is_this_life(p_started timestamptz, p_recovered pg_lsn, p_path text)
returns boolean
language sql volatile
as $$
  select p_started = pg_postmaster_start_time() and p_recovered is not distinct from pg_last_wal_replay_lsn()
    and p_path = pg_relation_filepath('hwqueue.installation'::regclass)
$$;

-- The token of the next claim of a lease that has been claimed p_claims times. Inlined.
create or replace function hwqueue.next_token(p_generation bigint, p_claims int) returns bigint
language sql immutable parallel safe
as $$ select p_generation + 2::bigint * p_claims + least(p_claims, 1) $$;

-- How often a lease counts as claimed when the claim with this token is over (0: it had none): as often as in
-- this generation, but once at least. Tokens of other generations are below all of this one.
create or replace function hwqueue.claims_until(p_token bigint) returns int
language sql volatile
as $$
  select least(greatest((p_token - hwqueue.this_generation()) >> 1, 0), 1073741823)::int
    + least(p_token, 1)::int
$$;

-- The generation of this life of the server, not noted.
create or replace function hwqueue.this_generation() returns bigint
language plpgsql volatile
as $$ begin return (
  select case
    when hwqueue.is_this_life(s.server_started_at, s.recovered_to, s.storage_path) then s.generation
    else hwqueue.next_generation(s, hwqueue.server_timeline(),
      (select c.system_identifier from pg_control_system() c)) end
  from hwqueue.installation s
); end $$;

-- The timeline that the server writes now.
create or replace function hwqueue.server_timeline() returns int
language sql volatile
as $$ select ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int $$;

-- Returns what tells a claim from the other ones of its lease, in fewer bits than its token.
create or replace function hwqueue.claim_no(p_token bigint) returns int
language sql immutable parallel safe
as $$ select (p_token & 2147483647)::int $$;

-- Checks that an item of a JSON argument names a claim. Its token may be text, since many readers of JSON
-- keep 53 bits of a number. Raises QHA01.
create or replace function hwqueue.check_claim(p_item jsonb, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_token text := p_item ->> 'claim_token';
begin
  if hwqueue.json_uuid(p_item -> 'lease_id', p_field || '.lease_id') is null
    or hwqueue.json_integer(case when v_token ~ '^(0|[1-9][0-9]{0,18})$' then v_token::jsonb
      else p_item -> 'claim_token' end, p_field || '.claim_token', 0, 9223372036854775807) is null then
    perform hwqueue.refuse_field('QHA01', p_field, 'needs lease_id and claim_token',
      'pass both as claim_task gave them');
  end if;
end
$$;
