-- The one way to fail: a code of class QH, a message that starts lower-case, detail as JSON, what to do as hint.
-- Locks: none. Raises: p_code, always. Idempotent: yes.
create or replace function hwqueue.refuse(p_code text, p_message text, p_detail jsonb, p_hint text) returns void
language plpgsql volatile
as $$
begin
  raise exception using
    errcode = p_code,
    message = p_message,
    detail = coalesce(jsonb_strip_nulls(p_detail), '{}'::jsonb)::text,
    hint = p_hint;
end
$$;
