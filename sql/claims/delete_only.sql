-- Deletes an entry, if it is the only one, in the try that locked it: what one transaction locks and another deletes, if only its parent, is told by
-- a multixact, whose index entries Postgres does not mark as dead before the next vacuum.
-- Locks: it is held by the caller. Raises: nothing. Idempotent: no.
create or replace function hwqueue.delete_only(p_places tid[]) returns hwqueue.ready
language plpgsql volatile
as $$
declare
  v_entry hwqueue.ready;
begin
  if cardinality(p_places) = 1 then
    delete from hwqueue.ready r where r.ctid = p_places[1] returning r.* into v_entry;
  end if;
  return v_entry;
end
$$;

-- Of places of locked entries those before the first that is another's by now: its entry was moved (give_target).
-- Locks: they are held by the caller. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.not_moved(inout places tid[], out some_moved boolean)
language plpgsql volatile
as $$
declare
  v_first_moved bigint;
begin
  select p.n into v_first_moved from unnest(places) with ordinality p(place, n)
  where not exists (select from hwqueue.ready r where r.ctid = p.place) order by p.n limit 1;
  some_moved := found;
  if found then
    places := places[1 : v_first_moved - 1];
  end if;
end
$$;
