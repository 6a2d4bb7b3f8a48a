-- == Helpers that stand in their callers now ==

drop function if exists hwqueue.added_request(hwqueue.map, integer, integer);
drop function if exists hwqueue.added_verdict(uuid, integer, hwqueue.step_verdict, integer);
drop function if exists hwqueue.adhoc_workflow(jsonb, timestamp with time zone, integer);
drop function if exists hwqueue.begin_step(hwqueue.run, hwqueue.step, hwqueue.workflow_step, jsonb,
  timestamp with time zone, integer);
drop function if exists hwqueue.begin_wait(uuid, integer, jsonb, timestamp with time zone, integer);
drop function if exists hwqueue.check_added_run(hwqueue.run, integer, integer);
drop function if exists hwqueue.check_kind(jsonb, text, text, text);
drop function if exists hwqueue.check_known_steps(text[], jsonb[], text, text);
drop function if exists hwqueue.check_near_kinds(jsonb, jsonb, text);
drop function if exists hwqueue.check_tenant_work(hwqueue.run, integer, integer);
drop function if exists hwqueue.checked_workflow(jsonb, jsonb, integer);
drop function if exists hwqueue.contradicting_levels(hwqueue.workflow, hwqueue.run, jsonb, jsonb, text);
drop function if exists hwqueue.end_unbound(uuid, integer, jsonb, hwqueue.run_progress,
  timestamp with time zone, integer);
drop function if exists hwqueue.end_unbound_items(uuid[], text, integer);
drop function if exists hwqueue.few_ended(text, timestamp with time zone, integer);
drop function if exists hwqueue.forget_added(uuid, integer[], integer);
drop function if exists hwqueue.hold_begun_maps(uuid, integer[], integer);
drop function if exists hwqueue.hold_gang(uuid, integer, integer);
drop function if exists hwqueue.item_key(jsonb);
drop function if exists hwqueue.item_values(hwqueue.map, jsonb, integer, integer);
drop function if exists hwqueue.leave_releases(uuid, integer[], integer[], integer[],
  timestamp with time zone, integer);
drop function if exists hwqueue.map_low(hwqueue.map, hwqueue.workflow_step, integer);
drop function if exists hwqueue.member_params(hwqueue.map, integer, integer);
drop function if exists hwqueue.pinned_version(text, jsonb, jsonb);
drop function if exists hwqueue.planned_headline(hwqueue.run, integer, timestamp with time zone, integer);
drop function if exists hwqueue.read_nested(jsonb, text);
drop function if exists hwqueue.read_pin(jsonb, text);
drop function if exists hwqueue.read_retention(jsonb, text);
drop function if exists hwqueue.read_sleep(jsonb, text, text);
drop function if exists hwqueue.read_wait(jsonb, text);
drop function if exists hwqueue.refuse_nested(hwqueue.run, integer);
drop function if exists hwqueue.renew_items(hwqueue.tally);
drop function if exists hwqueue.retry_added_runs(uuid, integer, integer);
drop function if exists hwqueue.submit_nested(hwqueue.run, hwqueue.step, jsonb, jsonb, integer);
drop function if exists hwqueue.try_steps(uuid, integer[], integer);
drop function if exists hwqueue.unique_run_key(jsonb);
