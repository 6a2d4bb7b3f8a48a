-- Ends a token of the HTTP API; servers that have seen it lately let it in for some seconds more.
-- Locks: the token's row. Raises: QHK01, QHA03. Idempotent: yes. Gives whether it was not revoked before.
create or replace function hwqueue.revoke_token(p_name text, p_shard int default 0) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform hwqueue.require_all_tenants();
  update hwqueue.api_token t
  set revoked_at = hwqueue.clock(), revoked_by = hwqueue.acting(), revoked_login = session_user
  where t.shard_id = p_shard and t.name = p_name and t.revoked_at is null;
  if found then
    perform hwqueue.note_event('token_revoked', format('token %s', p_name), p_shard, jsonb_build_object('token', p_name));
    return true;
  end if;
  perform 1 from hwqueue.api_token t where t.shard_id = p_shard and t.name = p_name;
  if not found then
    perform hwqueue.refuse('QHK01', format('no token is named %s', coalesce(to_json(left(p_name, 100))::text, 'null')),
      jsonb_build_object('field', 'p_name'), 'list them: hwqueue token list');
  end if;
  return false;
end
$$;
