-- Refuses a normal placement with parts that claims of this version cannot judge: ignoring them would weaken what was asked for.
-- Locks: none. Raises: QHC05, naming the class. Idempotent: yes.
create or replace function hwqueue.refuse_unserved(p_placement jsonb, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_part text;
begin
  if not p_placement ?| array['tolerate', 'isolation'] and not jsonb_path_exists(p_placement,
       'strict $.** ? (exists(@.trust))', '{}', true) then
    return;  -- what most are
  end if;
  select p.part into v_part
  from (select k as part from unnest(array['tolerate', 'isolation']) k where p_placement ? k
        union all
        select 'require' where hwqueue.asks_unserved(p_placement -> 'require')
        union all
        select 'prefer' from jsonb_array_elements(p_placement -> 'prefer') e where hwqueue.asks_unserved(e.value -> 'when')) p limit 1;
  if found then
    perform hwqueue.refuse('QHC05', format('%s.%s asks for something that this version does not serve', p_field, v_part),
      jsonb_build_object('field', p_field || '.' || v_part,
        'class', case when v_part = 'isolation' then coalesce(p_placement #> '{isolation,cpu}', p_placement #> '{isolation,gpu}') end),
      'not served: tolerate, spread, isolation, expressions on trust, lease, service, leases; leave them out');
  end if;
end
$$;

-- Whether a list of normal expressions has one that claims cannot judge.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.asks_unserved(p_exprs jsonb) returns boolean
language plpgsql immutable
as $$
begin
  return exists (
    select 1 from jsonb_array_elements(p_exprs) e
    where e.value ? 'trust'
       or e.value ? 'any' and exists (select 1 from jsonb_array_elements(e.value -> 'any') b where hwqueue.asks_unserved(b.value)));
end
$$;
