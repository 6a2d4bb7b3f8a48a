-- Creates a queue. The same name with the same policy is a no-op, so that deployments can call it every time.
-- With retain_completed 0 a lease is gone when it completes, and its result with it; one with an idempotency key stays until prune takes it.
-- Locks: the queue's unique name. Raises: QHA01, QHQ02 exists with another policy, QHA03. Idempotent: yes.
create or replace function hwqueue.create_queue(p_queue text, p_policy jsonb default '{}', p_shard int default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_row hwqueue.queue;
  v_existing hwqueue.queue;
begin
  perform hwqueue.require_all_tenants();
  perform hwqueue.check_name(p_queue, 'queue'), hwqueue.check_shard(p_shard);
  v_row := hwqueue.apply_policy(hwqueue.default_policy(), coalesce(p_policy, '{}'));
  v_row.shard_id := p_shard;
  v_row.queue_id := nextval('hwqueue.queue_queue_id_seq');
  v_row.name := p_queue;
  v_row.created_at := hwqueue.clock();
  insert into hwqueue.queue overriding system value select v_row.* on conflict do nothing;
  if found then
    insert into hwqueue.queue_signal (shard_id, queue_id) values (p_shard, v_row.queue_id);
    perform hwqueue.write_first_mark(v_row.queue_id, 0, 0, p_shard);
    perform hwqueue.note_event('queue_created', format('queue %s is created', p_queue), p_shard, nullif(p_policy, '{}'), p_queue => p_queue);
    return;
  end if;
  v_existing := hwqueue.find_queue(p_queue, p_shard);
  if hwqueue.queue_policy(v_existing) <> hwqueue.queue_policy(v_row) then
    perform hwqueue.refuse('QHQ02', format('queue %s exists with another policy', p_queue),
      jsonb_build_object('queue', p_queue, 'policy', hwqueue.queue_policy(v_existing)),
      'change it with set_queue_policy, or create it with the policy it has');
  end if;
end
$$;
