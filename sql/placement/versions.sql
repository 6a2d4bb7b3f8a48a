-- Versions and version ranges, for the operators version and semver of label expressions.
--
-- "version" follows HashiCorp's go-version. "semver" follows the order of SemVer 2.0 (section 11) and
-- has no "~>". A range is a list of bounds, separated by commas, that must all hold: ">= 1.2, < 2".
-- This raises nothing, because label_holds calls it while it judges nodes: what is malformed meets nothing.

-- Whether a version meets every bound of a range. p_kind: version, semver, or order: the order alone, as of
-- any two versions. A version is one if it is in the range of itself.
-- Each is read as its segments, without the zeros at the end, and its pre-release as a list that compares as
-- SemVer says: numbers before words, by value; a release after its pre-releases. Build metadata does not
-- count.
create or replace function hwqueue.version_in_range(p_version text, p_range text, p_kind text) returns boolean
language plpgsql immutable parallel safe
as $$
declare
  v_part record;
  v_match text[];
  v_pre text;  -- '' of a release
  v_segments numeric[];  -- three at least
  v_key numeric[];
  v_pre_key text[];
  v_own record;  -- the same of the version
  v_order int;
begin
  for v_part in
    select '' as op, p_version as version
    union all
    select m[1], m[2] from unnest(string_to_array(left(p_range, 1025), ',')) part
    left join lateral regexp_match(part,
      '^[[:space:]]*(=|!=|>=|<=|>|<|~>|)[[:space:]]*([^[:space:]]+)[[:space:]]*$') m on true
  loop
    v_match := regexp_match(left(v_part.version, 257), '^v?([0-9]{1,18}(?:[.][0-9]{1,18})*)'
      '(-?[A-Za-z~][0-9A-Za-z~-]*(?:[.][0-9A-Za-z~-]+)*|-[0-9A-Za-z~-]+(?:[.][0-9A-Za-z~-]+)*)?'
      '(?:[+][0-9A-Za-z~.-]+)?$');
    if v_match is null or length(v_part.version) > 256 or p_kind = 'semver'
      and (v_match[2] ~ '^[^-]' or v_part.op = '~>') then  -- go-version needs no hyphen
      return false;
    end if;
    v_pre := regexp_replace(coalesce(v_match[2], ''), '^-', '');
    v_segments := string_to_array(v_match[1], '.');
    v_segments := v_segments || array_fill(0::numeric, array[greatest(0, 3 - cardinality(v_segments))]);
    v_key := string_to_array(regexp_replace(v_match[1], '(?:[.]0+)+$', ''), '.');
    v_pre_key := case when v_pre = '' then '{z}' else array(
      select case when i ~ '^[0-9]+$' then 'a' || lpad(length(ltrim(i, '0'))::text, 3, '0') || ltrim(i, '0')
        else 'b' || i end
      from unnest(string_to_array(v_pre, '.')) with ordinality u(i, n) order by n) end;
    if v_own is null then
      select v_segments as segments, v_pre as pre, v_key as key, v_pre_key as pre_key into v_own;
      continue;
    end if;
    v_order := case when v_own.key <> v_key then case when v_own.key < v_key then -1 else 1 end
      when v_own.pre_key = v_pre_key then 0
      when v_own.pre_key collate "C" < v_pre_key collate "C" then -1 else 1 end;
    if not (case
      when v_part.op in ('', '=') then v_order = 0
      when v_part.op = '!=' then v_order <> 0
      -- go-version: a pre-release is compared only with a pre-release of the same segments
      when p_kind = 'version' and v_own.pre <> '' and (v_pre = '' or v_own.segments <> v_segments) then false
      when v_part.op = '>' then v_order > 0
      when v_part.op = '>=' then v_order >= 0
      when v_part.op = '<' then v_order < 0
      when v_part.op = '<=' then v_order <= 0
      -- "~> 1.2.3": at least 1.2.3, and equal in all but the last segment of the bound
      else not (v_pre <> '' and v_own.pre = '') and v_order >= 0
        and cardinality(v_own.segments) >= cardinality(v_segments) and
        v_own.segments[1 : cardinality(string_to_array(v_match[1], '.')) - 1]
          = v_segments[1 : cardinality(string_to_array(v_match[1], '.')) - 1]
      end) then
      return false;
    end if;
  end loop;
  return p_range <> '';
end
$$;
