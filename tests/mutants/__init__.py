"""Planted bugs (mutants.toml), each of which the tests named beside it must catch."""
