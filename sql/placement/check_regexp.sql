-- Refuses patterns that Postgres could run, or compile, for ever (it cannot time one out), and those that are no patterns.

-- Why a pattern is refused before it is compiled; null when it is not. Reads it once, character by character, and adds up how
-- long it is with every bound written out: a bound repeats the atom or group before it.
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.regexp_danger(p_pattern text) returns text
language plpgsql immutable
as $$
declare
  v_at int := 1;
  v_char text;
  v_bound text[];
  v_times int;
  v_size int := 0;            -- of the group that is being read, written out
  v_last int := 0;            -- of its last atom
  v_has_bound boolean := false;
  v_last_has_bound boolean := false;
  v_outer_sizes int[] := '{}'::int[];
  v_outer_bounds boolean[] := '{}'::boolean[];
begin
  if length(p_pattern) > 200 then
    return 'longer than 200 characters';
  elsif p_pattern ~ '^[*][*][*]' then
    return 'a director (***)';
  end if;
  while v_at <= length(p_pattern) loop
    v_char := substr(p_pattern, v_at, 1);
    v_last_has_bound := v_last_has_bound and v_char = '{';
    if v_char = E'\\' then
      if substr(p_pattern, v_at + 1, 1) ~ '[0-9]' then
        return 'a back-reference or octal escape';
      end if;
      v_last := 1;
      v_at := v_at + 2;
    elsif v_char = '[' then
      -- up to the closing bracket: not one that comes first, is escaped, or belongs to [: :], [. .] or [= =]
      v_bound := regexp_match(substr(p_pattern, v_at), E'^\\[\\^?\\]?(?:\\\\.|\\[:[^:]*:\\]|\\[\\.[^.]*\\.\\]|\\[=[^=]*=\\]|[^]\\\\])*\\]');
      if v_bound is null then
        return 'a bracket that does not close';
      end if;
      v_last := 1;
      v_at := v_at + length(v_bound[1]);
    elsif v_char = '(' then
      if substr(p_pattern, v_at + 1, 1) = '?' then
        return 'lookaround or another (? construct';
      end if;
      v_outer_sizes := v_outer_sizes || v_size;
      v_outer_bounds := v_outer_bounds || v_has_bound;
      v_size := 0;
      v_last := 0;
      v_has_bound := false;
      v_at := v_at + 1;
      continue;
    elsif v_char = ')' and v_outer_sizes <> '{}' then
      v_last := v_size;
      v_last_has_bound := v_has_bound;
      v_size := v_outer_sizes[cardinality(v_outer_sizes)];
      v_has_bound := v_has_bound or v_outer_bounds[cardinality(v_outer_bounds)];
      v_outer_sizes := trim_array(v_outer_sizes, 1);
      v_outer_bounds := trim_array(v_outer_bounds, 1);
      v_at := v_at + 1;
    elsif v_char = '{' then
      v_bound := regexp_match(substr(p_pattern, v_at), '^([{]([0-9]{1,9})(?:(,)([0-9]{0,9}))?[}])');
      if v_bound is null then
        return 'a { that is no bound';
      end if;
      v_times := greatest(v_bound[2]::int, nullif(v_bound[4], '')::int) + case when v_bound[3] = ',' and v_bound[4] = '' then 1 else 0 end;
      if v_times > 32 then
        return 'a bound above 32';
      elsif v_last_has_bound then
        return 'a bound inside a bounded group';
      end if;
      v_last := v_last * greatest(v_times - 1, 0);
      v_has_bound := true;
      v_at := v_at + length(v_bound[1]);
    else
      v_last := 1;
      v_at := v_at + 1;
    end if;
    v_size := v_size + v_last;
    if v_size > 500 then
      return 'more than 500 characters with its bounds written out';
    end if;
  end loop;
  return null;
end
$$;

-- Locks: none. Raises: QHC03. Idempotent: yes.
create or replace function hwqueue.check_regexp(p_pattern text, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_why text := hwqueue.regexp_danger(p_pattern);
begin
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
