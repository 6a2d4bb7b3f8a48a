"""`hwqueue top`: queues, what waits and why, nodes, events and throughput in a terminal, live."""
