-- What handlers logged: a row for each line, the last 1,000 lines of a claim.
create table hwqueue.attempt_log (
  shard_id int not null,
  lease_id uuid not null,
  claim_token bigint not null,
  line int not null,
  attempt smallint not null,
  logged_at timestamptz not null,
  level text not null,
  message text not null,
  fields jsonb,
  primary key (shard_id, lease_id, claim_token, line)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05);
comment on table hwqueue.attempt_log is
  'what the handler of a claim logged, its last 1,000 lines; they stay when the claim ends, until the '
  'lease goes';
comment on column hwqueue.attempt_log.line is
  'the number of the line in its claim, from 1; a gap means lines that were dropped';
comment on column hwqueue.attempt_log.logged_at is 'by the clock of the node';
