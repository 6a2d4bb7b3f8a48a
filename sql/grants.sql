-- What each role may call. Functions are the only way in: only the owner reads or writes a table.
--
-- Every upgrade applies this file last, because a function that the upgrade has created again has no grants.
-- revoke.sql, applied before, closes every function to PUBLIC. The file may run again and again;
-- `hwqueue db upgrade --no-roles` leaves it out. A function that is not named here is internal: sql/api holds
-- exactly what is granted, which tests/migrations/test_layers.py checks. What an older version granted goes
-- first: else a role would keep what it may not call any more.

revoke all on all functions in schema hwqueue
  from hwqueue_producer, hwqueue_worker, hwqueue_planner, hwqueue_operator, hwqueue_admin,
    hwqueue_tenants;

grant usage on schema hwqueue
  to hwqueue_producer, hwqueue_worker, hwqueue_planner, hwqueue_operator, hwqueue_admin,
    hwqueue_tenants;
grant execute on function hwqueue.schema_version()
  to hwqueue_producer, hwqueue_worker, hwqueue_planner, hwqueue_operator, hwqueue_admin,
    hwqueue_tenants;

-- Producers, and bound logins: spawn, read, change and cancel leases, and dry runs.
grant execute on function
  hwqueue.spawn_lease(text, text, jsonb, jsonb),
  hwqueue.spawn_leases(text, jsonb),
  hwqueue.update_lease(uuid, jsonb),
  hwqueue.cancel_lease(uuid, text),
  hwqueue.get_lease(uuid),
  hwqueue.lease_logs(uuid, text, int, int, boolean),
  hwqueue.lease_checkpoints(uuid, int),
  hwqueue.signal_lease(uuid, text, jsonb, text),
  hwqueue.await_leases(uuid[], boolean),
  hwqueue.spawn_warnings(uuid),
  hwqueue.match_nodes(jsonb, jsonb),
  hwqueue.match_page(jsonb, jsonb, int, int),
  hwqueue.match_groups(jsonb, jsonb),
  hwqueue.spawn_gang(text, jsonb, jsonb),
  hwqueue.get_gang(uuid),
  hwqueue.list_gangs(text, int, timestamptz, uuid),
  hwqueue.explain_gang(uuid),
  hwqueue.what_if_gang(text, jsonb, jsonb),
  hwqueue.cancel_gang(uuid, text),
  hwqueue.get_everywhere(uuid, int, uuid),
  hwqueue.list_everywhere(text, int, timestamptz),
  hwqueue.stop_everywhere(uuid, text),
  hwqueue.submit_workflow(text, jsonb, jsonb),
  hwqueue.submit_workflows(text, jsonb),
  hwqueue.submit_spec(jsonb, jsonb, jsonb),
  hwqueue.check_workflow(jsonb, jsonb),
  hwqueue.get_workflow_run(uuid),
  hwqueue.list_workflow_steps(uuid),
  hwqueue.step_results(uuid, text, int, int, uuid, text),
  hwqueue.run_input(uuid, uuid),
  hwqueue.list_workflow_runs(jsonb, int, uuid),
  hwqueue.get_run_workflow(uuid),
  hwqueue.list_step_details(uuid),
  hwqueue.list_run_signals(uuid, int),
  hwqueue.summarise_runs(uuid[]),
  hwqueue.preview_retry(uuid, jsonb),
  hwqueue.preview_update(uuid, jsonb, text[]),
  hwqueue.cancel_workflow_run(uuid, text),
  hwqueue.pause_workflow_run(uuid),
  hwqueue.resume_workflow_run(uuid),
  hwqueue.retry_workflow_run(uuid, jsonb),
  hwqueue.update_steps(uuid, jsonb, text[]),
  hwqueue.signal_workflow_run(uuid, text, jsonb, text)
  to hwqueue_producer, hwqueue_operator, hwqueue_admin, hwqueue_tenants;

-- Workers: register their node, claim, heartbeat, settle, and do the upkeep.
grant execute on function
  hwqueue.register_node(uuid, jsonb),
  hwqueue.heartbeat_node(uuid, bigint, jsonb, interval),
  hwqueue.claim_task(text[], uuid, bigint, int, text[], interval),
  hwqueue.settle_and_claim(uuid, bigint, jsonb, text[], int, text[], interval, uuid[], bigint[]),
  hwqueue.complete_lease(uuid, bigint, jsonb),
  hwqueue.complete_leases(uuid[], bigint[]),
  hwqueue.fail_lease(uuid, bigint, jsonb, boolean, timestamptz),
  hwqueue.release_lease(uuid, bigint, interval),
  hwqueue.extend_claim(uuid, bigint, interval),
  hwqueue.save_checkpoint(uuid, bigint, text, jsonb, interval),
  hwqueue.gang_status(uuid, bigint),
  hwqueue.add_items(uuid, bigint, jsonb),
  hwqueue.add_steps(uuid, bigint, jsonb),
  hwqueue.checkpoints(uuid, bigint),
  hwqueue.take_signal(uuid, bigint, text, text),
  hwqueue.suspend_lease(uuid, bigint, timestamptz, text, text, text),
  hwqueue.report_progress(jsonb),
  hwqueue.append_logs(jsonb),
  hwqueue.claim_hint(text[], uuid),
  hwqueue.lease_outlook(uuid, uuid[]),
  hwqueue.take_deaths(uuid, bigint, int),
  hwqueue.compare_tasks(jsonb),
  hwqueue.reap(int, interval),
  hwqueue.prune(int, interval),
  hwqueue.list_queues(),
  hwqueue.wake_payloads(text[]),
  hwqueue.node_wake_payload(uuid),
  hwqueue.deregister_own_node(uuid, bigint),
  hwqueue.register_bound_node(bytea, uuid, jsonb, bytea),
  hwqueue.enter_node(bytea, uuid, bytea),
  hwqueue.advance_workflows(int),
  hwqueue.take_ended_runs(int),
  hwqueue.due_plans(int),
  hwqueue.plan_schedule(text, bigint, timestamptz[], text),
  hwqueue.throttle_limit(text, text, timestamptz, interval, text, uuid),
  hwqueue.step_results(uuid, text, int, int, uuid, text),
  hwqueue.run_input(uuid, uuid)
  to hwqueue_worker, hwqueue_admin;

-- Planners: read what waits and what is free, set prices, propose places for gangs, say what they have found.
grant execute on function
  hwqueue.lead_planner(text, interval),
  hwqueue.planner_view(text, text, text, int, int),
  hwqueue.set_prices(text, jsonb, interval, bigint, bigint),
  hwqueue.note_room(jsonb, interval, bigint, bigint),
  hwqueue.planner_rooms(uuid[]),
  hwqueue.reserve_gang(uuid, text, bigint, bigint),
  hwqueue.reserve_leases(jsonb, interval, bigint, bigint),
  hwqueue.assigned_leases(jsonb)
  to hwqueue_planner, hwqueue_admin;

-- Operators, and bound logins, of which each function shows and changes only what their tenants have.
grant execute on function
  hwqueue.list_leases(jsonb, int, uuid),
  hwqueue.spawn_everywhere(text, text, jsonb, jsonb),
  hwqueue.requeue_lease(uuid),
  hwqueue.count_leases(jsonb, text[], int, jsonb),
  hwqueue.cancel_leases(jsonb, text, int, jsonb),
  hwqueue.requeue_leases(jsonb, int, jsonb),
  hwqueue.update_leases(jsonb, jsonb, int, jsonb),
  hwqueue.delete_leases(jsonb, int, jsonb),
  hwqueue.set_service_policy(uuid, jsonb),
  hwqueue.service_policy(uuid),
  hwqueue.lease_history(uuid),
  hwqueue.skip_step(uuid, text, jsonb, text)
  to hwqueue_operator, hwqueue_admin, hwqueue_tenants;

-- Operators: everything that people on call need. They cannot claim.
grant execute on function
  hwqueue.list_nodes(text, uuid, text, int),
  hwqueue.explain_lease(uuid),
  hwqueue.explain_class(bigint),
  hwqueue.preview_preemption(uuid),
  hwqueue.what_if(jsonb),
  hwqueue.node_claims(uuid, int),
  hwqueue.list_queues(),
  hwqueue.claim_hint(text[], uuid),
  hwqueue.requeue_failed(text, jsonb),
  hwqueue.pause_queue(text),
  hwqueue.resume_queue(text),
  hwqueue.cordon_node(uuid),
  hwqueue.uncordon_node(uuid),
  hwqueue.drain_node(uuid, interval),
  hwqueue.deregister_node(uuid),
  hwqueue.taint_node(uuid, jsonb),
  hwqueue.untaint_node(uuid, text, text),
  hwqueue.set_node_tenants(uuid, text[], boolean),
  hwqueue.attest_node(uuid, text, timestamptz, boolean, interval),
  hwqueue.confirm_node(uuid, text),
  hwqueue.hand_over_node(uuid, text),
  hwqueue.revoke_attestation(uuid, text),
  hwqueue.set_task(text, jsonb),
  hwqueue.sync_tasks(jsonb, text, boolean),
  hwqueue.list_tasks(),
  hwqueue.drop_task(text),
  hwqueue.adopt_lease(text, uuid, text, jsonb, jsonb),
  hwqueue.reap(int, interval),
  hwqueue.prune(int, interval),
  hwqueue.list_events(bigint, jsonb, int),
  hwqueue.verify_invariants(),
  hwqueue.check_token(bytea),
  hwqueue.pending_reasons(text, text, bigint, text, int),
  hwqueue.queue_depth(text),
  hwqueue.running_leases(int),
  hwqueue.node_usage(text, int, text),
  hwqueue.planner_status(),
  hwqueue.tag_distribution(text, int),
  hwqueue.placement_class_stats(text, bigint, int),
  hwqueue.throughput(text, int),
  hwqueue.fleet_history(text, int),
  hwqueue.metrics(),
  hwqueue.list_webhooks(),
  hwqueue.pause_webhook(text),
  hwqueue.resume_webhook(text),
  hwqueue.test_webhook(text),
  hwqueue.list_deliveries(text, text, int, uuid),
  hwqueue.redeliver(text, uuid, int),
  hwqueue.claim_deliveries(int, interval),
  hwqueue.settle_delivery(uuid, int, jsonb),
  hwqueue.list_schedules(text, int, text),
  hwqueue.schedule_history(text, int, timestamptz),
  hwqueue.pause_schedule(text, text),
  hwqueue.resume_schedule(text),
  hwqueue.trigger_schedule(text, jsonb),
  hwqueue.backfill_schedule(text, timestamptz[], boolean),
  hwqueue.list_limits(),
  hwqueue.list_tenants(text, int, text),
  hwqueue.tenant_usage(text, int),
  hwqueue.list_preemptions(uuid, text, int),
  hwqueue.limit_lanes(text, text, int),
  hwqueue.throttle_limit(text, text, timestamptz, interval, text, uuid),
  hwqueue.define_workflow(jsonb),
  hwqueue.get_workflow(text, int),
  hwqueue.list_workflows(text, int),
  hwqueue.list_workflow_versions(text[]),
  hwqueue.advance_workflows(int)
  to hwqueue_operator, hwqueue_admin;
grant select on
  hwqueue.pending_reasons, hwqueue.pending_no_match, hwqueue.pending_contended, hwqueue.queue_depth,
  hwqueue.node_usage, hwqueue.tag_distribution, hwqueue.lease_history, hwqueue.placement_class_stats
  to hwqueue_operator, hwqueue_admin;

-- Admins, in addition: queues and their policies, tokens of the HTTP API, webhooks and their secrets.
grant execute on function
  hwqueue.create_queue(text, jsonb),
  hwqueue.set_queue_policy(text, jsonb),
  hwqueue.drop_queue(text, boolean),
  hwqueue.set_event_retention(int),
  hwqueue.set_node_expiry(interval),
  hwqueue.create_token(text, bytea, text, text, timestamptz, interval, text[]),
  hwqueue.list_tokens(),
  hwqueue.revoke_token(text),
  hwqueue.set_webhook(text, text, jsonb),
  hwqueue.drop_webhook(text),
  hwqueue.rotate_webhook(text, interval),
  hwqueue.create_schedule(text, jsonb),
  hwqueue.set_schedule(text, jsonb),
  hwqueue.sync_schedules(text, jsonb),
  hwqueue.drop_schedule(text),
  hwqueue.create_limit(text, jsonb),
  hwqueue.set_limit(text, jsonb),
  hwqueue.drop_limit(text),
  hwqueue.set_tenant(text, jsonb),
  hwqueue.drop_tenant(text),
  hwqueue.grant_tenant(text, text, text[]),
  hwqueue.revoke_tenant(text, text)
  to hwqueue_admin;
