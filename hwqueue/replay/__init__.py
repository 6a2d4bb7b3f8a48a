"""Replay a GPU cluster's work through the queue: what `hwqueue replay` and `hwqueue demo` run.

Placement is decided by `claim_task` alone; this package registers nodes, spawns leases, polls, and
counts.
"""
