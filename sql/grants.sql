-- What each role may call. Functions are the only way in: only the owner reads or writes a table.
--
-- Every upgrade applies this file last, because a function that the upgrade has created again has no grants.
-- revoke.sql, applied before, closes every function to PUBLIC. The file may run again and again;
-- `hwqueue db upgrade --no-roles` leaves it out. A function that is not named here is internal: sql/api holds
-- exactly what is granted, which tests/migrations/test_layers.py checks. What an older version granted goes
-- first: else a role would keep what it may not call any more.

revoke all on all functions in schema hwqueue
  from hwqueue_producer, hwqueue_worker, hwqueue_planner, hwqueue_operator, hwqueue_admin;

grant usage on schema hwqueue
  to hwqueue_producer, hwqueue_worker, hwqueue_planner, hwqueue_operator, hwqueue_admin;
grant execute on function hwqueue.schema_version()
  to hwqueue_producer, hwqueue_worker, hwqueue_planner, hwqueue_operator, hwqueue_admin;

-- Producers: spawn, read, change and cancel leases, and dry runs.
grant execute on function
  hwqueue.spawn_lease(text, text, jsonb, jsonb, int),
  hwqueue.spawn_leases(text, jsonb, int),
  hwqueue.update_lease(uuid, jsonb, int),
  hwqueue.cancel_lease(uuid, text, int),
  hwqueue.get_lease(uuid, int),
  hwqueue.lease_logs(uuid, text, int, int, boolean, int),
  hwqueue.lease_checkpoints(uuid, int, int),
  hwqueue.signal_lease(uuid, text, jsonb, text, int),
  hwqueue.await_leases(uuid[], boolean, int),
  hwqueue.spawn_warnings(uuid, int),
  hwqueue.match_nodes(jsonb, jsonb, int),
  hwqueue.match_page(jsonb, jsonb, int, int, int),
  hwqueue.match_groups(jsonb, jsonb, int),
  hwqueue.spawn_gang(text, jsonb, jsonb, int),
  hwqueue.get_gang(uuid, int),
  hwqueue.list_gangs(text, int, timestamptz, uuid, int),
  hwqueue.explain_gang(uuid, int),
  hwqueue.what_if_gang(text, jsonb, jsonb, int),
  hwqueue.cancel_gang(uuid, text, int),
  hwqueue.get_everywhere(uuid, int, uuid, int),
  hwqueue.list_everywhere(text, int, timestamptz, int),
  hwqueue.stop_everywhere(uuid, text, int),
  hwqueue.submit_workflow(text, jsonb, jsonb, int),
  hwqueue.submit_workflows(text, jsonb, int),
  hwqueue.submit_spec(jsonb, jsonb, jsonb, int),
  hwqueue.check_workflow(jsonb, jsonb, int),
  hwqueue.get_workflow_run(uuid, int),
  hwqueue.list_workflow_steps(uuid, int),
  hwqueue.step_results(uuid, text, int, int, uuid, text, int),
  hwqueue.run_input(uuid, uuid, int),
  hwqueue.list_workflow_runs(jsonb, int, uuid, int),
  hwqueue.get_run_workflow(uuid, int),
  hwqueue.list_step_details(uuid, int),
  hwqueue.list_run_signals(uuid, int, int),
  hwqueue.summarise_runs(uuid[], int),
  hwqueue.preview_retry(uuid, jsonb, int),
  hwqueue.preview_update(uuid, jsonb, text[], int),
  hwqueue.cancel_workflow_run(uuid, text, int),
  hwqueue.pause_workflow_run(uuid, int),
  hwqueue.resume_workflow_run(uuid, int),
  hwqueue.retry_workflow_run(uuid, jsonb, int),
  hwqueue.update_steps(uuid, jsonb, text[], int),
  hwqueue.signal_workflow_run(uuid, text, jsonb, text, int)
  to hwqueue_producer, hwqueue_operator, hwqueue_admin;

-- Workers: register their node, claim, heartbeat, settle, and do the upkeep.
grant execute on function
  hwqueue.register_node(uuid, jsonb, int),
  hwqueue.heartbeat_node(uuid, bigint, jsonb, interval, int),
  hwqueue.claim_task(text[], uuid, bigint, int, text[], interval, int),
  hwqueue.settle_and_claim(uuid, bigint, jsonb, text[], int, text[], interval, uuid[], bigint[], int),
  hwqueue.complete_lease(uuid, bigint, jsonb, int),
  hwqueue.complete_leases(uuid[], bigint[], int),
  hwqueue.fail_lease(uuid, bigint, jsonb, boolean, timestamptz, int),
  hwqueue.release_lease(uuid, bigint, interval, int),
  hwqueue.extend_claim(uuid, bigint, interval, int),
  hwqueue.save_checkpoint(uuid, bigint, text, jsonb, interval, int),
  hwqueue.gang_status(uuid, bigint, int),
  hwqueue.add_items(uuid, bigint, jsonb, int),
  hwqueue.add_steps(uuid, bigint, jsonb, int),
  hwqueue.checkpoints(uuid, bigint, int),
  hwqueue.take_signal(uuid, bigint, text, text, int),
  hwqueue.suspend_lease(uuid, bigint, timestamptz, text, text, int, text),
  hwqueue.report_progress(jsonb, int),
  hwqueue.append_logs(jsonb, int),
  hwqueue.claim_hint(text[], uuid, int),
  hwqueue.lease_outlook(uuid, uuid[], int),
  hwqueue.take_deaths(uuid, bigint, int, int),
  hwqueue.compare_tasks(jsonb, int),
  hwqueue.reap(int, interval, int),
  hwqueue.prune(int, interval, int),
  hwqueue.list_queues(int),
  hwqueue.wake_payloads(text[], int),
  hwqueue.node_wake_payload(uuid, int),
  hwqueue.deregister_own_node(uuid, bigint, int),
  hwqueue.advance_workflows(int, int),
  hwqueue.take_ended_runs(int, int),
  hwqueue.step_results(uuid, text, int, int, uuid, text, int),
  hwqueue.run_input(uuid, uuid, int)
  to hwqueue_worker, hwqueue_admin;

-- Planners: read what waits and what is free, set prices, propose places for gangs, say what they have found.
grant execute on function
  hwqueue.lead_planner(text, interval, int),
  hwqueue.planner_view(text, text, text, int, int, int),
  hwqueue.set_prices(text, jsonb, interval, bigint, bigint, int),
  hwqueue.note_room(jsonb, interval, bigint, bigint, int),
  hwqueue.planner_rooms(uuid[], int),
  hwqueue.reserve_gang(uuid, text, bigint, bigint, int),
  hwqueue.reserve_leases(jsonb, interval, bigint, bigint, int),
  hwqueue.assigned_leases(jsonb, int)
  to hwqueue_planner, hwqueue_admin;

-- Operators: everything that people on call need. They cannot claim.
grant execute on function
  hwqueue.list_leases(jsonb, int, uuid, int),
  hwqueue.list_nodes(text, uuid, text, int, int),
  hwqueue.explain_lease(uuid, int),
  hwqueue.explain_class(bigint, int),
  hwqueue.what_if(jsonb, int),
  hwqueue.node_claims(uuid, int, int),
  hwqueue.list_queues(int),
  hwqueue.claim_hint(text[], uuid, int),
  hwqueue.spawn_everywhere(text, text, jsonb, jsonb, int),
  hwqueue.requeue_lease(uuid, int),
  hwqueue.requeue_failed(text, jsonb, int),
  hwqueue.count_leases(jsonb, text[], int, jsonb, int),
  hwqueue.cancel_leases(jsonb, text, int, jsonb, int),
  hwqueue.requeue_leases(jsonb, int, jsonb, int),
  hwqueue.update_leases(jsonb, jsonb, int, jsonb, int),
  hwqueue.delete_leases(jsonb, int, jsonb, int),
  hwqueue.pause_queue(text, int),
  hwqueue.resume_queue(text, int),
  hwqueue.cordon_node(uuid, int),
  hwqueue.uncordon_node(uuid, int),
  hwqueue.drain_node(uuid, interval, int),
  hwqueue.deregister_node(uuid, int),
  hwqueue.taint_node(uuid, jsonb, int),
  hwqueue.untaint_node(uuid, text, text, int),
  hwqueue.attest_node(uuid, text, timestamptz, boolean, int, interval),
  hwqueue.confirm_node(uuid, text, int),
  hwqueue.hand_over_node(uuid, text, int),
  hwqueue.revoke_attestation(uuid, text, int),
  hwqueue.set_service_policy(uuid, jsonb, int),
  hwqueue.service_policy(uuid, int),
  hwqueue.set_task(text, jsonb, int),
  hwqueue.sync_tasks(jsonb, text, boolean, int),
  hwqueue.list_tasks(int),
  hwqueue.drop_task(text, int),
  hwqueue.adopt_lease(text, uuid, text, jsonb, jsonb, int),
  hwqueue.reap(int, interval, int),
  hwqueue.prune(int, interval, int),
  hwqueue.list_events(bigint, jsonb, int, int),
  hwqueue.verify_invariants(int),
  hwqueue.check_token(bytea, int),
  hwqueue.pending_reasons(text, text, bigint, text, int, int),
  hwqueue.queue_depth(text, int),
  hwqueue.running_leases(int, int),
  hwqueue.node_usage(text, int, text, int),
  hwqueue.planner_status(int),
  hwqueue.tag_distribution(text, int, int),
  hwqueue.lease_history(uuid, int),
  hwqueue.placement_class_stats(text, bigint, int, int),
  hwqueue.throughput(text, int, int),
  hwqueue.metrics(int),
  hwqueue.list_webhooks(int),
  hwqueue.pause_webhook(text, int),
  hwqueue.resume_webhook(text, int),
  hwqueue.test_webhook(text, int),
  hwqueue.list_deliveries(text, text, int, uuid, int),
  hwqueue.redeliver(text, uuid, int, int),
  hwqueue.claim_deliveries(int, interval, int),
  hwqueue.settle_delivery(uuid, int, jsonb, int),
  hwqueue.define_workflow(jsonb, int),
  hwqueue.get_workflow(text, int, int),
  hwqueue.list_workflows(text, int, int),
  hwqueue.list_workflow_versions(text[], int),
  hwqueue.skip_step(uuid, text, jsonb, text, int),
  hwqueue.advance_workflows(int, int)
  to hwqueue_operator, hwqueue_admin;
grant select on
  hwqueue.pending_reasons, hwqueue.pending_no_match, hwqueue.pending_contended, hwqueue.queue_depth,
  hwqueue.node_usage, hwqueue.tag_distribution, hwqueue.lease_history, hwqueue.placement_class_stats
  to hwqueue_operator, hwqueue_admin;

-- Admins, in addition: queues and their policies, tokens of the HTTP API, webhooks and their secrets.
grant execute on function
  hwqueue.create_queue(text, jsonb, int),
  hwqueue.set_queue_policy(text, jsonb, int),
  hwqueue.drop_queue(text, boolean, int),
  hwqueue.set_event_retention(int, int),
  hwqueue.set_node_expiry(interval, int),
  hwqueue.create_token(text, bytea, text, text, timestamptz, int, interval),
  hwqueue.list_tokens(int),
  hwqueue.revoke_token(text, int),
  hwqueue.set_webhook(text, text, jsonb, int),
  hwqueue.drop_webhook(text, int),
  hwqueue.rotate_webhook(text, interval, int)
  to hwqueue_admin;
