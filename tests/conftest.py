"""Fixtures for every test; each subject has a plugin module of its own."""

pytest_plugins = ["tests.fix_db"]
