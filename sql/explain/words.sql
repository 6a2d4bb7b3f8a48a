-- Placements, amounts, times, counts and what released a step in words for people.
--
-- The text comes from users, so it is cut short and control characters are removed, but it is never
-- interpreted. Every word for a rule is chosen here, so that all answers name a rule alike; those for
-- expressions are in placement/words.

-- Says what rule a failure (or a group of judge_fleet) is about: "gpu_model in A100", "2 GPU free", "a
-- toleration of dedicated=film:no_schedule".
create or replace function hwqueue.failure_words(p_failure jsonb, p_class hwqueue.placement_class)
returns text
language plpgsql stable
as $$ begin return (
  select regexp_replace(left(case f.stage
    when 'live' then 'a sign of life'
    when 'cordon' then 'not being cordoned'
    when 'served' then case when f.predicate ? 'queue' then format('polling queue %s', f.predicate -> 'queue')
                            else format('a handler for task %s', f.predicate -> 'task') end
    when 'taints' then case when f.predicate ? 'tenants' then 'being open to its tenant'
                            else 'a toleration of ' || hwqueue.taint_text(f.predicate) end
    when 'isolation' then case
      when f.code = 'class_conflicts_with_daemon_mode' then 'sharing a GPU'
      when f.predicate ? 'resource' then format('device %s for GPU %s', f.predicate ->> 'resource',
          coalesce(f.predicate ->> 'gpu', 'shared'))
      when f.predicate ? 'cpu' then 'CPU isolation ' || (f.predicate ->> 'cpu')
      else 'GPU exclusivity ' || (f.predicate ->> 'gpu') end
    when 'capacity' then hwqueue.resource_words(hwqueue.amounts_of(p_class, f.lacks, null))
    when 'free' then case when f.predicate ? 'concurrency' then 'a worker with a slot free'
      else hwqueue.resource_words(hwqueue.amounts_of(p_class, f.lacks, null)) || ' free' end
    when 'spread' then hwqueue.spread_words(f.predicate)
    else coalesce(hwqueue.expr_words(f.predicate), 'no lease that keeps away from it') end,
      300), '[[:cntrl:]]+', ' ', 'g')
  from jsonb_to_record(p_failure) f(stage text, code text, predicate jsonb, lacks int)
); end $$;

-- Says one place of a domain: "node gpu-7", "rack 42", "zone a".
create or replace function hwqueue.place_words(p_domain text, p_place text) returns text
language plpgsql stable
as $$ begin return
  case
    when p_domain in ('rack', 'own:rack') then 'rack ' || p_place
    when p_domain = 'fleet' then 'the fleet'
    when p_domain in ('node', 'own:node') then 'node ' || coalesce(
      (select n.name from hwqueue.node n where n.node_id::text = p_place), p_place)
    else format('%s %s', left(regexp_replace(p_domain, '^(own:)?(label:)?', ''), 60),
        left(trim(p_place, '"'), 60)) end;
end $$;

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
  from hwqueue.workflow_step f
  join hwqueue.step s on s.run_id = v_run.run_id and s.step_no = f.step_no
  cross join (select case when v_step.is_any then 1 else -1 end as sign) o
  where f.workflow_id = v_run.workflow_id and f.step_no = any (v_step.parents)
    and s.ended_at is not null and (not v_step.is_any or hwqueue.edge_holds(
      f.wants[array_position(f.children, p_lease.step_no)], s.state));
  return concat(case when p_lease.item_no is not null then format('%s %s of step %s, ',
        case when p_lease.team_id is null then 'item' else 'rank' end, p_lease.item_no, v_step.name) end,
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
language sql stable parallel safe
as $$ select p_count || ' ' || case p_count when 1 then p_one else p_many end $$;

-- Returns a span in its two largest units: "1.4 s", "3 min", "2 h 05 min", "4 d 3 h".
create or replace function hwqueue.span_words(p_span interval) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select case
    when s.secs < 60 then trim_scale(round(s.secs, 1)) || ' s'
    when s.secs < 3600 then floor(s.secs / 60) || ' min'
    when s.secs < 86400 then floor(s.secs / 3600) || ' h ' || to_char(floor(s.secs % 3600 / 60),
        'FM00') || ' min'
    else floor(s.secs / 86400) || ' d ' || floor(s.secs % 86400 / 3600) || ' h' end
  from (select greatest(extract(epoch from p_span), 0) as secs where p_span is not null) s
); end $$;
