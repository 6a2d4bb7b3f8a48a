-- Whose secret this is; no row when nobody's: unknown, revoked or expired. Notes once an hour that it is in use.
-- Locks: the token's row, skip locked. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.check_token(p_secret_sha256 bytea, p_shard int default 0)
returns table (name text, role text, tenant text, expires_at timestamptz, shard_id int)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  update hwqueue.api_token u
  set used_at = v_now
  from (select t.shard_id, t.name from hwqueue.api_token t
        where t.shard_id = p_shard and t.secret_sha256 = p_secret_sha256 and t.revoked_at is null
          and coalesce(t.used_at, '-infinity') < v_now - interval '1 hour' and coalesce(t.expires_at, 'infinity') > v_now
        for no key update skip locked) d
  where u.shard_id = d.shard_id and u.name = d.name;
  return query
    select t.name, t.role, t.tenant, t.expires_at, t.shard_id
    from hwqueue.api_token t
    where t.shard_id = p_shard and t.secret_sha256 = p_secret_sha256 and t.revoked_at is null
      and coalesce(t.expires_at, 'infinity') > v_now;
end
$$;
