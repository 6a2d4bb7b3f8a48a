-- Classes that are new, and the terms that select them.

-- Writes down which terms select the classes of a batch. A term that is written at this moment finds them itself, or this call's mark.
-- Without index scans: a young term table would be read by its key, all of it for each class.
-- Idempotent: yes; two calls at once may write the same row twice, which does no harm.
create or replace function hwqueue.note_selected(p_class_ids bigint[], p_shard int) returns void
language plpgsql volatile set enable_bitmapscan = on set enable_indexscan = off
as $$
begin
  perform 1 from hwqueue.term t where t.shard_id = p_shard limit 1;
  if found then
    insert into hwqueue.class_term (shard_id, class_id, term_id)
    select p_shard, c.class_id, t.term_id
    from hwqueue.placement_class c
    join hwqueue.term t on t.shard_id = p_shard and t.anchors && hwqueue.selected_anchors(c) and hwqueue.term_selects(t.spec, c)
    where c.shard_id = p_shard and c.class_id = any (p_class_ids)
      and not exists (select 1 from hwqueue.class_term m
                      where m.shard_id = p_shard and m.class_id = c.class_id and m.term_id = t.term_id);
  end if;
end
$$;

-- Whether any term selects a class.
create or replace function hwqueue.is_selected(p_class_id bigint, p_shard int) returns boolean
language sql stable
as $$ select exists (select 1 from hwqueue.class_term m where m.shard_id = p_shard and m.class_id = p_class_id) $$;
