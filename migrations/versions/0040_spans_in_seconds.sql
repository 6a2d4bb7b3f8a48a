-- == Spans that were stored in days ==

update hwqueue.queue q
set claim_timeout = make_interval(secs => extract(epoch from q.claim_timeout)::double precision),
  heartbeat_interval = make_interval(secs => extract(epoch from q.heartbeat_interval)::double precision),
  poll_interval = make_interval(secs => extract(epoch from q.poll_interval)::double precision),
  ageing_step = make_interval(secs => extract(epoch from q.ageing_step)::double precision),
  reap_grace = make_interval(secs => extract(epoch from q.reap_grace)::double precision),
  retain_completed = make_interval(secs => extract(epoch from q.retain_completed)::double precision),
  retain_failed = make_interval(secs => extract(epoch from q.retain_failed)::double precision),
  patience = make_interval(secs => extract(epoch from q.patience)::double precision);
update hwqueue.shard s
set node_expiry = make_interval(secs => extract(epoch from s.node_expiry)::double precision);
alter table hwqueue.shard alter column node_expiry set default '168 hours';

-- they have one more argument
drop function if exists hwqueue.create_token(text, bytea, text, text, timestamptz, int);
drop function if exists hwqueue.attest_node(uuid, text, timestamptz, boolean, int);
drop function if exists hwqueue.check_expiry(timestamptz, timestamptz);
