"""A made-up GPU cluster at work through the queue: what `hwqueue demo` runs.

Placement is decided by `claim_task` alone; this package registers nodes, spawns leases, polls, and
counts. In a checkout `lab/replay` runs recorded clusters with it.
"""
