-- Judges one node for one placement class: may it run there (suits), why not (expr_reason), and how well
-- (scores).
-- Eligibility, match_nodes and explanations all call expr_reason, so they cannot disagree about a node.
-- A claim reads the cached answer of its profile (eligibility/judge), and judges only on a cache miss, and
-- where other leases matter: their counts are p_facts. The short functions are such that the planner inlines
-- them.
-- Read suits and expr_reason first, then the scores.

-- Returns the score by which claims order leases of one tier and rank. Higher is better.
create or replace function hwqueue.lease_score(p_weight_affinity double precision,
  p_weight_fit double precision, p_weight_spread double precision, p_affinity double precision,
  p_fit double precision, p_spread double precision) returns double precision
language sql immutable parallel safe
as $$ select p_weight_affinity * p_affinity + p_weight_fit * p_fit + p_weight_spread * p_spread $$;

-- Whether a node is live: its last heartbeat or claim is within its heartbeat timeout. Stable, because adding
-- an interval depends on the time zone: Postgres would not inline an immutable one.
create or replace function hwqueue.is_live(p_node hwqueue.node, p_state hwqueue.node_state, p_now timestamptz)
returns boolean
language sql stable parallel safe
as $$ select p_state.seen_at + p_node.heartbeat_timeout > p_now $$;

-- How much a class's preferences count beside those of other classes, from 0.01 to 1: an affinity score is
-- relative to the class's own weights.
create or replace function hwqueue.class_strength(p_class hwqueue.placement_class) returns double precision
language sql immutable parallel safe
as $$ select coalesce((p_class.placement ->> 'strength')::double precision, 100) / 100 $$;

-- Returns the affinity part of a class's score on a node: how well it suits the class's preferences, from
-- -100 to 100, times their strength. 100 * sum of matched weights / sum of absolute weights; 0 without
-- preferences.
-- This is Nomad's affinity score in percent. Every untolerated prefer_no_schedule taint counts as one more
-- unmet preference that weighs as much as all others together.
create or replace function hwqueue.class_affinity(p_class hwqueue.placement_class, p_labels jsonb,
  p_rack bigint, p_node uuid, p_resources uuid[], p_facts jsonb, p_taints jsonb) returns double precision
language plpgsql immutable parallel safe
as $$ begin return (
  select hwqueue.class_strength(p_class)
    * case when s.taints = 0 then a.affinity else (a.affinity - 100 * s.taints) / (1 + s.taints) end
  from (
    select coalesce(
      100 * sum((p.value ->> 'weight')::double precision) filter (where
          hwqueue.expr_reason(p.value -> 'when', p_labels, p_rack, p_node, p_resources, p_facts) is null)
        / sum(abs((p.value ->> 'weight')::double precision)), 0) as affinity
    from jsonb_array_elements(p_class.preferred) p
  ) a
  cross join (
    select case when p_taints = '[]' then 0
      else jsonb_array_length(hwqueue.untolerated(p_taints, p_class.tolerate, array['prefer_no_schedule']))
      end as taints
  ) s
); end $$;

-- Returns class_affinity as far as it can be cached. Null where it depends on other leases.
create or replace function hwqueue.fixed_affinity(p_class hwqueue.placement_class, p_labels jsonb,
  p_rack bigint, p_node uuid, p_resources uuid[], p_taints jsonb) returns double precision
language sql immutable parallel safe
as $$
  select case when not p_class.terms @> '[{"spec": {"use": "soft"}}]'
    then hwqueue.class_affinity(p_class, p_labels, p_rack, p_node, p_resources, null, p_taints) end
$$;

-- Returns what a class gains on a device, in devices: what it takes, less what the device loses of its
-- worth. p_worth: the curve of set_prices, what a device with 0, 10, ... 1000 thousandths left is worth.
-- Below 0: others that wait would use the room better. It finds the same device as fit_score.
create or replace function hwqueue.worth_gain(p_gpu_count int, p_gpu_milli int, p_room hwqueue.headroom,
  p_worth double precision[]) returns double precision
language plpgsql immutable parallel safe
as $$
declare
  v_left int := p_room.gpu_sorted[width_bucket(p_gpu_milli - 1, p_room.gpu_sorted) + 1];
begin
  return case when p_gpu_milli = 0 then least(p_gpu_count, 8) * (1 - p_worth[101])
    else p_gpu_milli / 1000::double precision + p_worth[(v_left - p_gpu_milli) / 10 + 1]
      - p_worth[v_left / 10 + 1] end;
end
$$;

-- Returns how well a class uses what a node has left, from 0 to 100. 0 without GPUs on either side: such work
-- gets a GPU node only when no work with GPUs fits. Null for a share that no device has room for now. First
-- comes work that few nodes could take (reach) and work with many GPUs, then what leaves enough cpu and
-- memory for the node's other GPUs (balance), then the least residue on the device. The weights were searched
-- on the OpenB trace (docs/explanation/choosing.md). Where the queue has prices (p_worth)
-- reach weighs 21 instead of 56, and each device that the class gains adds 42: reach only guesses what others
-- could use, the prices know it. With prices a class with GPUs stays above those without. One expression
-- without subqueries, which the planner inlines, and short: a claim begins by making it ready. width_bucket
-- finds the fullest device that a share still fits on, in the sorted list of what they have left.
create or replace function hwqueue.fit_score(p_cpu_milli bigint, p_memory_mib bigint, p_gpu_count int,
  p_gpu_milli int, p_reach double precision, p_room hwqueue.headroom,
  p_worth double precision[] default null) returns double precision
language sql immutable parallel safe
as $$
  select case when p_gpu_count = 0 or p_room.gpu_total = 0 then 0
    when p_gpu_milli <= p_room.gpu_most then least(100, greatest(0.01,
      14 + 3.5::double precision * least(p_gpu_count, 8)
      + case when p_worth is null then 56 else 21 end * (1 - coalesce(p_reach, 1))
      + 14 * greatest(-1, least(0,
          p_gpu_count * case when p_gpu_milli > 0 then p_gpu_milli else 1000 end
            / greatest(p_room.gpu_total, 1)::double precision
          - greatest(p_cpu_milli / greatest(p_room.cpu_milli, 1)::double precision,
              p_memory_mib / greatest(p_room.memory_mib, 1)::double precision)))
      + case when p_gpu_milli = 0 then 0.35::double precision else 0.35::double precision * (1 - (
          p_room.gpu_sorted[width_bucket(p_gpu_milli - 1, p_room.gpu_sorted) + 1] - p_gpu_milli)
            / 1000::double precision) end
      + case when p_worth is null then 0
          else 42 * hwqueue.worth_gain(p_gpu_count, p_gpu_milli, p_room, p_worth) end))
  end
$$;

-- Returns the load of a node that runs nothing, from which its total capacity follows.
create or replace function hwqueue.idle_load(p_node hwqueue.node) returns hwqueue.node_load
language sql immutable parallel safe
as $$
  -- in the order of node_load's columns
  select row(p_node.node_id, 0, 0, 0, 0, 0, array_fill(0, array[cardinality(p_node.gpu_ids)]), '{}',
    array_fill(0, array[cardinality(p_node.core_ids)]))::hwqueue.node_load
$$;

-- Whether a node may run leases of a class, by the static rules alone, whatever runs there. Claims cache its
-- answer and ask nothing else. A new rule also goes into what explains it: fleet_failures, first_failure,
-- class_fits (fleet/fleet_failures, failures, class_fleet), judge_fleet, part_reason (explain/fleet,
-- pending). Without p_node it answers for every node of the profile. Classes that name nodes, resources or
-- trust domains need p_node.
-- p_attested holds the trust domains that the node is attested for. p_gpu_ids and p_gpu_parents are its
-- devices, for a class that names one.
create or replace function hwqueue.suits(p_class hwqueue.placement_class, p_profile hwqueue.profile,
  p_node uuid, p_resources uuid[], p_attested text[] default '{}', p_gpu_ids uuid[] default '{}',
  p_gpu_parents uuid[] default '{}') returns boolean
language sql immutable parallel safe
as $$
  select case when p_profile.left_out = '{}' then true
      else not hwqueue.mentions_label(p_class, p_profile.left_out) end
    and (p_profile.taints = '[]'
      or hwqueue.barring_taints(p_profile.taints, p_class.tolerate, p_class.tenant) = '[]')
    and case when p_class.required = '[]' then true
      else hwqueue.expr_reason(p_class.required, p_profile.labels, p_profile.rack, p_node, p_resources, null,
        p_attested) is null end
    and case when p_class.terms = '[]' then true
      else hwqueue.has_places(p_class, p_profile.labels, p_profile.rack, p_profile.left_out) end
    -- skipped for most classes and nodes, which have no isolation
    and case when p_class.cpu_isolation is null and p_class.gpu_exclusivity is null
        and p_class.gpu_wanted = '{}' and p_profile.gpu_share_mode = 'fractional' then true
      else not hwqueue.has_isolation_conflict(p_class, p_profile.cpu_isolation, p_profile.gpu_exclusivity,
        p_profile.gpu_share_mode, p_gpu_ids, p_gpu_parents) end
$$;

-- Returns the domains in which a node must be in a place, because the class requires other leases near by
-- them, or is spread: [{"domain": "label:zone"}, ...]. As in Kubernetes a node without that label can never
-- run the class. An any is left out: another of its branches may hold.
create or replace function hwqueue.domains_needed(p_class hwqueue.placement_class) returns jsonb
language plpgsql immutable parallel safe
as $$ begin return
  case when p_class.terms = '[]' then '[]' else (
    select coalesce(jsonb_agg(jsonb_build_object('domain', d.domain) order by d.domain), '[]')
    from (
      select e.value ->> 'domain' as domain from jsonb_array_elements(p_class.required) e
      where e.value ? 'term' and hwqueue.unknown_fails(e.value)
      union
      select s.value ->> 'domain' from jsonb_array_elements(p_class.spread) s
      where not s.value ?| array['when', 'targets']) d
    where d.domain not in ('node', 'fleet')) end;
end $$;

-- Whether a node that is in no place of an expression's domain fails the expression: by default toward fails
-- and away holds.
create or replace function hwqueue.unknown_fails(p_expr jsonb) returns boolean
language sql immutable parallel safe
as $$
  select coalesce(p_expr ->> 'unknown', case when p_expr ? 'away' then 'pass' else 'fail' end) = 'fail'
$$;

-- Whether a node with these labels is in a place of every domain that a class needs (domains_needed). A
-- label in p_left_out is not known here: the claim finds out.
create or replace function hwqueue.has_places(p_class hwqueue.placement_class, p_labels jsonb, p_rack bigint,
  p_left_out text[]) returns boolean
language plpgsql immutable parallel safe
as $$ begin return
  not exists (
    select 1 from jsonb_array_elements(hwqueue.domains_needed(p_class)) d
    where hwqueue.expr_reason(d.value, p_labels, p_rack, null, '{}', null) is not null
      and substr(d.value ->> 'domain', 7) <> all (p_left_out));
end $$;

-- Returns those of some trust domains whose attestation has not expired.
create or replace function hwqueue.still_attested(p_domains text[], p_until timestamptz[], p_now timestamptz)
returns text[]
language plpgsql immutable parallel safe
as $$ begin return
  array(select a.domain from unnest(p_domains, p_until) a(domain, until) where a.until > p_now);
end $$;

-- Returns the trust domains that a node is attested for at a time.
create or replace function hwqueue.attested_at(p_node hwqueue.node, p_now timestamptz) returns text[]
language plpgsql immutable parallel safe
as $$ begin
  return case when p_node.attested = '{}' then '{}' else  -- most nodes, and every claim calls this
    hwqueue.still_attested(p_node.attested, p_node.attested_until, p_now) end;
end $$;

-- Whether a node may still run a class that mentions trust domains. p_attested holds those that have not
-- expired.
create or replace function hwqueue.is_still_attested_for(p_class_id bigint, p_node hwqueue.node,
  p_attested text[]) returns boolean
language plpgsql stable
as $$ begin return (
  select hwqueue.expr_reason(c.required, p_node.labels, p_node.rack, p_node.node_id,
    p_node.resources || p_node.gpu_ids, null, p_attested) is null
  from hwqueue.placement_class c where c.class_id = p_class_id
); end $$;

-- How many values a label may have before it is left out. One with very many (a host name, an instance id)
-- makes a profile of each node, and every profile is judged for every class. While no class mentions such a
-- label, these are judged as one (profile.judged_as): a profile without those labels (left_out), which no
-- node registers with. node_state has the profile that is judged, node the complete one. A class that comes
-- to mention the label is refused for that profile (suits), so no claim is granted wrongly, and waits until
-- reap has returned each node to its own profile (split_profiles).
create or replace function hwqueue.most_label_values() returns int
language sql immutable parallel safe
as $$ select 1000 $$;

-- Whether what a class asks of nodes may mention one of these labels. It searches the text, so it errs
-- towards yes.
create or replace function hwqueue.mentions_label(p_class hwqueue.placement_class, p_keys text[])
returns boolean
language plpgsql immutable parallel safe
as $$ begin return
  exists (
    select 1 from unnest(p_keys) k
    where position(substr(to_jsonb(k)::text, 2, length(to_jsonb(k)::text) - 2)
                   in p_class.required::text || p_class.preferred::text) > 0);
end $$;

-- Returns which of these labels are left out. One is found to have too many values when a new profile is
-- created and there are many already. One that a class mentions, or has mentioned since, is never left out
-- again.
-- Locks: new rows of ignored_label.
create or replace function hwqueue.ignored_labels_of(p_labels jsonb) returns text[]
language plpgsql volatile
as $$
declare
  v_max_values int := hwqueue.most_label_values();
  v_growing_keys text[];
  v_keys text[];
begin
  if (select count(*) from (select 1 from hwqueue.profile p limit v_max_values) x) = v_max_values then
    -- labels to which this node adds a value: counting the values of a label reads all profiles, and most
    -- new profiles add no value
    v_growing_keys := array(
      select l.key from jsonb_each(p_labels) l
      where not exists (select 1 from hwqueue.ignored_label o where o.key = l.key)
        and not exists (select 1 from hwqueue.profile p where p.labels -> l.key = l.value));
    v_keys := case when v_growing_keys = '{}' then v_growing_keys else array(
      select l.key
      from hwqueue.profile p cross join lateral jsonb_each(p.labels) l
      where l.key = any (v_growing_keys)
      group by l.key having count(distinct l.value) >= v_max_values order by l.key) end;
    -- in one statement with visible_now, so that reap reads the classes that this statement cannot see
    insert into hwqueue.ignored_label (key, is_mentioned, unseen, next_xid)
    select k, exists (
        select 1 from hwqueue.placement_class c
        where not c.is_pinned and hwqueue.mentions_label(c, array[k])), s.unseen, s.next_xid
    from unnest(v_keys) k cross join hwqueue.visible_now() s
    on conflict do nothing;
  end if;
  return array(
    select o.key from hwqueue.ignored_label o where p_labels ? o.key and not o.is_mentioned order by o.key);
end
$$;

-- Returns the profiles that are judged as this one, and itself.
create or replace function hwqueue.profiles_judged_as(p_profile_id bigint) returns bigint[]
language plpgsql stable
as $$ begin
  return array(
    select p.profile_id from hwqueue.profile p where p.judged_as = p_profile_id) || p_profile_id;
end $$;

-- Returns a node's value in a topology domain: nodes of one value are in the same place. Null when it lacks
-- the label, or its value is a list or an object. own:rack is the rack as a failure domain, where a node
-- without a rack is alone. One expression without subqueries, so that the planner inlines it.
create or replace function hwqueue.domain_value(p_domain text, p_node uuid, p_rack bigint, p_labels jsonb)
returns text
language sql immutable parallel safe
as $$
  select case p_domain
    when 'node' then p_node::text
    when 'own:node' then p_node::text
    when 'rack' then p_rack::text
    when 'own:rack' then coalesce(p_rack::text, p_node::text)
    when 'fleet' then 'fleet'
    else case
      when jsonb_typeof(p_labels -> substr(p_domain, strpos(p_domain, 'label:') + 6))
        in ('string', 'number', 'boolean')
        then (p_labels -> substr(p_domain, strpos(p_domain, 'label:') + 6))::text
      when p_domain like 'own:%' then p_node::text end
  end
$$;

-- Returns why a node does not meet one normal expression, one of domains_needed, or the first of a list that
-- it does not meet: a reason code, or null when it does.
-- p_facts is what term_facts returns about other leases. Without it, expressions about other leases
-- count as met. p_attested holds the trust domains that the node is attested for.
create or replace function hwqueue.expr_reason(p_expr jsonb, p_labels jsonb, p_rack bigint, p_node uuid,
  p_resources uuid[], p_facts jsonb, p_attested text[] default '{}') returns text
language plpgsql immutable parallel safe
as $$
declare
  v_away boolean := p_expr ? 'away';
  v_holds boolean;
  v_other jsonb;
  v_fact jsonb;
  v_reason text;
begin
  if jsonb_typeof(p_expr) = 'array' then
    for v_other in select e.value from jsonb_array_elements(p_expr) e loop
      v_reason := hwqueue.expr_reason(v_other, p_labels, p_rack, p_node, p_resources, p_facts, p_attested);
      exit when v_reason is not null;
    end loop;
    return v_reason;
  elsif p_expr ? 'label' then
    if p_expr ? 'other_label' then
      v_other := p_labels -> (p_expr ->> 'other_label');
      v_holds := case  -- a label that is missing on either side meets not_in only
        when v_other is null or p_labels -> (p_expr ->> 'label') is null then p_expr ->> 'op' = 'not_in'
        when p_expr ->> 'op' in ('contains_all', 'contains_any') then jsonb_typeof(v_other) = 'array'
          and hwqueue.label_holds(p_expr ->> 'op', p_labels -> (p_expr ->> 'label'), v_other)
        else hwqueue.label_holds(p_expr ->> 'op', p_labels -> (p_expr ->> 'label'),
          jsonb_build_array(v_other)) end;
    else
      v_holds := hwqueue.label_holds(p_expr ->> 'op', p_labels -> (p_expr ->> 'label'), p_expr -> 'values');
    end if;
    return case when v_holds then null
      when p_labels ? (p_expr ->> 'label') then 'label_mismatch'
      else 'label_missing' end;
  elsif p_expr ? 'tags' then
    return case when p_labels @> (p_expr -> 'tags') then null
      when p_labels ?& array(select jsonb_object_keys(p_expr -> 'tags')) then 'label_mismatch'
      else 'label_missing' end;
  elsif p_expr ? 'any' then
    return case when exists (
        select 1 from jsonb_array_elements(p_expr -> 'any') b
        where hwqueue.expr_reason(b.value, p_labels, p_rack, p_node, p_resources, p_facts, p_attested)
          is null)
      then null
      else 'required_affinity_unsatisfiable' end;
  elsif p_expr ? 'trust' then
    return case when p_expr ->> 'trust' = any (p_attested) then null else 'trust_not_attested' end;
  elsif p_expr ?| array['leases', 'service', 'lease'] then
    v_fact := p_facts -> (p_expr ->> 'term')::int;
    v_holds := case when p_facts is null then not v_away
      when v_fact ->> 'value' is null then hwqueue.unknown_fails(p_expr) = v_away
      when v_away then ((v_fact ->> 'held')::bigint > 0) is true
      -- a lease that selects itself may be the first of its group
      else ((v_fact ->> 'here')::bigint <= 0
        and not ((v_fact -> 'self')::boolean and not (v_fact -> 'elsewhere')::boolean)) is not true end;
  elsif p_expr ? 'domain' then
    return case when hwqueue.domain_value(p_expr ->> 'domain', p_node, p_rack, p_labels) is null
      then 'label_missing' end;
  elsif p_expr ? 'node' then
    v_holds := coalesce(p_expr -> 'node' @> to_jsonb(p_node), false);  -- null: any unnamed node
  elsif p_expr ? 'rack' then
    v_holds := case when p_rack is null then hwqueue.unknown_fails(p_expr) = v_away
      else p_expr -> 'rack' @> to_jsonb(p_rack) end;
  else
    v_holds := (p_expr #>> '{resource,0}')::uuid = any (p_resources);
  end if;
  return case when v_holds <> v_away then null
    when v_away then 'anti_affinity_conflict'
    else 'required_affinity_unsatisfiable' end;
end
$$;

-- Whether a label's value (null: it is missing) meets one operator. A missing label meets not_in and
-- does_not_exist only. in and not_in compare type and value. Text is never ordered.
create or replace function hwqueue.label_holds(p_op text, p_value jsonb, p_values jsonb) returns boolean
language plpgsql immutable parallel safe
as $$
declare
  v_order numeric;
begin
  if p_op in ('in', 'not_in') then
    return (p_op = 'in') = coalesce(jsonb_typeof(p_value) in ('string', 'number', 'boolean')
      and p_values @> jsonb_build_array(p_value), false);
  elsif p_op in ('exists', 'does_not_exist') then
    return (p_op = 'exists') = (p_value is not null);
  elsif p_op in ('gt', 'gte', 'lt', 'lte') then
    v_order := hwqueue.label_number(p_value) - hwqueue.label_number(p_values -> 0);
    return coalesce(v_order = 0 and p_op in ('gte', 'lte') or v_order > 0 and p_op in ('gt', 'gte')
      or v_order < 0 and p_op in ('lt', 'lte'), false);
  elsif p_op = 'regexp' then
    return coalesce(jsonb_typeof(p_value) = 'string' and length(p_value #>> '{}') <= 256
      and (p_value #>> '{}') ~ (p_values ->> 0), false);
  elsif p_op = 'contains_all' then
    return coalesce(jsonb_typeof(p_value) = 'array' and p_value @> p_values, false);
  elsif p_op = 'contains_any' then
    return coalesce(jsonb_typeof(p_value) = 'array' and exists (
      select 1 from jsonb_array_elements(p_values) v where p_value @> jsonb_build_array(v.value)), false);
  end if;
  return coalesce(jsonb_typeof(p_value) in ('string', 'number') and jsonb_typeof(p_values -> 0) = 'string'
    and hwqueue.version_in_range(p_value #>> '{}', p_values ->> 0, p_op), false);
end
$$;

-- Returns a label as a number: a JSON number, or text like "-12.5". Null for anything else.
create or replace function hwqueue.label_number(p_value jsonb) returns numeric
language sql immutable parallel safe
as $$
  select case
    when jsonb_typeof(p_value) = 'number' then (p_value #>> '{}')::numeric
    when jsonb_typeof(p_value) = 'string' and (p_value #>> '{}') ~ '^-?[0-9]{1,128}([.][0-9]{1,128})?$'
      then (p_value #>> '{}')::numeric
  end
$$;
