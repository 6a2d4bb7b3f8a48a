"""Replay a recorded GPU cluster's work through the queue: `python -m lab.replay`."""
