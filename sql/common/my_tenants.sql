-- Whose tenants' things a caller may see and name. The HTTP server says for which tenant its caller is, until
-- the end of the transaction: set_config('hwqueue.tenant', 'acme', true). That narrows a caller who is
-- trusted to say it; it is no boundary between SQL logins, as each of them may set anything. Every function
-- that may meet another tenant's things asks here.

-- The tenants that the caller is for; null: all.
create or replace function hwqueue.my_tenants() returns text[]
language sql stable parallel safe
as $$ select case when current_setting('hwqueue.tenant', true) <> '' then array[current_setting('hwqueue.tenant', true)] end $$;

-- Refuses what is not the caller's tenant's. What is another's and what does not exist is refused in the same
-- words. p_index: of the element of a batch; null: no batch.
-- Raises: QHA03, always.
create or replace function hwqueue.refuse_foreign(p_what text, p_field text, p_hint text, p_index int default null) returns void
language plpgsql volatile
as $$
begin
  perform hwqueue.refuse('QHA03', format('%s%s, and the caller is for tenant %s alone', 'leases[' || p_index || ']: ', p_what,
      (select string_agg(to_json(t)::text, ', ') from unnest(hwqueue.my_tenants()) t)),
    jsonb_build_object('field', p_field, 'index', p_index), p_hint);
end
$$;

-- Refuses callers of single tenants where all tenants are shown, or concerned, at once. Asked before anything is looked up or checked, so
-- that the refusal is the same whatever the call names.
-- Raises: QHA03.
create or replace function hwqueue.require_all_tenants() returns void
language plpgsql stable
as $$
begin
  if hwqueue.my_tenants() is not null then
    perform hwqueue.refuse_foreign('this is about all tenants at once', null, 'ask as somebody who may see all tenants');
  end if;
end
$$;
