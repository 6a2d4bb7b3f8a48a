-- Functions that are gone, or take something else than they did.

drop function if exists hwqueue.kept_out_of(hwqueue.placement_class, uuid, hwqueue.node, jsonb, int);

-- they stand where their one caller called them
drop function if exists hwqueue.estimate_batch(bigint[], int);
drop function if exists hwqueue.merge_resources(jsonb, jsonb, text);
drop function if exists hwqueue.gate_of(text);
drop function if exists hwqueue.spread_profiles(jsonb, hwqueue.placement_class, int);
drop function if exists hwqueue.moment_words(timestamptz);
drop function if exists hwqueue.has_waiting(bigint, int);
drop function if exists hwqueue.tell_matched(bigint, boolean, int);
drop function if exists hwqueue.counted_before(timestamptz, int);
drop function if exists hwqueue.purge_finished(int, int, int);
drop function if exists hwqueue.purge_classes(int, int, int);
drop function if exists hwqueue.are_positions_behind(int);
drop function if exists hwqueue.grown_labels(jsonb, int);
drop function if exists hwqueue.live_places(text, timestamptz, int);

-- a node is judged by one function, all nodes by functions that say of what
drop function if exists hwqueue.profile_failures(jsonb, hwqueue.placement_class, jsonb, bigint, jsonb, text[], text[], text);
drop function if exists hwqueue.node_failures(jsonb, hwqueue.placement_class, hwqueue.node, hwqueue.node_load, jsonb, jsonb, text, timestamptz, int);
drop function if exists hwqueue.contended_part(int, int, text, text);
drop function if exists hwqueue.node_shortage(hwqueue.placement_class, hwqueue.node, hwqueue.node_load);
drop function if exists hwqueue.room_failures(int, int, int);
drop function if exists hwqueue.unlike_labels(hwqueue.placement_class, int);
drop function if exists hwqueue.unlike_others(hwqueue.placement_class, jsonb, timestamptz, int);
drop function if exists hwqueue.too_small_or_full(hwqueue.placement_class, int);

drop function if exists hwqueue.is_in_domain(uuid, text, text, int);
drop function if exists hwqueue.build_placement(jsonb, jsonb, jsonb, jsonb, jsonb, jsonb);
drop function if exists hwqueue.with_strength(jsonb, int);
drop function if exists hwqueue.target_words(jsonb, int);
drop function if exists hwqueue.forget_ended(hwqueue.profile, int);
drop function if exists hwqueue.named_nodes(hwqueue.placement_class);
drop function if exists hwqueue.room_holders(uuid, timestamptz, int);
drop function if exists hwqueue.prune_floors(int, int);
drop function if exists hwqueue.pending_target(hwqueue.placement_class, int);
