-- == Helpers that stand in their callers now ==

drop function if exists hwqueue.added_request(hwqueue.map, integer, integer);
drop function if exists hwqueue.added_verdict(uuid, integer, hwqueue.step_verdict, integer);
drop function if exists hwqueue.adhoc_workflow(jsonb, timestamp with time zone, integer);
drop function if exists hwqueue.asked_labels(jsonb);
drop function if exists hwqueue.away_holders(hwqueue.placement_class, uuid, text, hwqueue.node,
  timestamp with time zone, integer);
drop function if exists hwqueue.begin_step(hwqueue.run, hwqueue.step, hwqueue.workflow_step, jsonb,
  timestamp with time zone, integer);
drop function if exists hwqueue.begin_wait(uuid, integer, jsonb, timestamp with time zone, integer);
drop function if exists hwqueue.cache_eligible(bigint, bigint[], integer);
drop function if exists hwqueue.check_added_run(hwqueue.run, integer, integer);
drop function if exists hwqueue.check_kind(jsonb, text, text, text);
drop function if exists hwqueue.check_known_steps(text[], jsonb[], text, text);
drop function if exists hwqueue.check_near_kinds(jsonb, jsonb, text);
drop function if exists hwqueue.check_node_labels(jsonb);
drop function if exists hwqueue.check_page_key(jsonb, text);
drop function if exists hwqueue.check_run_signal(hwqueue.run, text, integer);
drop function if exists hwqueue.check_tenant_work(hwqueue.run, integer, integer);
drop function if exists hwqueue.check_version_range(text, text, text);
drop function if exists hwqueue.checked_workflow(jsonb, jsonb, integer);
drop function if exists hwqueue.contradicting_levels(hwqueue.workflow, hwqueue.run, jsonb, jsonb, text);
drop function if exists hwqueue.cost_of_stops(uuid[], uuid[], uuid[]);
drop function if exists hwqueue.count_items(uuid, integer, text, text, integer);
drop function if exists hwqueue.end_unbound(uuid, integer, jsonb, hwqueue.run_progress,
  timestamp with time zone, integer);
drop function if exists hwqueue.end_unbound_items(uuid[], text, integer);
drop function if exists hwqueue.fact_reason(jsonb, jsonb);
drop function if exists hwqueue.few_ended(text, timestamp with time zone, integer);
drop function if exists hwqueue.first_broken(hwqueue.placement_class, jsonb, integer);
drop function if exists hwqueue.fleet_affinities(hwqueue.placement_class, integer);
drop function if exists hwqueue.forget_added(uuid, integer[], integer);
drop function if exists hwqueue.held_spawns(hwqueue.spawn_request[]);
drop function if exists hwqueue.help_of_names(hwqueue.placement_class, jsonb, bigint,
  timestamp with time zone, integer);
drop function if exists hwqueue.hold_begun_maps(uuid, integer[], integer);
drop function if exists hwqueue.hold_gang(uuid, integer, integer);
drop function if exists hwqueue.idle_rooms(bit varying, timestamp with time zone, integer);
drop function if exists hwqueue.is_forgotten(uuid, integer);
drop function if exists hwqueue.is_served(hwqueue.placement_class, uuid[], timestamp with time zone, integer);
drop function if exists hwqueue.item_key(jsonb);
drop function if exists hwqueue.item_values(hwqueue.map, jsonb, integer, integer);
drop function if exists hwqueue.join_choices(hwqueue.spawn_request[], timestamp with time zone, integer);
drop function if exists hwqueue.kept_words(hwqueue.placement_class, integer);
drop function if exists hwqueue.labels_hold(text, jsonb, jsonb);
drop function if exists hwqueue.lasting_facts(hwqueue.placement_class, hwqueue.claim, hwqueue.node,
  timestamp with time zone, integer);
drop function if exists hwqueue.lease_contradiction(jsonb);
drop function if exists hwqueue.leases_of_key(text, hwqueue.lease_filter, integer);
drop function if exists hwqueue.leave_releases(uuid, integer[], integer[], integer[],
  timestamp with time zone, integer);
drop function if exists hwqueue.load_without(hwqueue.node, uuid[]);
drop function if exists hwqueue.map_headline(hwqueue.step, text, integer, integer, integer);
drop function if exists hwqueue.map_low(hwqueue.map, hwqueue.workflow_step, integer);
drop function if exists hwqueue.member_params(hwqueue.map, integer, integer);
drop function if exists hwqueue.merge_isolation(jsonb, jsonb, text);
drop function if exists hwqueue.next_waiting_rank(bigint, smallint, bigint, timestamp with time zone,
  timestamp with time zone, integer);
drop function if exists hwqueue.normalise_spread(jsonb, text);
drop function if exists hwqueue.normalise_tenants(jsonb, text);
drop function if exists hwqueue.normalise_tolerations(jsonb, text);
drop function if exists hwqueue.normalise_trust_expr(jsonb, boolean, text);
drop function if exists hwqueue.note_registration(hwqueue.node, hwqueue.node, bigint, integer, integer);
drop function if exists hwqueue.open_parents(hwqueue.run, integer);
drop function if exists hwqueue.parse_taints(jsonb, text);
drop function if exists hwqueue.parse_wire_class(bytea, integer, integer, text[], text);
drop function if exists hwqueue.pinned_version(text, jsonb, jsonb);
drop function if exists hwqueue.planned_headline(hwqueue.run, integer, timestamp with time zone, integer);
drop function if exists hwqueue.read_nested(jsonb, text);
drop function if exists hwqueue.read_pin(jsonb, text);
drop function if exists hwqueue.read_retention(jsonb, text);
drop function if exists hwqueue.read_sleep(jsonb, text, text);
drop function if exists hwqueue.read_wait(jsonb, text);
drop function if exists hwqueue.refuse_nested(hwqueue.run, integer);
drop function if exists hwqueue.renew_items(hwqueue.tally);
drop function if exists hwqueue.repeated_pattern(jsonb);
drop function if exists hwqueue.retry_added_runs(uuid, integer, integer);
drop function if exists hwqueue.served_masks(bigint[], bit varying, timestamp with time zone, integer);
drop function if exists hwqueue.shown_reason(hwqueue.step, hwqueue.run);
drop function if exists hwqueue.shown_time(timestamp with time zone);
drop function if exists hwqueue.step_headline(hwqueue.step, hwqueue.workflow_step);
drop function if exists hwqueue.store_run_signal(uuid, text, jsonb, text, integer);
drop function if exists hwqueue.submit_nested(hwqueue.run, hwqueue.step, jsonb, jsonb, integer);
drop function if exists hwqueue.target_value(jsonb, text, text);
drop function if exists hwqueue.term_holders(jsonb, text, hwqueue.node, timestamp with time zone, integer);
drop function if exists hwqueue.term_wait(timestamp with time zone);
drop function if exists hwqueue.together_words(text[]);
drop function if exists hwqueue.told_places(hwqueue.gang, hwqueue.gang_room[], integer,
  timestamp with time zone, integer);
drop function if exists hwqueue.toleration_masks(jsonb[], bit varying, timestamp with time zone, integer);
drop function if exists hwqueue.try_steps(uuid, integer[], integer);
drop function if exists hwqueue.unchecked_claims(integer);
drop function if exists hwqueue.unique_run_key(jsonb);
drop function if exists hwqueue.waiting_members(hwqueue.gang, integer);
drop function if exists hwqueue.wire_contradiction(jsonb);
drop function if exists hwqueue.wire_expr(jsonb);
drop function if exists hwqueue.with_taint(hwqueue.node, jsonb, text, text, timestamp with time zone,
  integer);
drop function if exists hwqueue.words_of_classes(bigint[], integer);
drop function if exists hwqueue.write_count(bigint, text, integer, integer, boolean, integer);
drop function if exists hwqueue.write_worth(hwqueue.queue, double precision[], timestamp with time zone,
  bigint, bigint);
