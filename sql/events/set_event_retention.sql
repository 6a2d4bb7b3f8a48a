-- Sets for how many whole days events are kept, 1 to 14, and returns what it was.
-- Older ones go with the next prune of the shard.
-- Locks: the shard's row. Raises: QHA01, QHA03.
create or replace function hwqueue.set_event_retention(p_days int, p_shard int default 0) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  v_was int;
begin
  perform hwqueue.require_all_tenants(), hwqueue.check_shard(p_shard);
  perform hwqueue.check_range(p_days, 'p_days', 1, 14,
    'events go round a ring of 16 days; copy to an archive what is to be kept for longer');
  select s.event_days into v_was from hwqueue.shard s where s.shard_id = p_shard for no key update;
  if v_was <> p_days then
    update hwqueue.shard s set event_days = p_days where s.shard_id = p_shard;
    perform hwqueue.note_event('event_retention_set', format('events are kept for %s days', p_days), p_shard,
      jsonb_build_object('from', v_was, 'to', p_days));
  end if;
  return v_was;
end
$$;
