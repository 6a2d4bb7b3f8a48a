-- "1 node", "3 nodes".
create or replace function hwqueue.node_count_words(p_count int, p_kind text default '') returns text
language sql immutable parallel safe
as $$ select p_count::text || ' ' || p_kind || case when p_count = 1 then 'node' else 'nodes' end $$;

-- The one thing to say about a pending class, in the order of what must be put right first. p_unserved: what to say where no live node serves it.
create or replace function hwqueue.class_headline(p_matching int, p_cordoned int, p_silent int, p_with_room int, p_free int, p_code text, p_message text,
  p_near int, p_meeting int, p_node text, p_conflict text, p_registered int, p_open int, p_live int, p_paused_at timestamptz, p_waits interval, p_unserved text,
  out code text, out message text)
language plpgsql stable
as $$
begin
  if p_paused_at is not null then
    code := 'queue_paused';
    message := format('the queue is paused since %s', p_paused_at);
  elsif p_registered = 0 then
    code := 'no_nodes';
    message := 'no node is registered';
  elsif p_matching = 0 and p_open = 0 then
    code := case when p_live > 0 then 'node_draining' else 'node_not_live' end;
    message := case when p_live > 0 then format('%s, all cordoned', hwqueue.node_count_words(p_live, 'live '))
                    else format('%s, none with a sign of life', hwqueue.node_count_words(p_registered, 'registered ')) end;
  elsif p_matching = 0 and p_cordoned > 0 then
    code := 'node_draining';
    message := format('%s would do, but for being cordoned', hwqueue.node_count_words(p_cordoned));
  elsif p_matching = 0 and p_silent > 0 then
    code := 'node_not_live';
    message := format('%s would do, but for giving no sign of life', hwqueue.node_count_words(p_silent));
  elsif p_unserved is not null then
    code := 'no_handler';
    message := p_unserved;
  elsif p_matching = 0 then
    code := p_code;
    message := case
      when p_near > 0 then format('%s would do but for one thing: on %s, %s', hwqueue.node_count_words(p_near, 'live '), p_node, p_message)
      when p_meeting = 0 then format('no live node will do: on %s, %s', p_node, p_message)
      else format('no live node has all that is asked, and no more than %s this: on %s, %s', p_meeting, p_node, p_message) end;
  elsif p_with_room = 0 then
    code := 'nodes_support_but_contended';
    message := case when p_matching is null then 'no node has room now'
                    else format('%s could run it, but without room now', hwqueue.node_count_words(p_matching)) end;
  elsif p_free = 0 then
    code := p_conflict;
    message := format('what other leases do keeps it off %s with room', hwqueue.node_count_words(p_with_room));
  elsif p_waits > '0' then
    code := 'waiting_for_preferred';
    message := format('%s could take it now; the oldest may wait %s s more for one that it prefers', hwqueue.node_count_words(p_free), round(extract(epoch from p_waits), 1));
  else
    message := format('%s could take it now', hwqueue.node_count_words(p_free));
  end if;
end
$$;
