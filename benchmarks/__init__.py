"""Benchmarks: one file a question, run by `make bench` or `python -m benchmarks QUESTION`."""
