-- The tokens of the HTTP API, newest first; used_at to the hour. Nothing here lets anybody in.
-- Locks: none. Raises: QHA03. Idempotent: yes.
create or replace function hwqueue.list_tokens(p_shard int default 0)
returns table (name text, role text, tenant text, created_at timestamptz, created_by text, expires_at timestamptz, used_at timestamptz,
               revoked_at timestamptz, revoked_by text, shard_id int, created_login text, revoked_login text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select t.name, t.role, t.tenant, t.created_at, t.created_by, t.expires_at, t.used_at, t.revoked_at, t.revoked_by, t.shard_id,
         t.created_login, t.revoked_login
  from hwqueue.api_token t
  where t.shard_id = p_shard
  order by t.created_at desc, t.name
$$;
