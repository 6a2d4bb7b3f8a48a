-- Refuses a version range that could hold for no version because it cannot be read. Raises: QHC03.
create or replace function hwqueue.check_version_range(p_range text, p_kind text, p_field text) returns void
language plpgsql immutable
as $$
declare
  v_part text;
  v_match text[];
begin
  -- an empty range would split into no bound at all
  foreach v_part in array coalesce(nullif(string_to_array(left(p_range, 1025), ','), '{}'), array['']) loop
    v_match := regexp_match(v_part, '^[[:space:]]*(=|!=|>=|<=|>|<|~>|)[[:space:]]*([^[:space:]]+)[[:space:]]*$');
    if v_match is null or not hwqueue.is_version(v_match[2], p_kind) or (p_kind = 'semver' and v_match[1] = '~>') then
      perform hwqueue.refuse('QHC03', format('%s has a bound that is no %s bound: %s', p_field, p_kind, to_json(left(v_part, 60))),
        jsonb_build_object('field', p_field),
        'write bounds like ">= 1.2, < 2"; ops are = != > >= < <=, and ~> for op version only');
    end if;
  end loop;
end
$$;
