-- Of locked entries that score alike: the first alone, if its class is to be checked and it may join what runs; else those before the next
-- one that is to be checked. kept is empty when the first is blocked; blocked: its class; is_new: a term has to be published first.
-- Locks: as enter_terms. Raises: nothing. Idempotent: no.
create or replace function hwqueue.enter_first(p_places tid[], p_mutual bigint[], p_node uuid, p_now timestamptz, p_shard int,
                                               out kept tid[], out counted jsonb, out blocked bigint[], out is_new boolean)
language plpgsql volatile
as $$
declare
  v_entry hwqueue.ready;
  v_entered record;
begin
  blocked := '{}';
  is_new := false;
  kept := '{}';
  for v_index in 1 .. cardinality(p_places) loop
    select r.* into v_entry from hwqueue.ready r where r.ctid = p_places[v_index];
    if cardinality(p_mutual) > 200 or v_entry.class_id = any (p_mutual) then
      exit when v_index > 1;
      v_entered := hwqueue.enter_terms(v_entry.class_id, v_entry.lease_id, hwqueue.read_node(p_node, p_shard), p_now, p_shard);
      counted := v_entered.counted;
      if v_entered.reason is null then
        kept := p_places[1 : 1];
      else
        blocked := array[v_entry.class_id];
        is_new := v_entered.reason = 'unpublished';
      end if;
      exit;
    end if;
    kept := kept || p_places[v_index];
  end loop;
end
$$;
