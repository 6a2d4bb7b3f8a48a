-- Public: tokens of the HTTP API.
--
-- The HTTP server calls check_token for each caller that it has not seen lately; admins call the others.
-- The database never has a secret, only its sha256, so reading the table lets no one in. A name is used
-- once, so that an event that names a token always means the same one.

-- Returns the token that this secret belongs to; no row if it is unknown, revoked or expired. Records at
-- most once an hour that the token is in use.
-- Locks: the token's row, skip locked.
create or replace function hwqueue.check_token(p_secret_sha256 bytea)
returns table (name text, role text, tenant text, expires_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  update hwqueue.api_token u
  set used_at = v_now
  from (select t.name from hwqueue.api_token t
        where t.secret_sha256 = p_secret_sha256 and t.revoked_at is null
          and coalesce(t.used_at, '-infinity') < v_now - interval '1 hour'
          and coalesce(t.expires_at, 'infinity') > v_now
        for no key update skip locked) d
  where u.name = d.name;
  return query
    select t.name, t.role, t.tenant, t.expires_at
    from hwqueue.api_token t
    where t.secret_sha256 = p_secret_sha256 and t.revoked_at is null
      and coalesce(t.expires_at, 'infinity') > v_now;
end
$$;

-- Creates a token, so that a caller with the secret may use the HTTP API. The caller of this function
-- makes, keeps and shows the secret, and passes only its sha256. Not idempotent.
--
-- p_role: producer, viewer, operator or admin. p_tenant: the one tenant that the token may see and spawn
-- for; null: all. p_expires_at, p_expires_after: when it expires, or after how long; null: never.
-- Raises: QHA01, QHA03, QHK02 if a token has or had this name or secret.
create or replace function hwqueue.create_token(
  p_name text, p_secret_sha256 bytea, p_role text, p_tenant text default null,
  p_expires_at timestamptz default null, p_expires_after interval default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
  v_expires_at timestamptz := hwqueue.check_expiry(p_expires_at, p_expires_after, v_now);
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_name, 'p_name');
  if octet_length(p_secret_sha256) is distinct from 32 then
    perform hwqueue.refuse_field('QHA01', 'p_secret_sha256', 'must be the 32 bytes of a sha256',
      'make a secret of at least 32 random bytes and give its hash');
  end if;
  perform hwqueue.json_choice(to_jsonb(coalesce(p_role, '')), 'p_role',
      array['producer', 'viewer', 'operator', 'admin']);
  perform hwqueue.json_text(to_jsonb(p_tenant), 'p_tenant', 100);
  begin
    insert into hwqueue.api_token (name, secret_sha256, role, tenant, created_at, created_by,
        created_login, expires_at)
    values (p_name, p_secret_sha256, p_role, p_tenant, v_now, hwqueue.current_actor(), session_user,
            v_expires_at);
  exception when unique_violation then
    perform hwqueue.refuse('QHK02', format('a token is or was named %s, or has this secret', p_name),
      jsonb_build_object('field', 'p_name', 'name', p_name),
        'choose another name: names are not given twice');
  end;
  perform hwqueue.note_event('token_created', format('token %s for role %s', p_name, p_role),
    jsonb_build_object('token', p_name, 'role', p_role, 'tenant', p_tenant, 'expires_at', v_expires_at));
end
$$;

-- Returns the tokens of the HTTP API, newest first, without their hashes. used_at is exact to the hour.
-- Raises: QHA03.
create or replace function hwqueue.list_tokens()
returns table (name text, role text, tenant text, created_at timestamptz, created_by text,
  expires_at timestamptz, used_at timestamptz, revoked_at timestamptz, revoked_by text,
  created_login text, revoked_login text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select t.name, t.role, t.tenant, t.created_at, t.created_by, t.expires_at, t.used_at, t.revoked_at,
         t.revoked_by, t.created_login, t.revoked_login
  from hwqueue.api_token t
  order by t.created_at desc, t.name
$$;

-- Revokes a token of the HTTP API and returns true; false if it was revoked before. Servers that have
-- cached the token accept it for some seconds more.
-- Locks: the token's row. Raises: QHK01, QHA03.
create or replace function hwqueue.revoke_token(p_name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  update hwqueue.api_token t
  set revoked_at = hwqueue.clock(), revoked_by = hwqueue.current_actor(), revoked_login = session_user
  where t.name = p_name and t.revoked_at is null;
  if found then
    perform hwqueue.note_event('token_revoked', format('token %s', p_name),
      jsonb_build_object('token', p_name));
    return true;
  elsif not exists (select from hwqueue.api_token t where t.name = p_name) then
    perform hwqueue.refuse('QHK01', format('no token is named %s',
        coalesce(to_json(left(p_name, 100))::text, 'null')),
      jsonb_build_object('field', 'p_name'), 'list them: hwqueue token list');
  end if;
  return false;
end
$$;
