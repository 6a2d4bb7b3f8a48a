-- Placements, amounts, times, counts and what released a step in words for people.
--
-- Explanations, reports and metrics call these functions. The text comes from users, so it is cut short
-- and control characters are removed, but it is never interpreted. Every word for a rule is chosen here,
-- so that all answers name a rule alike; those for expressions are in placement/words.
--
-- Read blocker_words and class_words first.

-- Says what a failed rule asks: "gpu_model in A100", "2 GPU free", "a toleration of
-- dedicated=film:no_schedule".
create or replace function hwqueue.blocker_words(p_stage text, p_code text, p_predicate jsonb, p_lacks int,
  p_class hwqueue.placement_class) returns text
language sql stable
as $$
  select regexp_replace(left(case p_stage
    when 'live' then 'a sign of life'
    when 'cordon' then 'not being cordoned'
    when 'served' then case when p_predicate ? 'queue' then format('polling queue %s', p_predicate -> 'queue')
                            else format('a handler for task %s', p_predicate -> 'task') end
    when 'taints' then 'a toleration of ' || hwqueue.taint_text(p_predicate)
    when 'isolation' then case
      when p_code = 'class_conflicts_with_daemon_mode' then 'sharing a GPU'
      when p_predicate ? 'resource' then format('device %s for GPU %s', p_predicate ->> 'resource',
          coalesce(p_predicate ->> 'gpu', 'shared'))
      when p_predicate ? 'cpu' then 'CPU isolation ' || (p_predicate ->> 'cpu')
      else 'GPU exclusivity ' || (p_predicate ->> 'gpu') end
    when 'capacity' then hwqueue.resource_words(hwqueue.needs_of(p_class, p_lacks, null))
    when 'free' then case when p_predicate ? 'concurrency' then 'a worker with a slot free'
      else hwqueue.resource_words(hwqueue.needs_of(p_class, p_lacks, null)) || ' free' end
    when 'spread' then hwqueue.spread_words(p_predicate)
    else coalesce(hwqueue.expr_words(p_predicate), 'no lease that keeps away from it') end,
      300), '[[:cntrl:]]+', ' ', 'g')
$$;

-- Says what a node has of what a failed rule asks, in a few words; null if that does not apply.
-- p_domain: of the affinity term that failed; p_fact: what counts there (term_facts).
create or replace function hwqueue.node_has(p_failure hwqueue.failure, p_fact jsonb, p_domain text,
  p_class hwqueue.placement_class, p_node hwqueue.node, p_load hwqueue.node_load, p_now timestamptz)
returns text
language plpgsql stable
as $$
declare
  v_stage text := p_failure.stage;
  v_predicate jsonb := p_failure.predicate;
  v_lacks int := p_failure.lacks;
begin
  return left(case
    when v_stage = 'capacity' then hwqueue.resource_words(hwqueue.room_for(p_class, v_lacks, p_node,
                                     hwqueue.node_headroom(p_node, hwqueue.idle_load(p_node))))
    when v_predicate ? 'concurrency' then format('%s, all in use',
      hwqueue.count_words((v_predicate ->> 'concurrency')::int, 'slot', 'slots'))
    when v_stage = 'free' then hwqueue.resource_words(hwqueue.room_for(p_class, v_lacks, p_node,
        hwqueue.node_headroom(p_node, p_load))) || ' free'
    when v_stage = 'taints' then hwqueue.taint_text(v_predicate)
    when v_stage = 'trust' then coalesce(hwqueue.suspended_words(p_node.node_id, v_predicate ->> 'trust'),
      'trusted for '
      || coalesce(nullif(array_to_string(hwqueue.attested_at(p_node, p_now), ', '), ''), 'nothing'))
    when v_stage = 'isolation' then case when v_predicate ? 'cpu'
      then array_to_string(p_node.cpu_isolation, ', ')
                                         else array_to_string(p_node.gpu_exclusivity, ', ') end
    when p_fact is not null then case
      when p_fact ->> 'value' is null then 'no ' || regexp_replace(p_domain, '^(own:)?(label:)?', '')
      else format('%s in %s', case when (p_fact ->> 'held')::bigint = 0 then 'none'
          else p_fact ->> 'held' end,
                  hwqueue.place_words(p_domain, p_fact ->> 'value')) end
    when v_predicate ? 'domain' and v_stage = 'labels'
      then 'no ' || regexp_replace(v_predicate ->> 'domain', '^label:', '')
    when v_predicate ? 'label' then (p_node.labels -> (v_predicate ->> 'label'))::text
    when v_predicate ? 'tags' then (
      select jsonb_object_agg(k, p_node.labels -> k)::text from jsonb_object_keys(v_predicate -> 'tags') k
      where p_node.labels ? k)
    when v_predicate ? 'rack' then coalesce('rack ' || p_node.rack, 'no rack')
    when v_predicate ? 'node' then 'node ' || p_node.name end, 200);
end
$$;

-- Says one place of a domain: "node gpu-7", "rack 42", "zone a".
create or replace function hwqueue.place_words(p_domain text, p_place text) returns text
language sql stable
as $$
  select case
    when p_domain in ('rack', 'own:rack') then 'rack ' || p_place
    when p_domain = 'fleet' then 'the fleet'
    when p_domain in ('node', 'own:node') then 'node ' || coalesce(
      (select n.name from hwqueue.node n where n.node_id::text = p_place), p_place)
    else format('%s %s', left(regexp_replace(p_domain, '^(own:)?(label:)?', ''), 60),
        left(trim(p_place, '"'), 60)) end
$$;

-- Says of the lease of a step what released it, and when: "released 3 min ago by step train of run 0195...,
-- after step fetch". Of several parents the last one released it, or the first where that is enough. Null:
-- it is no step's.
create or replace function hwqueue.release_words(p_lease hwqueue.lease, p_now timestamptz) returns text
language plpgsql stable
as $$
declare
  v_run hwqueue.run;
  v_step hwqueue.workflow_step;
  v_names jsonb;  -- the one that released it first
  v_at timestamptz;
begin
  if p_lease.run_id is null then
    return null;
  end if;
  select r.* into v_run from hwqueue.run r where r.run_id = p_lease.run_id;
  select d.* into v_step from hwqueue.workflow_step d
  where d.workflow_id = v_run.workflow_id and d.step_no = p_lease.step_no;
  select jsonb_agg(f.name order by extract(epoch from s.ended_at) * o.sign, s.step_no * o.sign),
         case when v_step.is_any then min(s.ended_at) else max(s.ended_at) end
  into v_names, v_at
  from hwqueue.workflow_edge e
  join hwqueue.step s on s.run_id = v_run.run_id and s.step_no = e.from_no
  join hwqueue.workflow_step f on f.workflow_id = v_run.workflow_id and f.step_no = e.from_no
  cross join (select case when v_step.is_any then 1 else -1 end as sign) o
  where e.workflow_id = v_run.workflow_id and e.to_no = p_lease.step_no
    and s.ended_at is not null and (not v_step.is_any or e.wants = 'ended'
      or e.wants = case s.state when 'cancelled' then 'failed' else s.state end);
  return concat(case when p_lease.item_no is not null then format('%s %s of step %s, ',
        case when p_lease.gang_id is null then 'item' else 'rank' end, p_lease.item_no, v_step.name) end,
    case when v_step.runs_at_end is not null then format('released by the end of all other steps of run %s',
        v_run.run_id)
      else format('released %s ago by %s of run %s',
        hwqueue.span_words(p_now - coalesce(v_at, v_run.submitted_at)),
        coalesce('step ' || (v_names ->> 0), 'the submission'), v_run.run_id) end,
    case when not v_step.is_any and jsonb_array_length(v_names) > 1 then format(', after %s %s',
        case jsonb_array_length(v_names) when 2 then 'step' else 'steps' end,
        hwqueue.list_words(v_names - 0, 'and')) end,
    case when v_names is null and v_run.parent_run_id is not null then format(', a step of run %s',
        v_run.parent_run_id) end);
end
$$;

-- Returns a count with its noun: "1 node", "3 nodes".
create or replace function hwqueue.count_words(p_count bigint, p_one text, p_many text) returns text
language sql immutable parallel safe
as $$ select p_count || ' ' || case p_count when 1 then p_one else p_many end $$;

-- Returns a span in its two largest units: "1.4 s", "3 min", "2 h 05 min", "4 d 3 h".
create or replace function hwqueue.span_words(p_span interval) returns text
language sql immutable parallel safe
as $$
  select case
    when s.secs < 60 then trim_scale(round(s.secs, 1)) || ' s'
    when s.secs < 3600 then floor(s.secs / 60) || ' min'
    when s.secs < 86400 then floor(s.secs / 3600) || ' h ' || to_char(floor(s.secs % 3600 / 60),
        'FM00') || ' min'
    else floor(s.secs / 86400) || ' d ' || floor(s.secs % 86400 / 3600) || ' h' end
  from (select greatest(extract(epoch from p_span), 0) as secs where p_span is not null) s
$$;
