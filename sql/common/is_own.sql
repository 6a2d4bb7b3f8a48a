-- Whether the caller has a role of another name; a role that does not exist is nobody's but a superuser's.
create or replace function hwqueue.has_login(p_login text) returns boolean
language plpgsql stable
as $$
begin
  return exists (select from pg_catalog.pg_roles r where r.rolname = session_user and r.rolsuper)
      or exists (select from pg_catalog.pg_roles r where r.rolname = p_login and pg_has_role(session_user, r.oid, 'member'));
end
$$;

-- Whether the caller may act for what belongs to a role: it is that role, has it, or nobody is noted.
-- Functions run with their owner's rights, so the caller is the session's user. An expression, so that
-- Postgres puts it in place of the call.
create or replace function hwqueue.is_own(p_login text) returns boolean
language sql stable
as $$ select p_login = session_user or p_login is null or hwqueue.has_login(p_login) $$;

-- What helps a caller that may not act for a role: with the role gone only an operator does.
create or replace function hwqueue.login_hint(p_login text) returns text
language sql stable
as $$
  select case when exists (select from pg_catalog.pg_roles r where r.rolname = p_login)
      then format('log in as %s or as a member of it, or let an operator hand the node over: hand_over_node', to_json(p_login))
    else format('role %s does not exist on this server: let an operator hand the node over: hand_over_node', to_json(p_login)) end
$$;

-- Refuses a caller that may not act for a node.
-- Raises: QHN04.
create or replace function hwqueue.check_login(p_node uuid, p_login text, p_shard int) returns void
language plpgsql stable
as $$
begin
  if not hwqueue.is_own(p_login) then
    perform hwqueue.refuse('QHN04', format('node %s belongs to login %s, this call comes from %s', p_node, to_json(p_login),
        to_json(session_user::text)),
      jsonb_build_object('node_id', p_node, 'shard_id', p_shard, 'login', p_login, 'given_login', session_user),
      hwqueue.login_hint(p_login));
  end if;
end
$$;
