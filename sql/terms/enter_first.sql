-- Of locked entries that score alike: the first alone, if its class is to be checked, it may join what runs and waits for no better node;
-- else those before the next one that is to be checked. kept is empty when the first is blocked; blocked: its class; is_new: a term has to
-- be published first.
-- Locks: as enter_terms. Raises: nothing. Idempotent: no.
create or replace function hwqueue.enter_first(p_places tid[], p_checked bigint[], p_node uuid, p_now timestamptz, p_shard int,
                                               out kept tid[], out counted jsonb, out blocked bigint[], out is_new boolean)
language plpgsql volatile
as $$
declare
  v_node hwqueue.node;
  v_class hwqueue.placement_class;
  v_entry hwqueue.ready;
  v_entered record;
begin
  blocked := '{}';
  is_new := false;
  kept := '{}';
  for v_index in 1 .. cardinality(p_places) loop
    select r.* into v_entry from hwqueue.ready r where r.ctid = p_places[v_index];
    if cardinality(p_checked) > 200 or v_entry.class_id = any (p_checked) then
      exit when v_index > 1;
      v_node := hwqueue.read_node(p_node, p_shard);
      select c.* into v_class from hwqueue.placement_class c where c.shard_id = p_shard and c.class_id = v_entry.class_id;
      if hwqueue.waits_until(v_class, v_node, v_entry.eligible_at, p_now, p_shard) is null then
        v_entered := hwqueue.enter_terms(v_class, v_entry.lease_id, v_node, p_now, p_shard);
        counted := v_entered.counted;
        is_new := coalesce(v_entered.reason = 'unpublished', false);
        if v_entered.reason is null then
          kept := p_places[1 : 1];
          return;
        end if;
      end if;
      blocked := array[v_entry.class_id];
      return;
    end if;
    kept := kept || p_places[v_index];
  end loop;
end
$$;
