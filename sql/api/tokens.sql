-- Public: tokens of the HTTP API.
--
-- The HTTP server calls check_token for each caller that it has not seen lately; admins call the others.
-- The database never has a secret, only its sha256, so reading the table lets no one in. A name is used
-- once, so that an event that names a token always means the same one.
-- Workers without a login of the database call through the HTTP server, with a token of role worker. It is
-- bound to names of nodes. Each registration makes a secret that only that instance of the worker knows, and
-- every later request brings both: register_bound_node, enter_node.

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
-- p_role: producer, viewer, operator, admin or worker. p_tenant: the one tenant that the token may see and
-- spawn for; null: all. p_expires_at, p_expires_after: when it expires, or after how long; null: never.
-- p_nodes: of role worker, and of no other: the names of the nodes that it may register, at most 100, or how
-- they begin: edge-*.
-- Raises: QHA01, QHA03, QHK02 if a token has or had this name or secret.
create or replace function hwqueue.create_token(
  p_name text, p_secret_sha256 bytea, p_role text, p_tenant text default null,
  p_expires_at timestamptz default null, p_expires_after interval default null,
  p_nodes text[] default null) returns void
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
      array['producer', 'viewer', 'operator', 'admin', 'worker']);
  perform hwqueue.json_text(to_jsonb(p_tenant), 'p_tenant', 100);
  if p_role = 'worker' and p_tenant is not null then
    perform hwqueue.refuse_field('QHA01', 'p_tenant', 'must be null: a worker runs leases of all tenants',
      'say with p_nodes which nodes the token is for');
  elsif (p_role = 'worker') <> (p_nodes is not null) or p_nodes is not null and (
      array_ndims(p_nodes) is distinct from 1 or cardinality(p_nodes) > 100
      or exists (
        select from unnest(p_nodes) n
        where (n ~ '^[A-Za-z0-9_][A-Za-z0-9_.:@/-]{0,252}[*]?$') is not true)) then
    perform hwqueue.refuse_field('QHA01', 'p_nodes', 'must name 1 to 100 nodes, for role worker alone',
      'give names, or how they begin: array[''edge-*''], or --node ''edge-*''');
  end if;
  begin
    insert into hwqueue.api_token (name, secret_sha256, role, tenant, created_at, created_by,
        created_login, expires_at, nodes)
    values (p_name, p_secret_sha256, p_role, p_tenant, v_now, hwqueue.current_actor(), session_user,
            v_expires_at, p_nodes);
  exception when unique_violation then
    perform hwqueue.refuse('QHK02', format('a token is or was named %s, or has this secret', p_name),
      jsonb_build_object('field', 'p_name', 'name', p_name),
        'choose another name: names are not given twice');
  end;
  perform hwqueue.note_event('token_created', format('token %s for role %s', p_name, p_role),
    jsonb_build_object('token', p_name, 'role', p_role, 'tenant', p_tenant, 'expires_at', v_expires_at,
      'nodes', p_nodes));
end
$$;

-- Returns the tokens of the HTTP API, newest first, without their hashes. used_at is exact to the hour.
-- Raises: QHA03.
create or replace function hwqueue.list_tokens()
returns table (name text, role text, tenant text, created_at timestamptz, created_by text,
  expires_at timestamptz, used_at timestamptz, revoked_at timestamptz, revoked_by text,
  created_login text, revoked_login text, nodes text[])
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
  select hwqueue.require_all_tenants();
  select t.name, t.role, t.tenant, t.created_at, t.created_by, t.expires_at, t.used_at, t.revoked_at,
         t.revoked_by, t.created_login, t.revoked_login, t.nodes
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

-- Registers a node for the bearer of a token of role worker, as register_node, and returns its node epoch;
-- null: the token lets nobody in. From then on only the secret of this hash opens the node (enter_node).
-- The node is the token's, and no other token's that is bound to its name, as long as the token lets somebody
-- in, and until an operator deregisters the node. It belongs to the login of the HTTP server.
-- keep_claims is refused: a machine with a stolen token would keep what the other one runs.
-- Locks: as register_node. Raises: as register_node; QHN07 another node's name, or another's node.
create or replace function hwqueue.register_bound_node(p_token_sha256 bytea, p_node uuid, p_spec jsonb,
  p_secret_sha256 bytea) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_token hwqueue.api_token := hwqueue.worker_token(p_token_sha256);
  v_state hwqueue.node_state;
  v_epoch bigint;
begin
  if v_token.name is null then
    return null;
  elsif p_spec ? 'keep_claims' then
    perform hwqueue.refuse_field('QHA01', 'spec.keep_claims', 'is not for workers over HTTP', 'leave it out');
  end if;
  select s.* into v_state from hwqueue.node_state s where s.node_id = p_node;
  if exists (
      select from unnest(v_token.nodes) n
      where p_spec ->> 'name' = n or right(n, 1) = '*' and starts_with(p_spec ->> 'name', left(n, -1)))
    and (v_state.login is null or hwqueue.is_own(v_state.login) and exists (
      select from hwqueue.api_token o where o.name = v_state.token_name
        and (o.name = v_token.name or o.revoked_at is not null or o.expires_at <= hwqueue.clock()))) then
    v_epoch := hwqueue.register_node(p_node, p_spec);
    update hwqueue.node_state s set token_name = v_token.name, secret_sha256 = p_secret_sha256
    where s.node_id = p_node and s.token_name is not distinct from v_state.token_name;  -- else just taken
  end if;
  if v_epoch is null or not found then
    perform hwqueue.refuse('QHN07', format('token %s is not for node %s', v_token.name,
        coalesce(to_json(left(p_spec ->> 'name', 253))::text, 'null')),
      jsonb_build_object('field', 'spec.name', 'node_id', p_node),
      'register a node that the token is bound to; another token has the node, or a login of the database');
  end if;
  if v_state.token_name <> v_token.name then  -- it may be another machine
    perform hwqueue.suspend_attestations(hwqueue.read_node(p_node), true,
      format('it registered with token %s', v_token.name), hwqueue.clock());
  end if;
  return v_epoch;
end
$$;

-- Opens a node for a request of its worker over HTTP, until the transaction ends, and returns its node
-- epoch. Calls that follow are the node's (entered_node): they touch no claim of another node, and take
-- hwqueue.node_epoch as its epoch.
-- Raises: QHN07 the token lets nobody in; QHN01 for every node that is not the token's, there or not; QHN03
-- when it was registered again.
create or replace function hwqueue.enter_node(p_token_sha256 bytea, p_node uuid, p_secret_sha256 bytea)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_token hwqueue.api_token := hwqueue.worker_token(p_token_sha256);
  v_state hwqueue.node_state;
begin
  if v_token.name is null then
    perform hwqueue.refuse('QHN07', 'this token lets nobody in: unknown, revoked or expired',
      jsonb_build_object('node_id', p_node), 'make another: hwqueue token create NAME --role worker');
  end if;
  select s.* into v_state from hwqueue.node_state s where s.node_id = p_node;
  if (v_state.token_name = v_token.name and v_state.login is not null and hwqueue.is_own(v_state.login))
    is not true then
    perform hwqueue.refuse_epoch(p_node, null, null);
  elsif v_state.secret_sha256 is distinct from p_secret_sha256 then
    perform hwqueue.refuse_epoch(p_node, v_state.node_epoch, v_state.node_epoch - 1);
  end if;
  perform set_config('hwqueue.node', p_node::text, true),
    set_config('hwqueue.node_epoch', v_state.node_epoch::text, true);
  return v_state.node_epoch;
end
$$;
