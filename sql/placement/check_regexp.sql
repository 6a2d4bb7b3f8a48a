-- Refuses patterns that Postgres could run, or compile, for ever (it cannot time one out), and those that are no patterns.

-- Reads a pattern without compiling it, character by character. danger: why it is refused, null when it is
-- not. size: how long it is with every bound written out, since a bound repeats the atom or group before it;
-- of no meaning for a dangerous one.
create or replace function hwqueue.read_regexp(p_pattern text, out danger text, out size int)
language plpgsql immutable
as $$
declare
  v_at int := 1;
  v_char text;
  v_bound text[];
  v_times int;
  v_last int := 0;            -- of its last atom
  v_has_bound boolean := false;
  v_last_has_bound boolean := false;
  v_outer_sizes int[] := '{}'::int[];
  v_outer_bounds boolean[] := '{}'::boolean[];
begin
  size := 0;  -- of the group that is being read, written out
  if length(p_pattern) > 200 then
    danger := 'longer than 200 characters';
  elsif p_pattern ~ '^[*][*][*]' then
    danger := 'a director (***)';
  end if;
  while danger is null and v_at <= length(p_pattern) loop
    v_char := substr(p_pattern, v_at, 1);
    v_last_has_bound := v_last_has_bound and v_char = '{';
    if v_char = E'\\' then
      if substr(p_pattern, v_at + 1, 1) ~ '[0-9]' then
        danger := 'a back-reference or octal escape';
      end if;
      v_last := 1;
      v_at := v_at + 2;
    elsif v_char = '[' then
      -- up to the closing bracket: not one that comes first, is escaped, or belongs to [: :], [. .] or [= =]
      v_bound := regexp_match(substr(p_pattern, v_at), E'^\\[\\^?\\]?(?:\\\\.|\\[:[^:]*:\\]|\\[\\.[^.]*\\.\\]|\\[=[^=]*=\\]|[^]\\\\])*\\]');
      if v_bound is null then
        danger := 'a bracket that does not close';
      end if;
      v_last := 1;
      v_at := v_at + length(v_bound[1]);
    elsif v_char = '(' then
      if substr(p_pattern, v_at + 1, 1) = '?' then
        danger := 'lookaround or another (? construct';
      end if;
      v_outer_sizes := v_outer_sizes || size;
      v_outer_bounds := v_outer_bounds || v_has_bound;
      size := 0;
      v_last := 0;
      v_has_bound := false;
      v_at := v_at + 1;
      continue;
    elsif v_char = ')' and v_outer_sizes <> '{}' then
      v_last := size;
      v_last_has_bound := v_has_bound;
      size := v_outer_sizes[cardinality(v_outer_sizes)];
      v_has_bound := v_has_bound or v_outer_bounds[cardinality(v_outer_bounds)];
      v_outer_sizes := trim_array(v_outer_sizes, 1);
      v_outer_bounds := trim_array(v_outer_bounds, 1);
      v_at := v_at + 1;
    elsif v_char = '{' then
      v_bound := regexp_match(substr(p_pattern, v_at), '^([{]([0-9]{1,9})(?:(,)([0-9]{0,9}))?[}])');
      v_times := greatest(v_bound[2]::int, nullif(v_bound[4], '')::int)
                 + case when v_bound[3] = ',' and v_bound[4] = '' then 1 else 0 end;
      if v_bound is null then
        danger := 'a { that is no bound';
      elsif v_times > 32 then
        danger := 'a bound above 32';
      elsif v_last_has_bound then
        danger := 'a bound inside a bounded group';
      end if;
      v_last := v_last * greatest(v_times - 1, 0);
      v_has_bound := true;
      v_at := v_at + length(v_bound[1]);
    else
      v_last := 1;
      v_at := v_at + 1;
    end if;
    size := size + v_last;
    if size > 500 then
      danger := 'more than 500 characters with its bounds written out';
    end if;
  end loop;
end
$$;

-- What a regexp or version expression counts for: its characters, of a regexp with bounds these written out;
-- 0 for one that check_regexp refuses.
create or replace function hwqueue.pattern_size(p_expr jsonb) returns int
language sql immutable
as $$
  select case
    when p_expr ->> 'op' = 'regexp' then (
      select case when r.danger is null then greatest(r.size, length(p_expr #>> '{values,0}')) else 0 end
      from hwqueue.read_regexp(p_expr #>> '{values,0}') r)
    else length(p_expr #>> '{values,0}') end
$$;

-- Raises: QHC03.
create or replace function hwqueue.check_regexp(p_pattern text, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_why text := (hwqueue.read_regexp(p_pattern)).danger;
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
