-- Versions and version ranges, for the operators version and semver of label expressions.
-- "version" follows HashiCorp's go-version. "semver" follows the order of SemVer 2.0 (section 11) and
-- has no "~>". A range is a list of bounds, separated by commas, that must all hold: ">= 1.2, < 2".
-- normalise_label_expr refuses malformed ranges at the spawn. These functions raise nothing:
-- label_holds calls them while it judges nodes, and a malformed version simply meets no range.
-- Read version_in_range first, then version_meets and compare_versions.

-- Returns the numeric segments of a version, at least three. Null when the text is no version.
create or replace function hwqueue.version_segments(p_version text) returns numeric[]
language sql immutable parallel safe
as $$
  select string_to_array(m[1], '.')::numeric[]
    || case cardinality(string_to_array(m[1], '.')) when 1 then '{0,0}' when 2 then '{0}' else '{}'
      end::numeric[]
  from regexp_match(left(p_version, 257),
    '^v?([0-9]{1,18}(?:[.][0-9]{1,18})*)(?:-?[A-Za-z~][0-9A-Za-z~-]*'
    '(?:[.][0-9A-Za-z~-]+)*|-[0-9A-Za-z~-]+(?:[.][0-9A-Za-z~-]+)*)?(?:[+][0-9A-Za-z~.-]+)?$') m
  where length(p_version) <= 256 and m is not null
$$;

-- Returns the pre-release part of a version, or ''.
create or replace function hwqueue.version_prerelease(p_version text) returns text
language sql immutable parallel safe
as $$ select coalesce((regexp_match(p_version, '^v?[0-9]+(?:[.][0-9]+)*-?([^+]*)'))[1], '') $$;

-- Returns -1, 0 or 1, the order of two versions in SemVer. Build metadata does not count.
create or replace function hwqueue.compare_versions(p_left text, p_right text) returns int
language plpgsql immutable parallel safe
as $$
declare
  v_left numeric[] := hwqueue.version_segments(p_left);
  v_right numeric[] := hwqueue.version_segments(p_right);
  v_left_pre text[];
  v_right_pre text[];
  v_result int;
begin
  for v_index in 1 .. greatest(cardinality(v_left), cardinality(v_right)) loop
    v_result := sign(coalesce(v_left[v_index], 0) - coalesce(v_right[v_index], 0));
    if v_result <> 0 then
      return v_result;
    end if;
  end loop;
  v_left_pre := string_to_array(hwqueue.version_prerelease(p_left), '.');
  v_right_pre := string_to_array(hwqueue.version_prerelease(p_right), '.');
  if v_left_pre = v_right_pre then
    return 0;
  elsif v_left_pre = '{}' then
    return 1;  -- a release comes after its pre-releases
  elsif v_right_pre = '{}' then
    return -1;
  end if;
  for v_index in 1 .. least(cardinality(v_left_pre), cardinality(v_right_pre)) loop
    v_result := case
      when v_left_pre[v_index] = v_right_pre[v_index] then 0
      when v_left_pre[v_index] ~ '^[0-9]+$' and v_right_pre[v_index] ~ '^[0-9]+$'
        then sign(v_left_pre[v_index]::numeric - v_right_pre[v_index]::numeric)
      when v_left_pre[v_index] ~ '^[0-9]+$' then -1
      when v_right_pre[v_index] ~ '^[0-9]+$' then 1
      when v_left_pre[v_index] collate "C" > v_right_pre[v_index] collate "C" then 1
      else -1 end;
    if v_result <> 0 then
      return v_result;
    end if;
  end loop;
  return sign(cardinality(v_left_pre) - cardinality(v_right_pre));
end
$$;

-- Whether a version meets one bound, for example op '>=' and bound '1.2'.
create or replace function hwqueue.version_meets(p_version text, p_op text, p_bound text, p_kind text)
returns boolean
language sql immutable parallel safe
as $$
  select case
    when p_op in ('', '=') then hwqueue.compare_versions(p_version, p_bound) = 0
    when p_op = '!=' then hwqueue.compare_versions(p_version, p_bound) <> 0
    -- go-version: a pre-release is compared only with a pre-release of the same segments
    when p_kind = 'version' and f.version_pre <> ''
      and (f.bound_pre = '' or hwqueue.version_segments(p_version) <> hwqueue.version_segments(p_bound))
      then false
    when p_op = '>' then hwqueue.compare_versions(p_version, p_bound) > 0
    when p_op = '>=' then hwqueue.compare_versions(p_version, p_bound) >= 0
    when p_op = '<' then hwqueue.compare_versions(p_version, p_bound) < 0
    when p_op = '<=' then hwqueue.compare_versions(p_version, p_bound) <= 0
    -- "~> 1.2.3": at least 1.2.3, and equal in all but the last segment of the bound
    else not (f.bound_pre <> '' and f.version_pre = '')
      and hwqueue.compare_versions(p_version, p_bound) >= 0
      and cardinality(hwqueue.version_segments(p_version)) >= cardinality(hwqueue.version_segments(p_bound))
      and (hwqueue.version_segments(p_version))[1 : f.written - 1]
        = (hwqueue.version_segments(p_bound))[1 : f.written - 1]
    end
  from (select hwqueue.version_prerelease(p_version) as version_pre,
               hwqueue.version_prerelease(p_bound) as bound_pre,
               cardinality(string_to_array((regexp_match(p_bound, '^v?([0-9.]+)'))[1], '.')) as written) f
$$;

-- Whether a text is a version of that kind. SemVer requires the hyphen before a pre-release, go-version
-- does not.
create or replace function hwqueue.is_version(p_version text, p_kind text) returns boolean
language sql immutable parallel safe
as $$
  select hwqueue.version_segments(p_version) is not null
    and (p_kind <> 'semver' or p_version !~ '^v?[0-9.]+[A-Za-z~]')
$$;

-- Whether a label's text meets every bound of a range. A malformed version or range meets nothing.
create or replace function hwqueue.version_in_range(p_version text, p_range text, p_kind text) returns boolean
language sql immutable parallel safe
as $$
  select hwqueue.is_version(p_version, p_kind)
    and bool_and(coalesce(
      hwqueue.is_version(m[2], p_kind) and not (p_kind = 'semver' and m[1] = '~>')
      and hwqueue.version_meets(p_version, m[1], m[2], p_kind), false))
  from unnest(string_to_array(left(p_range, 1025), ',')) part
  left join lateral regexp_match(part,
      '^[[:space:]]*(=|!=|>=|<=|>|<|~>|)[[:space:]]*([^[:space:]]+)[[:space:]]*$') m on true
$$;
