-- The one thing to say about a pending class, in the order of what must be put right first.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.pending_headline(p_matching int, p_cordoned int, p_silent int, p_with_room int, p_free int, p_code text, p_message text,
  p_near int, p_meeting int, p_node text, p_conflict text, p_registered int, p_open int, p_live int, p_paused_at timestamptz, p_waits interval,
  out code text, out message text)
language plpgsql stable
as $$
begin
  if p_paused_at is not null then
    code := 'queue_paused';
    message := format('the queue is paused since %s', p_paused_at);
  elsif p_registered = 0 then
    code := 'no_node_supports_class';
    message := 'no node is registered';
  elsif p_matching = 0 and p_open = 0 then
    code := case when p_live > 0 then 'node_draining' else 'node_not_live' end;
    message := format('of %s registered nodes %s are live, and all of these are cordoned', p_registered, p_live);
  elsif p_matching = 0 and p_cordoned > 0 then
    code := 'node_draining';
    message := format('%s nodes would do, but are cordoned', p_cordoned);
  elsif p_matching = 0 and p_silent > 0 then
    code := 'node_not_live';
    message := format('%s nodes would do, but give no sign of life', p_silent);
  elsif p_matching = 0 then
    code := p_code;
    message := case
      when p_near > 0 then format('%s live nodes would do but for one thing: on %s, %s', p_near, p_node, p_message)
      when p_meeting = 0 then format('no live node will do: on %s, %s', p_node, p_message)
      else format('no live node has all that is asked, and only %s have this: on %s, %s', p_meeting, p_node, p_message) end;
  elsif p_with_room = 0 then
    code := 'nodes_support_but_contended';
    message := format('%s nodes match, and none has room now', coalesce(p_matching::text, 'some'));
  elsif p_free = 0 then
    code := p_conflict;
    message := format('%s nodes have room now, and what other leases do forbids all of them', p_with_room);
  elsif p_waits > '0' then
    code := 'waiting_for_preferred';
    message := format('%s nodes could take it now; the oldest may wait %s s more for one that it prefers', p_free, round(extract(epoch from p_waits), 1));
  else
    message := format('%s nodes could take it now', p_free);
  end if;
end
$$;
