-- Refuses patterns that Postgres could run for ever on (it cannot time one out), and those that do not compile.
-- Locks: none. Raises: QHC03. Idempotent: yes.
create or replace function hwqueue.check_regexp(p_pattern text, p_field text) returns void
language plpgsql immutable
as $$
declare
  -- what is left when escapes and bracket expressions are gone: only then do (, ) and { mean anything
  v_bare text := regexp_replace(regexp_replace(p_pattern, '\\.', '', 'g'), '\[\^?\]?[^\]]*\]', 'x', 'g');
  v_next text;
  v_why text;
begin
  if length(p_pattern) > 200 then
    v_why := 'longer than 200 characters';
  elsif p_pattern ~ '\\[1-9]' then
    v_why := 'a back-reference';
  elsif p_pattern ~ '^\*\*\*' or v_bare ~ '\(\?' then
    v_why := 'a director, lookaround or other (? construct';
  elsif exists (select 1 from regexp_matches(v_bare, '\{(\d+)(?:,(\d*))?\}', 'g') m
                where greatest(m[1]::numeric, nullif(m[2], '')::numeric) > 32) then
    v_why := 'a bound above 32';
  else
    -- fold groups from the inside out; a bound on a group that holds a bound multiplies
    loop
      if v_bare ~ '\([^()]*\{[^()]*\)\{' then
        v_why := 'a bound inside a bounded group';
        exit;
      end if;
      v_next := regexp_replace(v_bare, '\(([^()]*)\)', '\1', 'g');
      exit when v_next = v_bare;
      v_bare := v_next;
    end loop;
  end if;
  if v_why is null then
    begin
      perform '' ~ p_pattern;
      return;
    exception when invalid_regular_expression then
      v_why := sqlerrm;
    end;
  end if;
  perform hwqueue.refuse('QHC03', format('%s is not an accepted pattern: %s', p_field, v_why),
    jsonb_build_object('field', p_field),
    'use a POSIX pattern of at most 200 characters without back-references, (? constructs, nested bounds or bounds over 32');
end
$$;
