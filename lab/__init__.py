"""Laboratory equipment of a checkout, no part of the package: replays, other queues, the soak."""
