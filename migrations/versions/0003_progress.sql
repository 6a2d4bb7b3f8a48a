-- How far claims have come, as their handlers say.

create table hwqueue.progress (
  shard_id int not null,
  lease_id uuid not null,
  claim_token bigint not null,
  reported_at timestamptz not null,
  fraction double precision,
  done bigint,
  total bigint,
  message text,
  primary key (shard_id, lease_id, claim_token)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.progress is
  'how far a claim has come, as its handler said last; it stays when the claim ends, until the lease goes';
comment on column hwqueue.progress.fraction is 'from 0 to 1; null: not known';
comment on column hwqueue.progress.done is 'of total, in a unit of the handler''s; null: it does not count';

-- returns a column more
drop function if exists hwqueue.get_lease(uuid, int);
