-- Lets whoever knows a secret use the HTTP API. The secret is made, kept and shown by the caller; only its sha256 comes here.
-- p_role: producer, viewer, operator, admin. p_tenant: the one tenant that it may see and spawn for; null: all.
-- Locks: none. Raises: QHA01, QHK02 the name is or was given, QHA03. Idempotent: no.
create or replace function hwqueue.create_token(p_name text, p_secret_sha256 bytea, p_role text, p_tenant text default null,
                                                p_expires_at timestamptz default null, p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz := hwqueue.clock();
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_shard(p_shard);
  perform hwqueue.check_name(p_name, 'p_name');
  if octet_length(p_secret_sha256) is distinct from 32 then
    perform hwqueue.refuse('QHA01', 'p_secret_sha256 must be the 32 bytes of a sha256', jsonb_build_object('field', 'p_secret_sha256'),
      'make a secret of at least 32 random bytes and give its hash');
  end if;
  perform hwqueue.json_choice(to_jsonb(coalesce(p_role, '')), 'p_role', array['producer', 'viewer', 'operator', 'admin']);
  perform hwqueue.json_text(to_jsonb(p_tenant), 'p_tenant', 100);
  begin
    insert into hwqueue.api_token (shard_id, name, secret_sha256, role, tenant, created_at, created_by, created_login, expires_at)
    values (p_shard, p_name, p_secret_sha256, p_role, p_tenant, v_now, hwqueue.acting(), session_user,
            hwqueue.check_expiry(p_expires_at, v_now));
  exception when unique_violation then
    perform hwqueue.refuse('QHK02', format('a token is or was named %s, or has this secret', p_name),
      jsonb_build_object('field', 'p_name', 'name', p_name), 'choose another name: names are not given twice');
  end;
  perform hwqueue.note_event('token_created', format('token %s for role %s', p_name, p_role), p_shard,
    jsonb_build_object('token', p_name, 'role', p_role, 'tenant', p_tenant, 'expires_at', p_expires_at));
end
$$;
