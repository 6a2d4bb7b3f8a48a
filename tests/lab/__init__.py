"""The laboratory: replays, other queues, the soak."""
