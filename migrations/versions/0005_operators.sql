-- For operators. The functions and views come from sql/.

-- HTTP API: who may call it, and reads that page and filter.
-- Of a token's secret only the sha256 is here. Tenant null: all of them. A name is never given twice, so that what its
-- bearer did can be told for ever.
create table hwqueue.api_token (
  shard_id int not null,
  name text not null,
  secret_sha256 bytea not null check (octet_length(secret_sha256) = 32),
  role text not null check (role in ('producer', 'viewer', 'operator', 'admin')),
  tenant text,
  created_at timestamptz not null,
  created_by text not null,
  expires_at timestamptz,
  used_at timestamptz,
  revoked_at timestamptz,
  revoked_by text,
  primary key (shard_id, name)
);
create unique index api_token_secret on hwqueue.api_token (shard_id, secret_sha256);
comment on column hwqueue.api_token.used_at is 'to the hour: a row that is updated at every request would be read ever slower';

drop function if exists hwqueue.list_leases(text, text, text, int, uuid, int);
drop function if exists hwqueue.list_nodes(text, int);
