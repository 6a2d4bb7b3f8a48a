-- What callers pass as JSON objects: their keys, in one table, and the function that reads them by it.
--
-- read_object drops nulls, and returns spans as seconds: what it returns can be compared, stored, and made a
-- row of by jsonb_populate_record. docs/reference/options.md is made of the table. What is read for each
-- lease of a batch (spawn/read, retry) or at each registration of a node is faster without it.

-- The keys of a kind of object, each with [type, least, most, default]. The type is that of a reader of
-- base/json; "choice" has the words, "text" the lengths, "texts" how many and how long. A null default:
-- there is none, or it is not a constant. "any" is checked by the caller, and read_object leaves it out.
create or replace function hwqueue.known_keys(p_kind text) returns jsonb
language sql immutable parallel safe
as $$
  select case p_kind
    when 'policy' then '{"claim_timeout": ["span", "1 second", "30 days", "40 seconds"],
      "poll_interval": ["span", "0.01 second", null, "1 second"],
      "patience": ["span", "0", null, "2 seconds"], "max_attempts": ["integer", 1, 1000, 5],
      "retry": ["retry", null, null,
        {"kind": "exponential", "base": 5, "factor": 2, "max": 600, "jitter": 0.2}],
      "ageing_step": ["span", "0", null, "0"], "failure_domain": ["domain", null, null, "rack"],
      "earmarks": ["integer", 0, 1000, 1], "everywhere_tenants": ["texts", 1000, 100, []],
      "everywhere_limit": ["integer", 0, 1000, 20],
      "limits": ["texts", 2, 100, []], "max_params_bytes": ["integer", 1, 104857600, 1048576],
      "max_result_bytes": ["integer", 1, 104857600, 1048576],
      "retain_completed": ["span", "0", null, "7 days"], "retain_failed": ["span", "0", null, "30 days"],
      "tuning": ["tuning", null, null, {"window_size": 100, "probe_size": 1000, "weight_affinity": 10,
        "weight_fit": 1, "weight_spread": 1, "notify": true, "earmark_time": 600}],
      "preempt": ["preempt", null, null], "preemptible": ["preemptible", null, null]}'::jsonb
    when 'tuning' then '{"window_size": ["integer", 1, 10000], "probe_size": ["integer", 0, 100000],
      "weight_affinity": ["number", 0, 1000], "weight_fit": ["number", 0, 1000],
      "weight_spread": ["number", 0, 1000], "notify": ["boolean"],
      "earmark_time": ["span", "1 second", "30 days"]}'
    when 'preempt' then '{"enabled": ["boolean", null, null, true], "after": ["span", "0", "1 day", 5],
      "grace": ["span", "0", "1 day", 30], "hold": ["span", "1 second", "1 hour", 30],
      "most": ["integer", 1, 50, 8]}'
    when 'preemptible' then '{"min_run": ["span", "0", "30 days", 0], "max_times": ["integer", 0, 100, 3]}'
    when 'task' then '{
      "placement": ["any"], "affinity_tags": ["any"], "labels": ["labels"], "patience": ["span", "0"],
      "priority": ["integer", -32768, 32767], "max_attempts": ["integer", 1, 1000], "retry": ["retry"],
      "claim_timeout": ["span", "1 second", "30 days"], "max_run": ["span", "1 second", "366 days"]}'
    when 'step' then '{
      "priority": ["integer", -32768, 32767], "max_attempts": ["integer", 1, 1000], "retry": ["retry"],
      "claim_timeout": ["span", "1 second", "30 days"], "patience": ["span", "0"],
      "max_run": ["span", "1 second", "366 days"], "delay": ["span", "0", "3650 days"],
      "labels": ["labels"], "service_id": ["uuid"]}'
    when 'submit' then '{"version": ["any"], "affinity_tags": ["any"], "placement": ["any"], "wire": ["any"],
      "affinity": ["choice", ["and", "override", "replace"], null, "and"], "tenant": ["text", 1, 100],
      "priority": ["integer", -32768, 32767], "labels": ["labels"], "headers": ["object"],
      "deadline": ["moment"], "available_at": ["moment"], "delay": ["span", "0"],
      "idempotency_key": ["text", 1, 255], "unique": ["any"], "run_id": ["uuid"],
      "app_version": ["text", 1, 100], "steps": ["any"]}'
    when 'gang' then '{
      "gang_id": ["uuid"], "one_of": ["uuid"], "min_size": ["integer", 1, 1000], "together": ["any"],
      "same": ["texts", 5, 253, []], "hold": ["span", "1 second", "1 hour", 30],
      "on_lost": ["choice", ["stop", "replace", "continue"], null, "stop"]}'
    when 'everywhere' then '{
      "everywhere_id": ["uuid"], "mode": ["choice", ["once", "always"], null, "always"],
      "on_unmatched": ["choice", ["keep", "stop"], null, "keep"],
      "on_cordoned": ["boolean", null, null, false]}'
    when 'leases' then '{
      "queue": ["text", 1, 100], "task": ["text", 1, 200], "tenant": ["text", 0, 100], "service": ["uuid"],
      "state": ["choice", ["scheduled", "pending", "claimed", "completed", "failed", "cancelled"]],
      "node": ["uuid"], "labels": ["object"], "idempotency_key": ["text", 1, 255],
      "created_from": ["moment"], "created_before": ["moment"], "finished_from": ["moment"],
      "finished_before": ["moment"], "error_type": ["text", 1, 200]}'
    when 'runs' then '{"workflow": ["text", 1, 100], "tenant": ["text", 0, 100], "labels": ["object"],
      "state": ["choice", ["running", "paused", "failing", "cancelling", "completed", "failed", "cancelled"]],
      "submitted_from": ["moment"], "submitted_before": ["moment"], "parent_run_id": ["uuid"],
      "root_run_id": ["uuid"], "is_nested": ["boolean"]}'
    when 'workflow' then '{
      "name": ["text", 1, 100], "queue": ["text", 1, 100], "affinity_tags": ["any"], "placement": ["any"],
      "wire": ["any"], "labels": ["labels", null, null, {}], "tenant": ["text", 1, 100],
      "priority": ["integer", -32768, 32767], "deadline": ["span", "1 second", "3650 days"],
      "on_failure": ["choice", ["finish_running", "fail_fast", "continue"], null, "finish_running"],
      "retain": ["retain"], "result": ["any"], "pin_version": ["any"], "steps": ["any"]}'
    when 'retain' then '{"completed": ["span", "0"], "failed": ["span", "0"]}'
    when 'any step' then '{
      "name": ["any"], "kind": ["choice", ["task", "map", "gang", "wait", "sleep", "workflow"], null, "task"],
      "after": ["any"], "join": ["choice", ["all", "any"], null, "all"], "run_if": ["any"],
      "on_failure": ["choice", ["fail", "continue", "ignore"]],
      "finally": ["choice", ["completed", "failed", "cancelled", "ended"]]}'
    when 'task step' then '{
      "task": ["any"], "queue": ["text", 1, 100], "params": ["object", null, null, {}], "options": ["any"],
      "affinity": ["choice", ["and", "override", "replace"], null, "and"], "affinity_tags": ["any"],
      "placement": ["any"], "wire": ["any"], "near": ["any"]}'
    when 'map step' then '{
      "over": ["any"], "max_parallel": ["integer", 1, 100000, 1000], "tolerate": ["any"]}'
    when 'gang step' then '{"size": ["integer", 2, 1000], "min_size": ["any"], "together": ["any"],
      "same": ["any"], "on_lost": ["any"], "hold": ["any"]}'
    when 'wait step' then '{"signal": ["text", 1, 200], "timeout": ["span", "0", "3650 days"],
      "on_timeout": ["choice", ["fail", "skip", "continue"], null, "fail"]}'
    when 'sleep step' then '{"for": ["span", "0", "3650 days"], "until": ["any"]}'
    when 'workflow step' then '{"workflow": ["any"], "version": ["integer", 1, 2147483647], "input": ["any"]}'
    when 'schedule' then '{
      "cron": ["text", 1, 200], "every": ["span", "10 seconds", "3650 days"], "times": ["texts", 1000, 40],
      "zone": ["text", 1, 100, "UTC"], "starts_at": ["moment"], "queue": ["text", 1, 100],
      "task": ["text", 1, 200], "params": ["any"], "options": ["object", null, null, {}],
      "workflow": ["text", 1, 100], "input": ["any"],
      "missed": ["choice", ["latest", "skip", "all"], null, "latest"],
      "missed_window": ["span", "1 minute", "31 days", 604800],
      "overlap": ["choice", ["allow", "skip"], null, "allow"], "jitter": ["span", "0", "1 day", 0]}'
    when 'limit' then '{"slots": ["integer", 1, 1000000], "rate": ["rate"], "fair": ["boolean"],
      "by": ["choice", ["key", "tenant"]], "turn": ["span", "1 second", "1 day"], "weights": ["any"]}'
    when 'tenant' then '{"tier": ["choice", ["guaranteed", "best_effort", "scavenger"], null, "guaranteed"],
      "weight": ["number", 0.01, 1000], "slots": ["integer", 1, 1000000],
      "pending": ["integer", 1, 1000000000], "classes": ["integer", 1, 1000000], "spawns": ["rate"],
      "shared_with": ["texts", 1000, 100]}'
    when 'rate' then '{"count": ["integer", 1, 1000000], "per": ["span", "1 second", "366 days"],
      "burst": ["integer", 1, 1000000]}'
    when 'room' then '{"gpus": ["number", 0, 1000000000], "bound": ["number", 0, 1000000000],
      "allocated": ["number", 0, 1000000000], "resting": ["integer", 0, 1000000000],
      "seconds": ["object"], "leases": ["object"]}'
    when 'isolation' then '{"cpu": ["choice", ["best_effort", "whole_core", "strict_isolated"]],
      "gpu": ["choice", ["shared", "session_exclusive", "device_exclusive", "partition_exclusive"]]}'
    when 'toleration' then '{"key": ["text", 1, 253], "op": ["choice", ["equal", "exists", "gt", "lt"]],
      "effect": ["choice", ["no_schedule", "prefer_no_schedule", "no_execute"]],
      "seconds": ["integer", 0, 315360000], "value": ["any"]}'
    when 'spread' then '{"domain": ["any"], "select": ["any"], "max_per_domain": ["integer", 1, 1000000],
      "max_skew": ["integer", 1, 1000000], "min_domains": ["integer", 1, 1000000, 1],
      "when": ["choice", ["require", "prefer"], null, "require"], "count_nodes": ["any"],
      "targets": ["any"], "weight": ["integer", 1, 100, 100]}'
    when 'count_nodes' then '{"affinity": ["choice", ["honor", "ignore"], null, "honor"],
      "taints": ["choice", ["ignore", "honor"], null, "ignore"]}'
    when 'near' then '{
      "step": ["any"], "what": ["any"], "mode": ["choice", ["prefer", "require"], null, "prefer"],
      "away": ["boolean", null, null, false], "match": ["choice", ["step", "item"], null, "step"],
      "gone": ["choice", ["wait", "anywhere", "fail"], null, "wait"], "weight": ["integer", 1, 100, 100]}'
    end
$$;

-- The names of the keys of a kind. In PL/pgSQL, which reads the table's text once a session.
create or replace function hwqueue.keys_of(p_kind text) returns text[]
language plpgsql immutable parallel safe
as $$ begin return array(select jsonb_object_keys(hwqueue.known_keys(p_kind))); end $$;

-- The keys of a kind that have a default, with it.
create or replace function hwqueue.default_values(p_kind text) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return (
  select jsonb_object_agg(k.key, k.value -> 3) from jsonb_each(hwqueue.known_keys(p_kind)) k
  where k.value -> 3 <> 'null'
); end $$;

-- Returns an object of a kind in normal form, without nulls. p_now: what a span from now counts from.
-- Raises: p_code for what is no object, for an unknown key and for a bad value, naming the field; QHA01 for
-- bad spans, labels and retries.
create or replace function hwqueue.read_object(p_value jsonb, p_kind text, p_field text,
  p_code text default 'QHA01', p_now timestamptz default null) returns jsonb
language plpgsql stable
as $$
begin
  if jsonb_typeof(p_value) is distinct from 'object' then
    perform hwqueue.refuse_object(p_value, '{}', p_field, p_code);
  end if;
  return hwqueue.read_keys(p_value, p_kind, p_field, p_code, p_now, false);
end
$$;

-- The same of an object that may have other keys (p_is_part): they are left out, and so is a default. Each
-- branch is a simple expression, which costs no plan to start.
create or replace function hwqueue.read_keys(p_value jsonb, p_kind text, p_field text,
  p_code text default 'QHA01', p_now timestamptz default null, p_is_part boolean default true) returns jsonb
language plpgsql stable
as $$
declare
  v_known jsonb := hwqueue.known_keys(p_kind);
  v_read jsonb := '{}';
  v_key text;
  v_value jsonb;
  v_rule jsonb;
  v_type text;
  v_field text;
begin
  for v_key, v_value in select e.key, e.value from jsonb_each(p_value) e loop
    v_rule := v_known -> v_key;
    v_type := v_rule ->> 0;
    v_field := p_field || '.' || v_key;
    if v_rule is null and not p_is_part then
      perform hwqueue.refuse_object(p_value, hwqueue.keys_of(p_kind), p_field, p_code);
    end if;
    continue when v_rule is null or v_type = 'any' or v_value = 'null';
    if v_type = 'span' then
      v_value := to_jsonb(trim_scale(extract(epoch from hwqueue.parse_interval(v_value, v_field,
        (v_rule ->> 1)::interval, (v_rule ->> 2)::interval, 'QHA01'))));
    elsif v_type = 'integer' then
      v_value := to_jsonb(hwqueue.json_integer(v_value, v_field, (v_rule -> 1)::bigint,
        (v_rule -> 2)::bigint, p_code));
    elsif v_type = 'number' then
      v_value := to_jsonb(trim_scale(hwqueue.json_number(v_value, v_field, (v_rule -> 1)::numeric,
        (v_rule -> 2)::numeric, p_code)));
    elsif v_type = 'choice' then
      if (jsonb_typeof(v_value) = 'string' and v_rule -> 1 ? (v_value #>> '{}')) is not true then
        perform hwqueue.json_choice(v_value, v_field, array(select jsonb_array_elements_text(v_rule -> 1)),
          p_code);
      end if;
    elsif v_type = 'text' then
      if v_value <> '""' or v_rule -> 1 <> '0' then
        v_value := to_jsonb(hwqueue.json_text(v_value, v_field, (v_rule -> 2)::int, p_code));
      end if;
    elsif v_type = 'boolean' then
      v_value := to_jsonb(hwqueue.json_boolean(v_value, v_field, p_code));
    elsif v_type = 'uuid' then
      v_value := to_jsonb(hwqueue.json_uuid(v_value, v_field, p_code));
    elsif v_type = 'domain' then
      v_value := to_jsonb(hwqueue.json_domain(v_value, v_field, p_code));
    elsif v_type = 'moment' then
      v_value := to_jsonb(hwqueue.json_moment(v_value, v_field, p_now));
    elsif v_type = 'texts' then
      v_value := hwqueue.json_texts(v_value, v_field, (v_rule -> 1)::int, (v_rule -> 2)::int, p_code);
    elsif v_type = 'object' then
      v_value := hwqueue.json_object(v_value, v_field, p_code);
    elsif v_type = 'labels' then
      v_value := hwqueue.check_labels(v_value, v_field);
    elsif v_type = 'retry' then
      v_value := hwqueue.normalise_retry(v_value, v_field);
    else
      v_value := coalesce(hwqueue.default_values(v_type), '{}')
        || hwqueue.read_object(v_value, v_type, v_field, p_code, p_now);
    end if;
    if v_value is distinct from v_rule -> 3 or not p_is_part then
      v_read := v_read || jsonb_build_object(v_key, v_value);
    end if;
  end loop;
  return v_read;
end
$$;

-- Reads a list of texts; it is returned sorted and distinct.
create or replace function hwqueue.json_texts(p_value jsonb, p_field text, p_most int, p_max_length int,
  p_code text) returns jsonb
language plpgsql immutable
as $$ begin return (
  select hwqueue.normal_set(coalesce(jsonb_agg(to_jsonb(coalesce(
    hwqueue.json_text(t.value, f.field, p_max_length, p_code),
    hwqueue.refuse_value(t.value, f.field, 'text', 'leave out what is null', p_code)))), '[]'))
  from jsonb_array_elements(hwqueue.json_list(p_value, p_field, p_most,
    format('a list of at most %s texts', p_most), 'for example ["one", "another"]', p_code))
    with ordinality t
  cross join lateral (select format('%s[%s]', p_field, t.ordinality - 1) as field) f
); end $$;

-- Returns a retry policy in normal form: {kind, base, factor, max, jitter}, spans in seconds. Null for an
-- absent one. Spawns have it, so it is one expression without the table.
-- Raises: QHA01.
create or replace function hwqueue.normalise_retry(p_retry jsonb, p_field text) returns jsonb
language plpgsql immutable
as $$
declare
  v_kind jsonb := coalesce(nullif(p_retry -> 'kind', 'null'), '"exponential"');
begin
  if p_retry is null or p_retry in ('null', '{"kind": "none"}') then
    return nullif(p_retry, 'null');
  end if;
  perform hwqueue.check_object(p_retry, array['kind', 'base', 'factor', 'max', 'jitter'], p_field);
  if v_kind = '"none"' then
    return '{"kind": "none"}';
  end if;
  return jsonb_build_object(
    'kind', case when v_kind in ('"exponential"', '"fixed"') then v_kind
      else to_jsonb(hwqueue.json_choice(v_kind, p_field || '.kind',
        array['exponential', 'fixed', 'none'])) end,
    'base', coalesce(trim_scale(extract(epoch from
      hwqueue.json_interval(p_retry -> 'base', p_field || '.base'))), 5),
    'factor', coalesce(hwqueue.json_number(p_retry -> 'factor', p_field || '.factor', 1, 100), 2),
    'max', coalesce(trim_scale(extract(epoch from
      hwqueue.json_interval(p_retry -> 'max', p_field || '.max'))), 600),
    'jitter', coalesce(hwqueue.json_number(p_retry -> 'jitter', p_field || '.jitter', 0, 1), 0.2));
end
$$;

-- Returns lease labels, which map text to text.
-- Raises: p_code.
create or replace function hwqueue.check_labels(p_labels jsonb, p_field text, p_most int default 64,
  p_code text default 'QHA01') returns jsonb
language plpgsql immutable
as $$
declare
  v_key text;
begin
  if p_labels is null or jsonb_typeof(p_labels) = 'null' or p_labels = '{}' then
    return '{}'::jsonb;
  end if;
  if jsonb_typeof(p_labels) <> 'object' or (select count(*) from jsonb_object_keys(p_labels)) > p_most then
    perform hwqueue.refuse_field(p_code, p_field, format('must be an object of at most %s labels', p_most),
      'for example {"app": "billing"}');
  end if;
  select l.key into v_key from jsonb_each(p_labels) l
  where length(l.key) not between 1 and 253 or jsonb_typeof(l.value) <> 'string'
    or length(l.value #>> '{}') > 1024
  limit 1;
  if found then
    perform hwqueue.refuse(p_code, format('%s has a bad label %s', p_field, to_json(left(v_key, 60))),
      jsonb_build_object('field', p_field || '.' || left(v_key, 100)),
      'labels of a lease map text of 1 to 253 characters to text of at most 1024');
  end if;
  return p_labels;
end
$$;

-- Returns an object without the keys that are null.
create or replace function hwqueue.without_nulls(p_object jsonb) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return (
  select coalesce(jsonb_object_agg(e.key, e.value), '{}') from jsonb_each(p_object) e where e.value <> 'null'
); end $$;
