-- Refuses a normal placement with parts that claims of this version cannot judge: ignoring them would weaken what was asked for.
-- Locks: none. Raises: QHC05, naming the class. Idempotent: yes.
create or replace function hwqueue.refuse_unserved(p_placement jsonb, p_field text) returns void
language plpgsql immutable
as $$
begin
  if p_placement ? 'isolation' then
    perform hwqueue.refuse('QHC05', format('%s.isolation asks for something that this version does not serve', p_field),
      jsonb_build_object('field', p_field || '.isolation',
        'class', coalesce(p_placement #> '{isolation,cpu}', p_placement #> '{isolation,gpu}')), 'leave it out');
  end if;
end
$$;
