-- Tables: what a row is. docs/reference/tables.md says more.

comment on table hwqueue.ready is
  'a lease that is claimable now; rows are inserted and deleted, never updated';
comment on table hwqueue.queue is 'a queue and its policy';
comment on table hwqueue.placement_class is
  'what decides where and whether a lease may run; leases that ask the same share a class';
comment on table hwqueue.lease is
  'the permanent record of a unit of work; neither a claim nor a completion writes to it';
comment on table hwqueue.workflow is 'a version of a definition of a workflow; it never changes';
comment on table hwqueue.node is 'what a node is; registration and operators write it';
comment on table hwqueue.node_load is 'what claims have allocated on a node; the newest version counts';
comment on table hwqueue.reap_cursor is
  'when reap last ran, and where its scans start; the newest version counts';
comment on table hwqueue.node_state is
  'what a claim must know of the node; claims, settlements and changes of the node lock this row first';
comment on table hwqueue.run is 'one execution of a workflow; the settlement of a step does not write it';
comment on table hwqueue.tally is
  'a count: parents of a step that have ended, open work of a run, or items of a map';
comment on table hwqueue.step is 'a step of a run, and its state';
comment on table hwqueue.workflow_step is 'a step of a definition; numbers are in topological order';
comment on table hwqueue.node_candidates is
  'classes that a claim of a node still has to read in these queues: all that it may run but those that '
  'are blocked, which the other columns prove. The newest version counts';
comment on table hwqueue.class_range is
  'the scores of the best and the worst live node for a class, as of the last scan; the newest row '
  'counts';
comment on table hwqueue.webhook_delivery is 'what is to be sent to a webhook, or was sent';
comment on table hwqueue.claim is 'a running lease: which node runs it, with which token, until when';
comment on table hwqueue.class_nodes is
  'the nodes that meet a class, and why the others do not, as bit strings over the nodes with this '
  'digest';
comment on table hwqueue.webhook is
  'a receiver of events: its address, its filter, its secret, and what has been routed to it';
comment on table hwqueue.affinity_term is
  'a selection of leases, and the domain (node, rack, label) in which they are counted';
comment on table hwqueue.profile_queue is
  'all classes of a queue that nodes of a profile without GPUs and custom countables may run';
comment on table hwqueue.profile is
  'all nodes with the same labels, rack, taints and isolation; a class is judged once for a profile';
comment on table hwqueue.prune_cursor is
  'when prune last ran, and where its scans start; the session that locks the row prunes';
comment on table hwqueue.idempotency is 'the idempotency key of a producer, or the key of the option unique';
comment on table hwqueue.low_water is
  'low-water marks: where scans of ready start, one mark for each tier and rank; the newest version '
  'counts';
comment on table hwqueue.shard is
  'one row for each shard: its generation, with which claim tokens begin, and settings of the '
  'installation';
comment on table hwqueue.added_item is 'an item that a handler has added to its step, by name';
comment on table hwqueue.spread_floor is
  'the lowest count of a max_skew term over the places of spread_fleet, as of the last scan; the newest '
  'row counts';
comment on table hwqueue.scheduled is 'a lease that is not claimable before available_at';
comment on table hwqueue.added_run is 'a run that a handler has added to its step';
comment on table hwqueue.api_token is 'who may call the HTTP API; of a secret only the sha256 is stored';
comment on table hwqueue.arrival is
  'what a session could not count or release because another one held the row; the next holder or reap '
  'does it';
comment on table hwqueue.attempt is 'a claim that ended without completing its lease';
comment on table hwqueue.attestation is 'an operator''s statement that a node is in a trust domain';
comment on table hwqueue.class_fleet is 'the reach of a class: the share of nodes that meets it';
comment on table hwqueue.ignored_label is
  'a label with very many values; nodes that differ only in such labels are judged as one';
comment on table hwqueue.lease_transition is 'the states of a lease and the only transitions between them';
comment on table hwqueue.map_list is 'a hundred items of the list of a map';
comment on table hwqueue.minute_stat is
  'running totals of a queue at the end of a minute; roll_up writes them';
comment on table hwqueue.node_eligibility is
  'a class that names nodes or resources, and that this node may run, with its affinity score';
comment on table hwqueue.position_horizon is 'how far low-water marks may move; the newest version counts';
comment on table hwqueue.profile_eligibility is
  'a class that nodes of a profile may run, with its affinity score';
comment on table hwqueue.progress is
  'how far a claim has come, as its handler reported last; it stays when the claim ends, until the '
  'lease goes';
comment on table hwqueue.queue_signal is
  'set by a claim that found the queue empty; the next spawn sends a notification and clears it';
comment on table hwqueue.requeued is 'an ended lease that was requeued, until roll_up has counted it';
comment on table hwqueue.run_class is 'a placement class that a run may still need; it is not pruned before';
comment on table hwqueue.run_key is 'a producer''s key of a run: an idempotency key, or a unique one';
comment on table hwqueue.schema_info is
  'what hwqueue db upgrade installed last; clients read it when they start';
comment on table hwqueue.served is
  'what a node''s worker announced when it registered: queues, tasks, concurrency';
comment on table hwqueue.service is 'what operators said about a service';
comment on table hwqueue.silent_node is 'a node that has been reported as silent and is not back yet';
comment on table hwqueue.task is 'the spawn options that leases of a task have by default';
comment on table hwqueue.workflow_edge is 'a step comes after another one';

-- Columns: the field's words in place of private ones.

comment on column hwqueue.queue.window_size is 'entries of the global order that a claim scans';
comment on column hwqueue.queue.probe_size is 'classes whose head a claim may read beyond the window';
comment on column hwqueue.placement_class.anchors is
  'the alternatives of one required positive equality, {*} if there is none: an index over them finds '
  'the classes of a node';
comment on column hwqueue.placement_class.trusts is
  'trust domains that its requirements mention: attestations expire, so a claim checks them again';
comment on column hwqueue.placement_class.cpu_isolation is
  'the class asked for; null: the node''s default. Likewise gpu_exclusivity';
comment on column hwqueue.placement_class.waits is
  'it must be with a lease that has not started yet: no claim judges it before that';
comment on column hwqueue.node_load.claim_count is
  'claims that allocated something; the others are not counted';
comment on column hwqueue.reap_cursor.deadlines_from is
  'no ready entry has an earlier deadline, and none can get one';
comment on column hwqueue.reap_cursor.scheduled_from is
  'no scheduled entry has an earlier available_at, and none can get one';
comment on column hwqueue.reap_cursor.arrivals_from is 'no arrival has an earlier at, and none can get one';
comment on column hwqueue.reap_cursor.steps_from is
  'no running step has an earlier due_at, and none can get one';
comment on column hwqueue.reap_cursor.next_after_xid is
  'only transactions below this one can still insert before next_from: once they have ended, the scans '
  'may start there';
comment on column hwqueue.reap_cursor.count_next_after_xid is
  'only transactions below this one can still insert what ended before count_next_to (roll_up)';
comment on column hwqueue.reap_cursor.class_id is
  'the last class that was checked for a missing estimate of its reach';
comment on column hwqueue.reap_cursor.watched_node is
  'the last node that was checked for a change to report; likewise watched_class';
comment on column hwqueue.reap_cursor.judged_profile is
  'the last profile that was checked for classes to judge';
comment on column hwqueue.node_state.on_fast_path is
  'registered, not cordoned, without GPUs, custom countables and cores counted one by one: most of its '
  'claims take the oldest entry';
comment on column hwqueue.node_state.met_blocked is
  'its last claims met classes that are blocked now: the next one reads all that are blocked before it '
  'starts';
comment on column hwqueue.node_state.moved_xid is
  'the transaction that last changed what the node is, or in which it became live again';
comment on column hwqueue.node_candidates.valid_until is
  'when the first lease reaches its patience, or in 10 seconds: then a claim reads again what is '
  'blocked';
comment on column hwqueue.spread_fleet.next_xid is
  'computed without transactions from this one on, and without those in unseen';
comment on column hwqueue.webhook_delivery.created_at is 'when the event happened';
comment on column hwqueue.claim.stop_requested_at is
  'when the worker is asked to stop; in the future while a taint is tolerated for a time';
comment on column hwqueue.claim.term_deltas is
  'what it has added to term_counter; null when no term selects it';
comment on column hwqueue.claim.is_awaited is 'a session listens for the end of the lease (await_leases)';
comment on column hwqueue.claim.is_step is
  'not null: the settlement continues a run (lease.run_id); false: of an item of a map; null: no run '
  'waits for this lease';
comment on column hwqueue.affinity_term.written_xid is
  'the transaction that last linked a class to it; 0 before the first';
comment on column hwqueue.profile_queue.scores_equal is
  'all classes have the same score: entries are ordered by age alone';
comment on column hwqueue.profile.left_out is
  'labels that nodes judged as this profile have in addition; a class that mentions one does not match '
  'it';
comment on column hwqueue.prune_cursor.pruned_at is 'when prune last ran';
comment on column hwqueue.attestation.any_instance is
  'it holds for every instance that the node''s login registers';
comment on column hwqueue.class_fleet.digest is
  'of the nodes that the reach was computed from (scan_nodes); null: a claim has estimated the reach, '
  'and the other columns are unknown';
comment on column hwqueue.class_fleet.reported_at is
  'when an event reported that leases of it wait and no live node may run them; null: not reported';
comment on column hwqueue.class_fleet.unmatched is
  'no live node that is not cordoned met it at the last scan';
comment on column hwqueue.profile_eligibility.cpu_isolation is
  'the class as judged here, the default filled in; null: best_effort. Likewise gpu_exclusivity: null '
  'is shared';
comment on column hwqueue.profile_eligibility.affinity is
  'null: it depends on other leases, and each claim computes it';
